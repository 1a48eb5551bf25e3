"""A request that a gateway forwards: from its headers to the attributes that rules see. Pure.

Of a header nobody can tell whether the gateway wrote it or let it through from its client. So what
is said twice, and not the same, is refused rather than chosen from; and in a question whose path is
the client's own, the headers that could say another are not looked at.

Gateways join the lines of a repeated header with commas, and applications choose one of them. So a
comma in a header that has one value is refused like a second line.

Bytes are text in UTF-8, and what is not is kept byte by byte (surrogateescape), as in keys.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote_from_bytes

import msgspec
from msgspec import Struct

from limen.http import OPTIONAL_WHITESPACE, is_ambiguous, normal_path
from limen.server.http.exchange import Rejected
from limen.server.settings.model import GatewaySettings

_TOKEN, _SITE, _HOST = b"x-limen-token", b"sec-fetch-site", b"x-forwarded-host"
_METHODS = (b"x-forwarded-method", b"x-original-method")
_ORIGINAL_URL = b"x-original-url"
_URIS = (b"x-forwarded-uri", b"x-original-uri", _ORIGINAL_URL)
_FORWARDED = (_HOST, *_METHODS, *_URIS)
_PREFIXED = (b"host", _SITE)
_LISTS = frozenset({b"x-forwarded-for", b"forwarded"})
_METHOD_FORM = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_AUTHORITY_END = re.compile(rb"[/?#]")
_WHITESPACE = OPTIONAL_WHITESPACE.encode()
_ASCII = bytes(range(128))
_STANDARD = bytes.maketrans(b"-_", b"+/")


class ForwardedRequest(Struct, frozen=True):
    """Everything that attributes are made of, and nothing else.

    Equal requests have equal attributes.
    """

    peer: str | None
    """The address of the gateway."""
    target: tuple[bytes, bytes] | None
    """The method and the path, if they are those of the question; None if headers have them."""
    headers: tuple[tuple[bytes, bytes], ...]
    repeated: bytes | None
    """The name of a header that is repeated and must not be."""


class Question(Struct):
    """What a gateway asks, as it was sent."""

    token: bytes | None
    """The gateway's own; all else may be its client's."""
    site: bytes | None
    """What a browser says of the page that sent it, if it came from a browser."""
    query: bytes
    """The query of the client's request; all of them together, if headers name several."""
    request: ForwardedRequest


class _Form(Struct, frozen=True):
    """Which headers of a question are read."""

    names: frozenset[bytes]
    lists: frozenset[bytes]
    """Headers whose lines are joined when they are repeated."""
    singles: tuple[bytes, ...]
    """Headers in which a comma is refused."""


