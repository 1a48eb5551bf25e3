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
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote_from_bytes

import msgspec
from msgspec import Struct

from limen.http import OPTIONAL_WHITESPACE, is_ambiguous, normal_path
from limen.server.http.exchange import Rejected
from limen.server.settings.model import GatewaySettings

Value = bytes | None
# Where the value of a header is kept; those that the settings name come behind.
_TOKEN, _SITE, _ADDRESS, _HOST, _METHOD, _METHOD_2, _URI, _URI_2, _URL, _OTHERS = range(10)
_ALWAYS = {b"x-limen-token": _TOKEN}
_FORWARDED = {
    b"x-forwarded-host": _HOST,
    b"x-forwarded-method": _METHOD,
    b"x-original-method": _METHOD_2,
    b"x-forwarded-uri": _URI,
    b"x-original-uri": _URI_2,
    b"x-original-url": _URL,
}
_PREFIXED = {b"host": _HOST, b"sec-fetch-site": _SITE}
_LISTS = frozenset({b"x-forwarded-for", b"forwarded"})
_METHOD_FORM = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_AUTHORITY_END = re.compile(rb"[/?#]")
_WHITESPACE = OPTIONAL_WHITESPACE.encode()
_ASCII = bytes(range(128))
_STANDARD = bytes.maketrans(b"-_", b"+/")


class Question(NamedTuple):
    """What a gateway asks, as it was sent."""

    token: Value
    """The gateway's own; all else may be its client's."""
    site: Value
    """What a browser says of the page that sent it, if it came from a browser."""
    query: bytes
    """The query of the client's request; all of them together, if headers name several."""
    request: tuple[Any, ...]
    """Whatever attributes are made of, and nothing else: equal ones have equal attributes. The last
    is the name of a header that is repeated and must not be, or None."""


class _Form(Struct, frozen=True):
    """Which headers are looked at, and which attributes come of those that the settings name."""

    places: dict[bytes, int]
    size: int
    others: tuple[tuple[str, int, bytes, str | None], ...]
    """The attribute, where the value of its header is kept, the header, and the claim in it."""
    lists: frozenset[int]
    """Where the lines of a repeated header are joined."""
    singles: tuple[tuple[int, bytes], ...]
    """Headers in which a comma is refused, each with the place of its value."""


class Reader:
    """Reads what gateways forward, as the settings have it."""

    def __init__(self, settings: GatewaySettings) -> None:
        header = settings.address_header
        self._addresses = settings.client_addresses()
        self._normalize = settings.normalize_path
        always = {**_ALWAYS, header.encode(): _ADDRESS}
        self._forms = (
            _form({**always, **_FORWARDED}, settings),
            _form({**always, **_PREFIXED}, settings),
        )

    def trusts(self, peer: str | None) -> bool:
        """Return whether who connected may forward requests."""
        return self._addresses.trusts(peer)

    def forwarded(self, peer: str | None, headers: Iterable[tuple[bytes, bytes]]) -> Question:
        """Read a question whose method and path are in headers. Raises `Rejected`."""
        found, repeated = _gathered(self._forms[0], headers)
        query = b""
        for at in (_URI, _URI_2, _URL):
            value = found[at]
            if value and b"?" in value:
                # Whatever it says is no attribute. All of them: one may be the client's own.
                found[at], _, more = value.partition(b"?")
                query = query + b"&" + more if query else more
        return Question(found[_TOKEN], None, query, (False, peer, *found[_ADDRESS:], repeated))

    def prefixed(
        self, peer: str | None, headers: Iterable[tuple[bytes, bytes]], method: str, path: bytes
    ) -> Question:
        """Read a question whose method and path are those of the client. Raises `Rejected`."""
        found, repeated = _gathered(self._forms[1], headers)
        found[_METHOD], found[_URI] = method.encode(), path
        request = (True, peer, *found[_ADDRESS:], repeated)
        return Question(found[_TOKEN], found[_SITE], b"", request)

    def attributes(self, request: Sequence[Any]) -> dict[str, str]:
        """Return what rules see of a request. Raises `Rejected` for what nobody could tell."""
        # As they were gathered: who connected stands where the browser's word was.
        is_prefixed, peer, *_, repeated = request
        form = self._forms[is_prefixed]
        _refuse_lists(form, request, repeated)
        found = {"method": _method(request), "path": _path(request, self._normalize)}
        host = _host(request)
        if host:
            found["host"] = host
        address = request[_ADDRESS]
        if not address:
            # Without it all clients would be counted as one, by the address of the gateway.
            wanted = _title(str(self._addresses.header))
            raise Rejected(
                400,
                f"the address of the client is missing: let the gateway send {wanted}, or name "
                "another header by gateway.address_header",
            )
        client = self._addresses.of(peer, (address.decode("latin-1"),))
        if client is not None:
            found["ip"], found["address"] = client.key, client.address
        for name, at, header, claim in form.others:
            value = request[at]
            if value:
                if at in form.lists:
                    value = _one_spelling(value)
                text = _text(value) if claim is None else _claimed(value, header, claim)
                if text:
                    found[name] = text
        return found


