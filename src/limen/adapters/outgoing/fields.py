"""Structured fields (RFC 9651), as far as limits are told by them: lists and dictionaries. Pure.

Strict, as the RFC wants it: a field with one mistake in it says nothing at all. Inner lists have no
place in these fields, and count as a mistake. Knows nothing of limits.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_FIELD = 4_096
"""How long a field may be, in characters. A server chooses it, and must not make it costly."""

Bare = int | str
"""An Integer as a number; all else as it is written: `"burst"` with its quotes, `2.5`, `?1`."""

_TRUE = "?1"
_BARE = re.compile(
    r"""
      (?P<integer> -?[0-9]{1,15} (?![0-9.]) )
    | -?[0-9]{1,12} \. [0-9]{1,3} (?![0-9])               # Decimal
    | " (?: [\x20\x21\x23-\x5b\x5d-\x7e] | \\["\\] )* "   # String
    | [A-Za-z*] [A-Za-z0-9!#$%&'*+.^_`|~:/-]*             # Token
    | : [A-Za-z0-9+/=]* :                                 # Byte Sequence
    | \? [01]                                             # Boolean
    | @ -?[0-9]{1,15} (?![0-9.])                          # Date
    | %" (?: [\x20\x21\x23\x24\x26-\x7e] | %[0-9a-f]{2} )* "   # Display String
    """,
    re.VERBOSE,
)
_KEY = re.compile(r"[a-z*][a-z0-9_.*-]*")
_PARAMETER = re.compile(r"; *")
_COMMA = re.compile(r"[ \t]*,[ \t]*")
_SPACE = re.compile(r" *")
_END = re.compile(r"[ \t]*\Z")


class Item(NamedTuple):
    """A value, and what is said of it: `"burst";r=0;t=30`."""

    value: Bare
    parameters: dict[str, Bare]


def read_list(text: str) -> list[Item] | None:
    """Return the items of a List; None when it is malformed."""
    try:
        return _Reader(text).items()
    except _Malformed:
        return None


def read_dictionary(text: str) -> dict[str, Item] | None:
    """Return the members of a Dictionary, of each name the last; None when it is malformed."""
    try:
        return _Reader(text).members()
    except _Malformed:
        return None


class _Malformed(Exception):
    """What is read is no structured field."""


class _Reader:
    """Reads a field from left to right, and never goes back."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_FIELD:
            raise _Malformed
        self._text = text
        self._at = 0
        self._take(_SPACE)

    def items(self) -> list[Item]:
        found: list[Item] = []
        while self._is_more(found):
            found.append(Item(self._bare(), self._parameters()))
        return found

    def members(self) -> dict[str, Item]:
        found: dict[str, Item] = {}
        while self._is_more(found):
            key = self._need(_KEY)[0]
            value = self._bare() if self._skip("=") else _TRUE
            found[key] = Item(value, self._parameters())
        return found

    def _is_more(self, found: object) -> bool:
        """Return whether a member follows. Between two of them is a comma, and after the last none.

        The end of an empty field is where it begins; any other end comes after a member.
        """
        if self._take(_END) is not None:
            return False
        if found:
            self._need(_COMMA)
        return True

    def _parameters(self) -> dict[str, Bare]:
        found: dict[str, Bare] = {}
        while self._take(_PARAMETER) is not None:
            key = self._need(_KEY)[0]
            found[key] = self._bare() if self._skip("=") else _TRUE
        return found

    def _bare(self) -> Bare:
        match = self._need(_BARE)
        return match[0] if match["integer"] is None else int(match[0])

    def _skip(self, sign: str) -> bool:
        is_there = self._text.startswith(sign, self._at)
        self._at += is_there
        return is_there

    def _need(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = self._take(pattern)
        if match is None:
            raise _Malformed
        return match

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match
