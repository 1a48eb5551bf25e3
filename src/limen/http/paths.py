"""The normal form of a path: one spelling for all that servers take for the same path. Pure."""

from __future__ import annotations

import re
from urllib.parse import unquote

_PARAMETERS = re.compile(r";[^/]*")
_SPECIAL = re.compile(r"[%;\\]|//")
"""Without one of these, all servers agree about a path."""


def normal_path(
    path: str,
    *,
    decoded: bool = False,
    strip_parameters: bool = False,
    convert_backslashes: bool = False,
) -> str:
    """Return the one spelling of a path: decoded once, no doubled or trailing slash, no dots.

    Rules should see this as `path`. A target without a path, such as `*`, stays as it is. The
    steps, in this order:

    1. The query, the fragment, and the scheme and host of an absolute URL are cut off.
    2. Percent-encoding is decoded once, unless `decoded`.
    3. With `convert_backslashes`, each backslash becomes a slash.
    4. With `strip_parameters`, `;` and everything up to the next slash is removed.
    5. Empty segments are removed, and dot segments are resolved.
    """
    plain = unquoted(cut_path(path, decoded), decoded)
    plain = _replaced(plain, strip_parameters, convert_backslashes)
    return "/" + "/".join(segments_of(plain)) if plain.startswith("/") else plain


def is_ambiguous(path: str, *, strip_parameters: bool, convert_backslashes: bool) -> bool:
    """Return whether servers disagree about which path is meant.

    `normal_path` decodes a path, and resolves dot segments then, as nginx does. Others resolve them
    first, segment by segment, and decode each segment then: to them, `/a%2f../b` is a path below
    `/a`. The same is true of parameters (`/a;x=%2f../b`), and of empty segments, which some remove
    before `..` and others after it (`/a//../b`). `path` is as it was sent.
    """
    if not _SPECIAL.search(path):
        return False
    raw = cut_path(path, False)
    if not raw.startswith("/"):
        return False
    segments: list[str] = []
    for part in raw[1:].split("/"):
        segment = unquoted(part.partition(";")[0] if strip_parameters else part, False)
        if segment == "..":
            del segments[-1:]
        elif segment != ".":
            segments.append(segment)
    plain = _replaced("/" + "/".join(segments), strip_parameters, convert_backslashes)
    other = "/" + "/".join(filter(None, plain.split("/")))
    return other != normal_path(
        path, strip_parameters=strip_parameters, convert_backslashes=convert_backslashes
    )


def _replaced(plain: str, strip_parameters: bool, convert_backslashes: bool) -> str:
    if convert_backslashes:
        plain = plain.replace("\\", "/")
    return _PARAMETERS.sub("", plain) if strip_parameters and ";" in plain else plain


def cut_path(path: str, decoded: bool) -> str:
    """Return the path alone, without the query, the fragment, the scheme and the host."""
    if not decoded:
        path = path.partition("?")[0].partition("#")[0]
    if not path:
        return "/"
    if path[0] != "/":
        scheme, separator, rest = path.partition("://")
        if separator and scheme.isalnum():
            path = "/" + rest.partition("/")[2]
    return path


def unquoted(text: str, decoded: bool) -> str:
    """Decode percent-encoding, unless that was done before."""
    return text if decoded or "%" not in text else unquote(text, errors="surrogateescape")


def segments_of(path: str) -> list[str]:
    """Return the segments of a decoded path, as RFC 3986 resolves dots."""
    if "//" not in path and "/." not in path and path[-1] != "/":
        return path[1:].split("/")
    found: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del found[-1:]
        elif segment and segment != ".":
            found.append(segment)
    return found
