"""What a rule asks of one attribute: exact text, globs, networks, negation, presence. Pure.

A glob knows one sign, `*`, for any characters, also none and also `/`; `\\*` is the sign itself.
It is cut into its fixed parts when the rules are loaded, and each part is looked for once, from
left to right: there is nothing to go back to, so no text can make a match slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from limen.errors import InvalidInput, shown
from limen.model.network import (
    Network,
    Networks,
    address_text,
    read_address,
    read_network,
    unmapped,
)

ADDRESS = "ip"
"""The attribute whose values are addresses, and may be matched by networks."""
MAX_PATTERN = 1_000
_MAX_STARS = 16
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


class Values:
    """Texts, globs and networks, of which one has to fit."""

    __slots__ = ("addresses", "exact", "globs", "networks")

    def __init__(self, texts: Iterable[str], *, are_addresses: bool = False) -> None:
        texts = tuple(texts)
        self.addresses: tuple[str, ...] = texts if are_addresses else ()
        """Networks as they are written."""
        self.networks: Networks | None = None
        if are_addresses:
            self.networks = Networks(map(_network, texts))
            texts = ()
        self.globs: tuple[Glob, ...] = tuple(Glob(text) for text in texts if _STARS.search(text))
        self.exact: frozenset[str] = frozenset(
            _literal(text) for text in texts if not _STARS.search(text)
        )

    def holds(self, value: str) -> bool:
        """Return whether one of them fits."""
        if value in self.exact:
            return True
        for glob in self.globs:
            if glob.holds(value):
                return True
        return self.networks is not None and self.networks.holds(read_address(value))

    def __str__(self) -> str:
        globs = [glob.text for glob in self.globs]
        return " or ".join([*sorted(self.exact), *globs, *self.addresses])


class Condition(Struct, frozen=True):
    """All that a rule asks of one attribute."""

    is_: Values | None
    not_: Values | None
    present: bool | None

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


def canonical(text: str) -> str:
    """Return the one spelling of an address; any other text as it is."""
    address = read_address(text)
    return text if address is None else address_text(address)


def _network(text: str) -> Network:
    """Read a network. One of IPv4 has to be written as IPv4."""
    network = read_network(text)
    meant = unmapped(network)
    if meant != network:
        raise InvalidInput(f"{shown(text)} is IPv4 written as IPv6; did you mean '{meant}'?")
    return network


def _literal(text: str) -> str:
    return text.replace("\\*", "*")
