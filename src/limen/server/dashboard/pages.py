"""The files of the dashboard, in memory: what a browser may fetch, and under which rules.

Nothing is looked up on disk for a request, so no path leads out of the folder. Knows no sessions:
the files are the same for everybody, and tell nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

from msgspec import Struct

from limen.server.http import Headers, Response

PREFIX = "/ui/"
_INDEX = f"{PREFIX}index.html"
_BELOW = "/rules/"
ROUTES: tuple[str, ...] = ("/", "/rules", "/keys", "/live", "/audit", "/tokens")
"""The pages of app.js. It has more below a rule."""
_KINDS = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "json": b"application/json",
    "png": b"image/png",
    "svg": b"image/svg+xml",
    "woff2": b"font/woff2",
}
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
SECURITY_HEADERS: Headers = [
    (b"content-security-policy", CSP.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]
"""For every page of the service."""
# Asked for each time, and sent only when it has changed: a new version is there at once.
_NO_CACHE = (b"cache-control", b"no-cache")
_TAG = re.compile(rb'"[^"]*"')


class File(Struct, frozen=True):
    """What is sent."""

    body: bytes
    kind: bytes
    tag: bytes
    """Another one for other bytes, in quotes."""


class Pages:
    """All files, read once."""

    def __init__(self) -> None:
        root = resources.files("limen.server.dashboard") / "static"
        self._files = {f"{PREFIX}{path}": file for path, file in _files(root)}

    def response(self, path: str, if_none_match: bytes) -> Response | None:
        """Return the file at a path, or 304 if the browser has it already; None if there is none.

        Pages have no files of their own: app.js draws them in the index page.
        """
        if path in ROUTES or path.startswith(_BELOW):
            path = _INDEX
        file = self._files.get(path)
        if file is None:
            return None
        headers = [_NO_CACHE, *SECURITY_HEADERS, (b"etag", file.tag)]
        if if_none_match.strip() == b"*" or file.tag in _TAG.findall(if_none_match):
            return Response(304, headers)
        return Response(200, [*headers, (b"content-type", file.kind)], file.body)


def _files(folder: Traversable, path: str = "") -> Iterator[tuple[str, File]]:
    for each in folder.iterdir():
        name = f"{path}{each.name}"
        if each.is_dir():
            yield from _files(each, f"{name}/")
        elif kind := _KINDS.get(name.rpartition(".")[2]):
            body = each.read_bytes()
            yield name, File(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"'.encode())
