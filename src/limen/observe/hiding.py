"""How a key is told: cut when it is long, and plain or hashed. Knows no decisions, keeps nothing.

A key may be somebody's API key. Who searches for one hides what is searched for in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b

from limen.errors import ConfigurationError

Hider = Callable[[str], str]
"""Turns a key into what is told of it; the same for the same key."""

MOST = 256
"""How many letters of a text are kept."""
LEAST = 64
"""The shortest that a text is cut to, however little room there is."""

_MARK = "…"
_DIGITS = 16
_is_hidden = re.compile(rf"h:[0-9a-f]{{{_DIGITS}}}").fullmatch


def cut(text: str, most: int = MOST) -> str:
    """Return a text of at most `most` letters, at least 64, that can be written as UTF-8.

    What is longer is cut and marked; then come some digits that tell it from others which begin
    alike.
    """
    if not text.isascii():
        # Half a pair of surrogates cannot be written at all.
        text = text.encode("utf-8", "replace").decode()
    if len(text) <= most:
        return text
    digest = blake2b(text.encode(), digest_size=_DIGITS // 2).hexdigest()
    return text[: most - _DIGITS - len(_MARK)] + _MARK + digest


def plain(key: str) -> str:
    """Return the key as it is, cut if it is long."""
    return cut(key)


def hashed(secret: bytes) -> Hider:
    """Return what turns keys into `h:` and 16 hex digits, which tell nothing without the secret.

    Hosts that have the same secret call the same key the same.
    """
    if not secret:
        raise ConfigurationError("to hash keys takes a secret; without one they could be guessed")
    # A secret may be longer than the hash takes, and serves others too.
    own = blake2b(secret, digest_size=32, person=b"limen keys").digest()

    def hide(key: str) -> str:
        # Cut first: where it is kept it was cut too, and has to come out the same.
        written = cut(key).encode()
        return "h:" + blake2b(written, digest_size=_DIGITS // 2, key=own).hexdigest()

    return hide


def is_hidden(text: str) -> bool:
    """Return whether a text looks like a hashed key: as one copies it from a log, to search."""
    return _is_hidden(text) is not None
