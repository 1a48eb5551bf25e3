"""The address of the client: that of the peer, or the one that a trusted proxy reports.

Pure, except for one warning.

A header is only text that somebody sent. What a proxy adds stands at its right end, so it is read
from there, and only as far as those who wrote it are trusted; whatever a client put to the left of
that is never looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv6Address
from itertools import islice
from typing import Literal, get_args

from msgspec import Struct

from limen.errors import ConfigurationError, InvalidInput, shown
from limen.model.network import (
    Network,
    Networks,
    Number,
    address_text,
    read_address,
    read_network,
)

ProxyHeader = Literal[
    "x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip", "true-client-ip"
]
"""The first two are lists that every proxy adds to; the others hold one address."""
UNIX = "unix"
"""What stands for a socket in the file system, among the proxies that are trusted."""

_logger = logging.getLogger("limen")
_LISTS = ("x-forwarded-for", "forwarded")
_PREFIXES = (48, 56, 64, 128)
_MAX_TRUSTED_HOPS = 16
_MAX_LOOKS = 256
_MAX_ENTRIES = 64
"""How many entries are read, from the right: who is trusted needs no more."""
_MAX_ENTRY = 16_384
_MAX_QUOTED = 64
_MAX_PAIRS = 16
_MAX_ADDRESS = 64
_NAT64 = int(IPv6Address("64:ff9b::")) >> 32
OPTIONAL_WHITESPACE = " \t"
"""May surround the value of a header, and is not part of it (RFC 9110, section 5.5)."""


class AddressSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose word on the client's address is taken. By default nobody's: who connects is meant."""

    trusted_proxies: tuple[str, ...] = ()
    """Networks or addresses of proxies: `("10.0.0.0/8",)`; `"unix"` is a socket in the file system.
    """
    trusted_hops: int = 0
    """Instead of networks: how many proxies stand in front, `1`. Good only where nobody can reach
    the server but through them."""
    header: str | None = None
    """The one header the proxies write: `"X-Forwarded-For"`. It must be one they always write."""
    ipv6_prefix: int = 64
    """How much of an IPv6 address is one client: 48, 56, 64 or 128 bits. Who has one address has
    a whole /64 of them."""


class Client(Struct, frozen=True, gc=False):
    """A client, by its address."""

    address: str
    """The whole address, in the one spelling that rules know: for logs, and to match networks."""
    key: str
    """What to count by: the address itself, or the first of its IPv6 network."""


