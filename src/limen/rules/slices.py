"""Stable slices of keys: the same share of them, and the same ones, on every host and every day.

A key's place is drawn by its hash from a circle of its own for each rule and purpose, so that those
who are first in one experiment are not first in all. A slice that grows keeps who was in it.
"""

from __future__ import annotations

from hashlib import blake2b

_CIRCLE = 2**64


def share(percent: float) -> int:
    """Return where on the circle a share of it ends."""
    return round(percent * _CIRCLE / 100)


def place(purpose: bytes, key: str) -> int:
    """Return where on the circle of a purpose a key lies."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, key=purpose)
    return int.from_bytes(digest.digest())


def purpose(kind: str, rule: str) -> bytes:
    """Name a circle, in the few bytes that a hash can be keyed with."""
    return blake2b(f"{kind}:{rule}".encode(), digest_size=32).digest()