class Reader:
    """Reads what gateways forward, as the settings have it."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._addresses = settings.client_addresses()
        self._address = settings.address_header.encode()
        self._attributes = settings.attributes
        self._normalize = settings.normalize_path
        self._forwarded = _form(_FORWARDED, settings)
        self._prefixed = _form(_PREFIXED, settings)

    def trusts(self, peer: str | None) -> bool:
        """Return whether who connected may forward requests."""
        return self._addresses.trusts(peer)

    def forwarded(self, peer: str | None, headers: Iterable[tuple[bytes, bytes]]) -> Question:
        """Read a question whose method and path are in headers. Raises `Rejected`."""
        values, repeated = _gathered(self._forwarded, headers)
        token = values.pop(_TOKEN, None)
        query = b""
        for name in _URIS:
            value = values.get(name)
            if value and b"?" in value:
                # Whatever it says is no attribute. All of them: one may be the client's own.
                values[name], _, more = value.partition(b"?")
                query = query + b"&" + more if query else more
        request = ForwardedRequest(peer, None, tuple(sorted(values.items())), repeated)
        return Question(token, None, query, request)

    def prefixed(
        self, peer: str | None, headers: Iterable[tuple[bytes, bytes]], method: str, path: bytes
    ) -> Question:
        """Read a question whose method and path are those of the client. Raises `Rejected`."""
        values, repeated = _gathered(self._prefixed, headers)
        token, site = values.pop(_TOKEN, None), values.pop(_SITE, None)
        target = method.encode(), path
        request = ForwardedRequest(peer, target, tuple(sorted(values.items())), repeated)
        return Question(token, site, b"", request)

    def attributes(self, request: ForwardedRequest) -> dict[str, str]:
        """Return what rules see of a request. Raises `Rejected` for what nobody could tell."""
        values = dict(request.headers)
        form = self._forwarded if request.target is None else self._prefixed
        _refuse_lists(form, values, request.repeated)
        if request.target is None:
            methods, uris = _several(values, _METHODS), _several(values, _URIS)
            host = _host(values.get(_HOST), values.get(_ORIGINAL_URL))
        else:
            methods, uris = [request.target[0]], [request.target[1]]
            host = _host(values.get(b"host"), None)
        attributes = {"method": _method(methods), "path": _path(uris, self._normalize)}
        if host:
            attributes["host"] = host
        address = values.get(self._address)
        if not address:
            # Without it all clients would be counted as one, by the address of the gateway.
            raise Rejected(
                400,
                "the address of the client is missing: let the gateway send "
                f"{_title(self._address)}, or name another header by gateway.address_header",
            )
        client = self._addresses.of(request.peer, (address.decode("latin-1"),))
        if client is not None:
            attributes["ip"], attributes["address"] = client.key, client.address
        for each in self._attributes:
            value = values.get(each.header)
            if value:
                if each.header in form.lists:
                    value = _one_spelling(value)
                text = (
                    _text(value) if each.claim is None else _claimed(value, each.header, each.claim)
                )
                if text:
                    attributes[each.attribute] = text
        return attributes


def _form(fixed: Sequence[bytes], settings: GatewaySettings) -> _Form:
    """Return the headers that are read: fixed ones, and those that the settings name."""
    address = settings.address_header.encode()
    named = {each.header for each in settings.attributes}
    lists = _LISTS | {name.lower().encode() for name in settings.list_headers}
    names = frozenset({_TOKEN, address, *fixed, *named})
    # A path may contain a comma. X-Forwarded-Host is a list of which the last element counts.
    singles = ({b"host", address, *named} - lists) & names
    joined = lists & {address, *named.difference(fixed)}
    return _Form(names, joined, tuple(sorted(singles)))


def _gathered(
    form: _Form, headers: Iterable[tuple[bytes, bytes]]
) -> tuple[dict[bytes, bytes], bytes | None]:
    """Return the headers that a form reads, and one that is repeated and must not be."""
    values: dict[bytes, bytes] = {}
    repeated = None
    for name, value in headers:
        if name not in form.names:
            continue
        value = value.strip(_WHITESPACE)
        if name not in values:
            values[name] = value
        elif name in form.lists:
            values[name] += b"," + value
        else:
            repeated = name
    return values, repeated


def _several(values: Mapping[bytes, bytes], names: Iterable[bytes]) -> list[bytes]:
    return [value for name in names if (value := values.get(name))]


def _refuse_lists(form: _Form, values: Mapping[bytes, bytes], repeated: bytes | None) -> None:
    if repeated is not None:
        raise Rejected(
            400,
            f"{_title(repeated)} header is repeated; expected one value. Let the gateway "
            "replace the header that clients send",
        )
    for name in form.singles:
        if b"," in values.get(name, b""):
            raise Rejected(
                400,
                f"{_title(name)} header is repeated or contains a comma; expected one "
                "value. To allow lists, add the header to gateway.list_headers",
            )


def _one_spelling(value: bytes) -> bytes:
    """Return a list as it is written most often. Empty elements do not count."""
    elements = [element.strip(_WHITESPACE) for element in value.split(b",")]
    return b", ".join([element for element in elements if element])


def _title(header: bytes) -> str:
    return "-".join(map(str.capitalize, header.decode().split("-")))


def _method(methods: Iterable[bytes]) -> str:
    each = {method.upper() for method in methods}
    method: bytes = _only(each, "method", "X-Forwarded-Method or X-Original-Method")
    if not _METHOD_FORM.fullmatch(method):
        raise Rejected(400, "the forwarded method is no method of HTTP")
    return method.decode("ascii")


def _path(uris: Iterable[bytes], normalize: Sequence[str]) -> str:
    paths = {_normal(uri, normalize) for uri in uris}
    path: str = _only(paths, "path", "X-Forwarded-Uri, X-Original-URI or X-Original-URL")
    return path


def _host(name: bytes | None, url: bytes | None) -> str:
    names = [name or b""]
    _, separator, rest = (url or b"").partition(b"://")
    if separator:
        names.append(_AUTHORITY_END.split(rest, 1)[0].rpartition(b"@")[2])
    hosts = {_plain_host(each) for each in names} - {""}
    host: str = _only(hosts, "host", "X-Forwarded-Host or X-Original-URL") if hosts else ""
    return host


def _only(found: set[Any], what: str, headers: str) -> Any:
    if len(found) == 1:
        return found.pop()
    if not found:
        raise Rejected(400, f"the {what} of the request is missing: let the gateway send {headers}")
    raise Rejected(
        400,
        f"headers name more than one {what}; let the gateway send one of {headers}, and remove the "
        "others",
    )


def _normal(uri: bytes, normalize: Sequence[str]) -> str:
    # Bytes that ought to have been encoded are, so that all spellings are decoded together.
    text = uri.decode("ascii") if uri.isascii() else quote_from_bytes(uri, _ASCII)
    parameters, backslashes = "parameters" in normalize, "backslashes" in normalize
    if is_ambiguous(text, strip_parameters=parameters, convert_backslashes=backslashes):
        raise Rejected(
            400,
            "the path is ambiguous: servers disagree about its dot segments, slashes or "
            "parameters. Send it without '..'",
        )
    return normal_path(text, strip_parameters=parameters, convert_backslashes=backslashes)


def _plain_host(name: bytes) -> str:
    """Return a host in lower case, without its port and the dot of its root."""
    # Proxies add to a list at its right end, and what stands there was written last.
    name = name.rpartition(b",")[2].strip().lower()
    if name.startswith(b"["):
        name = name.partition(b"]")[0] + b"]"
    elif name.count(b":") == 1:
        name = name.partition(b":")[0]
    return _text(name.rstrip(b"."))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _claimed(value: bytes, header: bytes, claim: str) -> str:
    """Return a claim of a JWT, which the gateway has verified; empty when it has none of the kind.

    `value` is the whole JWT, perhaps after `Bearer`, or its payload alone.
    """
    parts = value.rpartition(b" ")[2].split(b".")
    payload = parts[1 if len(parts) == 3 else 0].rstrip(b"=").translate(_STANDARD)
    try:
        text = base64.b64decode(payload + b"=" * (-len(payload) % 4), validate=True)
        found = msgspec.json.decode(text, type=dict[str, Any]).get(claim)
    except (ValueError, RecursionError):
        raise Rejected(
            400,
            f"the header {header.decode()} holds neither a JWT nor the payload of one, "
            "and a claim of it is asked for",
        ) from None
    if isinstance(found, bool):
        return "true" if found else "false"
    return str(found) if isinstance(found, str | int | float) else ""