class ClientAddresses:
    """Tells clients apart. Settings are validated once, here: `ConfigurationError` says why not."""

    __slots__ = ("_hops", "_looks", "_prefix", "_proxies", "_trusts_unix", "header", "is_warned")

    def __init__(self, settings: AddressSettings | None = None) -> None:
        settings = settings or AddressSettings()
        self.header: str | None = _valid_header(settings)
        """The header whose lines `of` wants, in lower case; None when none is trusted."""
        self.is_warned: bool = False
        """Whether `warn_of_ignored` has logged its line."""
        self._looks = 0
        self._hops = settings.trusted_hops
        self._prefix = _valid_prefix(settings.ipv6_prefix)
        self._trusts_unix = UNIX in settings.trusted_proxies
        networks = [text for text in settings.trusted_proxies if text != UNIX]
        self._proxies = Networks(map(_trusted_network, networks))

    def of(self, peer: str | None, lines: Sequence[str] = ()) -> Client | None:
        """Return the client, or None when it has no address.

        `peer` is who connected, None or a path for a socket in the file system; `lines` are the
        values of the header, one for each time it was sent, in order.
        """
        number = _number(peer) if peer else None
        if self.header is not None and lines and (self._hops or self._is_trusted(number)):
            number = self._forwarded(number, lines)
        return None if number is None else _client(number, self._prefix)

    def trusts(self, peer: str | None) -> bool:
        """Return whether who connected is one of the proxies that are trusted by name."""
        return self._is_trusted(_number(peer) if peer else None)

    def warn_of_ignored(
        self, peer: str | None, read: Callable[[str], Sequence[str]], setting: str
    ) -> None:
        """Log once if a peer forwards addresses and is not a trusted proxy.

        All clients behind such a proxy are one client. Looks at the first 256 requests, and then at
        one of 256. `read` returns the values of a header by its
        name in lower case; `setting` names the setting that lists the proxies.
        """
        self._looks += 1
        if self._looks > _MAX_LOOKS and self._looks % _MAX_LOOKS:
            return  # reading headers takes longer than all else here
        number = _number(peer) if peer else None
        if self.is_warned or self._hops or number is None or self._is_trusted(number):
            return
        for name in _LISTS if self.header is None else (self.header,):
            lines = read(name)
            if not lines:
                continue
            # A server that reads the header itself, such as uvicorn behind a local proxy, leaves
            # it in place and passes one of its addresses as the peer.
            if any(_number(entry) == number for entry in _entries(lines, name)):
                continue
            self.is_warned = True
            _logger.warning(
                "The %s header of %s is ignored, because this address is not a trusted proxy. If "
                "it is a proxy, all clients behind it share one counter: add it to %s. If it is a "
                "client, nothing has to be done. This is logged once.",
                "-".join(map(str.capitalize, name.split("-"))),
                _client(number, 128).address,
                setting,
            )
            return

    def _is_trusted(self, peer: Number | None) -> bool:
        return self._trusts_unix if peer is None else self._proxies.holds(peer)

    def _forwarded(self, peer: Number | None, lines: Sequence[str]) -> Number | None:
        """Go left past the proxies: as many as there are, or those that are trusted.

        Where an address cannot be read, the last one counts. A client that came by fewer proxies is
        known by the peer.
        """
        is_list = self.header in _LISTS
        entries = _entries(lines, self.header)
        if self._hops:
            hops = self._hops if is_list else 1
            nearest = list(islice(entries, hops))
            if len(nearest) < hops:
                return peer
            entries = iter(nearest)
        client = peer
        for entry in entries:
            hop = _number(entry)
            if hop is None:
                break
            client = hop
            if not self._hops and not (is_list and self._proxies.holds(hop)):
                break
        return client


def _entries(lines: Sequence[str], header: str | None) -> Iterator[str]:
    """Yield what a header lists, from right to left, over all its lines. `?` is not readable."""
    return filter(None, islice(_from_the_right(lines, header == "forwarded"), _MAX_ENTRIES))


def _from_the_right(lines: Sequence[str], is_forwarded: bool) -> Iterator[str]:
    for line in reversed(lines):
        end = len(line)
        while end >= 0:
            start = _element_start(line, end) if is_forwarded else line.rfind(",", 0, end) + 1
            if start is None:
                yield "?"
                return
            entry = line[start:end]
            if is_forwarded:
                yield _for(entry)
            else:
                yield entry.strip(OPTIONAL_WHITESPACE) if len(entry) <= _MAX_ENTRY else "?"
            end = start - 1


def _element_start(line: str, end: int) -> int | None:
    """Return where an element of `Forwarded` begins; None when that cannot be told.

    A comma in quotes does not end it. To be read from the right, like all else here: an opening
    quote that a client sends must not swallow what the proxy put after it.
    """
    least, at = max(0, end - _MAX_ENTRY), end
    for _ in range(_MAX_QUOTED):
        comma, quote = line.rfind(",", least, at), line.rfind('"', least, at)
        if quote <= comma:
            return comma + 1 if comma >= 0 or not least else None
        # From the closing quote to the opening one.
        at = line.rfind('"', least, quote)
        for _ in range(_MAX_QUOTED):
            if at < 0 or not _is_escaped(line, at):
                break
            at = line.rfind('"', least, at)
        if at < 0 or _is_escaped(line, at):
            return None
    return None


def _is_escaped(line: str, at: int) -> bool:
    before = line[max(0, at - _MAX_QUOTED) : at]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _for(element: str) -> str:
    """Return the `for` of one element of `Forwarded`; `?` when it has none that can be read."""
    if not element.strip(OPTIONAL_WHITESPACE):
        return ""
    found = ""
    for _ in range(_MAX_PAIRS):
        name, _, element = element.partition("=")
        value, after = _value(element)
        value = value.strip(OPTIONAL_WHITESPACE)
        if not value or after is None:
            return "?"
        if name.strip(OPTIONAL_WHITESPACE).lower() == "for":
            if found:
                return "?"
            found = value
        if not after:
            return found or "?"
        element = after
    return "?"


