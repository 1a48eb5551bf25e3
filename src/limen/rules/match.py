"""What a rule asks of one attribute: exact text, globs, networks, negation, presence. Pure.

A glob knows one sign, `*`, for any characters, also none and also `/`; `\\*` is the sign itself.
It is cut into its fixed parts when the rules are loaded, and each part is looked for once, from
left to right: there is nothing to go back to, so no text can make a match slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from limen.errors import InvalidInput, shown

ADDRESS = "ip"
"""The attribute whose values are addresses, and may be matched by networks."""
MAX_PATTERN = 1_000
_MAX_STARS = 16
_LONGEST_ADDRESS = 64
_STARS = re.compile(r"(?<!\\)\*+")


class Glob:
    """A text with `*` in it."""

    __slots__ = ("_least", "middles", "prefix", "suffix", "text")

    def __init__(self, text: str) -> None:
        pieces = [_literal(piece) for piece in _STARS.split(text)]
        if len(pieces) - 1 > _MAX_STARS:
            raise InvalidInput(f"at most {_MAX_STARS} '*' fit into one text, got {shown(text)}")
        self.text: str = text
        self.prefix: str = pieces[0]
        self.middles: tuple[str, ...] = tuple(pieces[1:-1])
        self.suffix: str = pieces[-1]
        self._least = sum(map(len, pieces))

    def holds(self, value: str) -> bool:
        """Return whether a text is of this form."""
        if not value.startswith(self.prefix) or not value.endswith(self.suffix):
            return False
        if len(value) < self._least:
            return False
        at, end = len(self.prefix), len(value) - len(self.suffix)
        for piece in self.middles:
            at = value.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True


class Networks:
    """A set of networks, in which an address is found by one look for each length of prefix."""

    __slots__ = ("tables", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts: tuple[str, ...] = tuple(texts)
        self.tables: dict[tuple[int, int], set[int]] = {}
        """By version and by the bits that are cut off: what is left of each network's address."""
        for text in self.texts:
            network = read_network(text)
            cut = network.max_prefixlen - network.prefixlen
            start = int(network.network_address) >> cut
            self.tables.setdefault((network.version, cut), set()).add(start)

    def holds(self, value: str) -> bool:
        """Return whether a text is an address in one of the networks."""
        address = read_address(value)
        if address is None:
            return False
        version, number = address
        return any(
            number >> cut in starts
            for (of_version, cut), starts in self.tables.items()
            if of_version == version
        )


class Values:
    """Texts, globs and networks, of which one has to fit."""

    __slots__ = ("exact", "globs", "networks")

    def __init__(self, texts: Iterable[str], *, are_addresses: bool = False) -> None:
        texts = tuple(texts)
        self.networks: Networks | None = Networks(texts) if are_addresses else None
        is_glob = [not are_addresses and bool(_STARS.search(text)) for text in texts]
        self.exact: frozenset[str] = frozenset(
            _literal(text)
            for text, glob in zip(texts, is_glob, strict=True)
            if not glob and not are_addresses
        )
        self.globs: tuple[Glob, ...] = tuple(
            Glob(text) for text, glob in zip(texts, is_glob, strict=True) if glob
        )

    def holds(self, value: str) -> bool:
        """Return whether one of them fits."""
        if value in self.exact:
            return True
        for glob in self.globs:
            if glob.holds(value):
                return True
        return self.networks is not None and self.networks.holds(value)

    def __str__(self) -> str:
        networks = self.networks.texts if self.networks else ()
        return " or ".join([*sorted(self.exact), *(glob.text for glob in self.globs), *networks])


class Condition:
    """All that a rule asks of one attribute."""

    __slots__ = ("is_", "not_", "present")

    def __init__(self, is_: Values | None, not_: Values | None, present: bool | None) -> None:
        self.is_: Values | None = is_
        self.not_: Values | None = not_
        self.present: bool | None = present

    def holds(self, value: str | None) -> bool:
        """Return whether a value will do; None is an attribute that is absent."""
        if value is None:
            return self.is_ is None and self.present is not True
        if self.present is False or (self.is_ is not None and not self.is_.holds(value)):
            return False
        return self.not_ is None or not self.not_.holds(value)

    def __str__(self) -> str:
        words = [] if self.is_ is None else [f"is {self.is_}"]
        if self.not_ is not None:
            words.append(f"is not {self.not_}")
        if self.present is not None and self.is_ is None:
            words.append("is present" if self.present else "is absent")
        return " and ".join(words)


def read_address(text: str) -> tuple[int, int] | None:
    """Return the version of an address and the address as a number; None for any other text.

    An IPv4 address that is written as IPv6 is an IPv4 address.
    """
    # Not remembered: whoever sends long texts must not fill the memory with them.
    return None if len(text) > _LONGEST_ADDRESS else _read_address(text)


@lru_cache(maxsize=8_192)
def _read_address(text: str) -> tuple[int, int] | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if address.version == 6 and address.ipv4_mapped is not None:
        return 4, int(address.ipv4_mapped)
    return address.version, int(address)


def canonical(text: str) -> str:
    """Return the one spelling of an address; any other text as it is."""
    return text if len(text) > _LONGEST_ADDRESS else _canonical(text)


@lru_cache(maxsize=8_192)
def _canonical(text: str) -> str:
    address = read_address(text)
    if address is None:
        return text
    version, number = address
    return str(IPv4Address(number) if version == 4 else IPv6Address(number))


def read_network(text: str) -> IPv4Network | IPv6Network:
    """Read `10.0.0.0/8`, or a single address. Raises `InvalidInput` with what to write instead."""
    try:
        found = ip_network(text)
    except ValueError:
        pass
    else:
        mapped = _mapped(found)
        if mapped is not None:
            raise InvalidInput(f"{shown(text)} is IPv4 written as IPv6; did you mean '{mapped}'?")
        return found
    try:
        loose = ip_network(text, strict=False)
    except ValueError:
        raise InvalidInput(
            f"expected an address or a network such as '10.0.0.0/8', got {shown(text)}"
        ) from None
    raise InvalidInput(f"{shown(text)} is an address within a network; did you mean '{loose}'?")


def _mapped(network: IPv4Network | IPv6Network) -> IPv4Network | None:
    """Return the IPv4 network that an IPv6 one stands for; its addresses come as IPv4."""
    if network.version == 4 or network.prefixlen < 96:
        return None
    first = network.network_address.ipv4_mapped
    return None if first is None else IPv4Network((int(first), network.prefixlen - 96))


def _literal(text: str) -> str:
    return text.replace("\\*", "*")
