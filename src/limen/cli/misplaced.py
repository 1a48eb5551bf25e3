"""An address where something else is expected: refused, without being repeated."""

from __future__ import annotations

import re
from pathlib import Path

from limen.errors import ConfigurationError

_HALF = re.compile(r"[^\s/:@]+:[^\s/@]+@")
_STORES = ("redis", "rediss", "valkey", "valkeys", "memory")


def refuse_address(text: str, expected: str = "a file") -> None:
    """Raise `ConfigurationError` for an address that stands where something else should."""
    scheme, separator, _ = text.partition("://")
    if not separator and (not _HALF.match(text) or is_there(text)):
        return
    option = "--store" if scheme.partition("+")[0] in _STORES else "--rules"
    raise ConfigurationError(f"that is an address, not {expected}; did you mean {option}?")


def is_there(path: str) -> bool:
    """Return whether there is such a file, or something that does not let us look for it."""
    try:
        return Path(path).exists()
    except OSError:
        return True