def _value(text: str) -> tuple[str, str | None]:
    """Return the value a text begins with, and what follows its semicolon; None if junk does."""
    if not text.startswith('"'):
        value, _, after = text.partition(";")
        return value, after
    end = 0
    for _ in range(_MAX_QUOTED):
        end = text.find('"', end + 1)
        if end < 0 or not _is_escaped(text, end):
            break
    between, _, after = text[end + 1 :].partition(";")
    return text[1:end], None if end < 0 or between.strip(OPTIONAL_WHITESPACE) else after


def _number(text: str) -> Number | None:
    """Return the address in a text, without port, brackets, quotes and zone; None for any other."""
    # Not remembered: whoever sends long texts must not fill the memory with them.
    return None if len(text) > 2 * _MAX_ADDRESS else _read(text)


@lru_cache(maxsize=8_192)
def _read(text: str) -> Number | None:
    text = text.strip(OPTIONAL_WHITESPACE)
    if len(text) > 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    if text.startswith("["):
        text, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in text or (rest and not _is_port(rest)):
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not _is_port(f":{port}"):
            return None
    return read_address(text)


def _is_port(text: str) -> bool:
    """Return whether a text is a colon and a port, or what RFC 7239 takes for a hidden one."""
    colon, port = text[:1], text[1:]
    if colon != ":" or not port.isascii():
        return False
    if port.startswith("_"):
        return len(port) > 1 and all(char.isalnum() or char in "._-" for char in port[1:])
    return port.isdigit() and len(port) <= 5


@lru_cache(maxsize=8_192)
def _client(number: Number, prefix: int) -> Client:
    version, bits = number
    if version == 6 and bits >> 32 == _NAT64:
        # Behind a translator, which gives every IPv4 client one of these.
        version, bits = 4, bits & 0xFFFF_FFFF
    cut = 128 - prefix if version == 6 else 0
    return Client(address_text((version, bits)), address_text((version, bits >> cut << cut)))


def _trusted_network(text: object) -> Network:
    if not isinstance(text, str):
        raise ConfigurationError(f"trusted_proxies must be a list of text, got {shown(text)}")
    try:
        network = None if text == "*" else read_network(text)
    except InvalidInput as error:
        raise ConfigurationError(
            f"trusted_proxies must be networks, addresses or 'unix': {error}"
        ) from None
    if network is None or not network.prefixlen:
        raise ConfigurationError(
            f"trusted_proxies cannot be {shown(text)}: whoever connects could then choose an "
            "address; name the networks of the proxies, or say how many there are by trusted_hops"
        )
    return network


def _valid_header(settings: AddressSettings) -> str | None:
    proxies, hops, header = settings.trusted_proxies, settings.trusted_hops, settings.header
    if isinstance(proxies, str):
        raise ConfigurationError(f"trusted_proxies must be a list, got the text {shown(proxies)}")
    if type(hops) is not int or not 0 <= hops <= _MAX_TRUSTED_HOPS:
        raise ConfigurationError(
            f"trusted_hops must be a whole number from 0 to {_MAX_TRUSTED_HOPS}, got {shown(hops)}"
        )
    if proxies and hops:
        raise ConfigurationError("give trusted_proxies or trusted_hops, not both")
    known = get_args(ProxyHeader)
    if header is None:
        if proxies or hops:
            names = ", ".join(known)
            raise ConfigurationError(
                f"name the one header that the trusted proxies always write, as header: {names}"
            )
        return None
    if not isinstance(header, str) or header.lower() not in known:
        raise ConfigurationError(f"header must be one of {', '.join(known)}, got {shown(header)}")
    if not proxies and not hops:
        raise ConfigurationError(
            f"header {header!r} is only as good as who writes it: name the proxies by "
            "trusted_proxies, or say how many there are by trusted_hops"
        )
    return header.lower()


def _valid_prefix(prefix: object) -> int:
    if type(prefix) is int and prefix in _PREFIXES:
        return prefix
    raise ConfigurationError(f"ipv6_prefix must be 48, 56, 64 or 128, got {shown(prefix)}")
