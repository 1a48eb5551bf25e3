"""How a descriptor of Envoy becomes attributes. Knows no rules and no configuration.

A descriptor is a list of keys and values, in order, within a domain:

    messaging: (message_type, marketing), (to_number, 2061111111)

To rules it is

    domain: messaging
    descriptor: message_type/to_number
    message_type: marketing
    to_number: "2061111111"

`descriptor` names the keys, so a rule for one list of keys fits no longer and no shorter one. And
since it names them all, the attributes of the entries need to be told apart only within one list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from limen.http import OPTIONAL_WHITESPACE
from limen.rules.match import ADDRESS

DOMAIN = "domain"
DESCRIPTOR = "descriptor"
EMPTY = "∅"
"""Stands for a value that is empty, since to rules an empty attribute is an absent one."""

_RESERVED = frozenset({DOMAIN, DESCRIPTOR, ADDRESS})
_LONGEST = 64
_PLAIN = re.compile(rf"[A-Za-z_][A-Za-z0-9_.-]{{0,{_LONGEST - 1}}}")
_NUMBERED = re.compile(r"\.[0-9]+\Z")
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")
_NO_LETTERS = re.compile(r"\A[^A-Za-z]+")
_LONGEST_REMEMBERED = 1_000

Layout = tuple[str, tuple[str, ...]]


def attributes_of(domain: str, entries: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return a descriptor, given as keys and values in order, as the attributes of a request.

    - `domain` is the domain.
    - `descriptor` is the keys, joined by `/`: `message_type/to_number`. In a key, `/` is written
      `%2F` and `%` is written `%25`.
    - Each entry is an attribute that has the name of its key. Where that cannot be, because the key
      has other characters than an attribute may, stood before in the same descriptor, ends in a dot
      and a number, or is `domain`, `descriptor` or `ip`, what can be kept of it is followed by its
      place: `:path` in the first place is `path.1`, a second `header_match` is `header_match.2`.
    - A value has no spaces or tabs around it. An empty one is `∅`, and one of nothing but `∅` has
      one more of them.
    """
    keys = tuple([key for key, _ in entries])
    descriptor, names = layout(keys)
    found = {DOMAIN: domain, DESCRIPTOR: descriptor}
    for name, (_, value) in zip(names, entries, strict=True):
        found[name] = value_of(value)
    return found


def layout(keys: tuple[str, ...]) -> Layout:
    """Return the attribute `descriptor` for these keys, and the name of each one's attribute.

    More keys behind change no name before.
    """
    # Envoy sends the same few lists again and again. What is long was made up, and is not kept.
    if sum(map(len, keys)) > _LONGEST_REMEMBERED:
        return _lay_out(keys)
    return _remembered(keys)


def value_of(value: str) -> str:
    """Return a value as rules see it.

    Spaces and tabs around the value of a header are not part of it (RFC 9110, section 5.5), and
    some proxies remove them. So they are removed here too. Values that differ otherwise stay
    different.
    """
    value = value.strip(OPTIONAL_WHITESPACE)
    return value if value.strip(EMPTY) else value + EMPTY


def _lay_out(keys: tuple[str, ...]) -> Layout:
    names: list[str] = []
    taken = set(_RESERVED)
    for place, key in enumerate(keys, 1):
        name = key
        # A plain name never ends like a numbered one, and no two of those have the same number.
        if key in taken or not _PLAIN.fullmatch(key) or _NUMBERED.search(key):
            name = _numbered(key, place)
        names.append(name)
        taken.add(name)
    return "/".join(key.replace("%", "%25").replace("/", "%2F") for key in keys), tuple(names)


def _numbered(key: str, place: int) -> str:
    number = f".{place}"
    kept = _NO_LETTERS.sub("", _ODD.sub("_", key)).rstrip("_.-")
    return (kept or "entry")[: _LONGEST - len(number)] + number


_remembered = lru_cache(maxsize=1_024)(_lay_out)