def _form(places: dict[bytes, int], settings: GatewaySettings) -> _Form:
    size = _OTHERS
    others = []
    # A path may contain a comma. X-Forwarded-Host is a list of which the last element counts.
    single = {b"host", settings.address_header.encode()}
    for each in settings.attributes:
        if each.header not in places:
            places[each.header], size = size, size + 1
        others.append((each.attribute, places[each.header], each.header, each.claim))
        single.add(each.header)
    lists = _LISTS | {name.lower().encode() for name in settings.list_headers}
    single -= lists
    return _Form(
        places,
        size,
        tuple(others),
        lists=frozenset(
            at for name, at in places.items() if name in lists and (at == _ADDRESS or at >= _OTHERS)
        ),
        singles=tuple([(at, name) for name, at in places.items() if name in single]),
    )


def _gathered(
    form: _Form, headers: Iterable[tuple[bytes, bytes]]
) -> tuple[list[Value], bytes | None]:
    """Return the values that a form looks at, each at its place, and a header that is repeated."""
    found: list[Value] = [None] * form.size
    repeated = None
    place_of = form.places.get
    for name, value in headers:
        at = place_of(name)
        if at is None:
            continue
        value = value.strip(_WHITESPACE)
        before = found[at]
        if before is None:
            found[at] = value
        elif at in form.lists:
            found[at] = before + b"," + value
        else:
            repeated = name
    return found, repeated


def _refuse_lists(form: _Form, request: Sequence[Any], repeated: bytes | None) -> None:
    if repeated is not None:
        raise Rejected(
            400,
            f"{_title(repeated.decode())} header is repeated; expected one value. Let the gateway "
            "replace the header that clients send",
        )
    for at, header in form.singles:
        value = request[at]
        if value and b"," in value:
            raise Rejected(
                400,
                f"{_title(header.decode())} header is repeated or contains a comma; expected one "
                "value. To allow lists, add the header to gateway.list_headers",
            )


def _one_spelling(value: bytes) -> bytes:
    """Return a list as it is written most often. Empty elements do not count."""
    elements = [element.strip(_WHITESPACE) for element in value.split(b",")]
    return b", ".join([element for element in elements if element])


def _title(header: str) -> str:
    return "-".join(map(str.capitalize, header.split("-")))


def _method(request: Sequence[Any]) -> str:
    found = {value.upper() for value in (request[_METHOD], request[_METHOD_2]) if value}
    method: bytes = _only(found, "method", "X-Forwarded-Method or X-Original-Method")
    if not _METHOD_FORM.fullmatch(method):
        raise Rejected(400, "the forwarded method is no method of HTTP")
    return method.decode("ascii")


def _path(request: Sequence[Any], normalize: Sequence[str]) -> str:
    found = {_normal(value, normalize) for value in request[_URI : _URL + 1] if value}
    path: str = _only(found, "path", "X-Forwarded-Uri, X-Original-URI or X-Original-URL")
    return path


def _host(request: Sequence[Any]) -> str:
    url = request[_URL]
    _, separator, rest = url.partition(b"://") if url else (b"", b"", b"")
    names = [request[_HOST]]
    if separator:
        names.append(_AUTHORITY_END.split(rest, 1)[0].rpartition(b"@")[2])
    found = {host for host in [_plain_host(name) for name in names if name] if host}
    host: str = _only(found, "host", "X-Forwarded-Host or X-Original-URL") if found else ""
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
            f"the header {header.decode()} holds neither a JWT nor the payload of one, and a claim "
            "of it is asked for",
        ) from None
    if isinstance(found, bool):
        return "true" if found else "false"
    return str(found) if isinstance(found, str | int | float) else ""
