"""No password on the screen: the one place that knows where one may stand in a text.

Whatever a command prints for people goes through `masked`. An address where something else is
expected is refused without being repeated at all.
"""

from __future__ import annotations

import re
from pathlib import Path

from limen.errors import ConfigurationError

# A password may hold anything, even what should have been escaped. Without a space in it, it ends
# at the last @ of the word. With one, at the first @; unless what follows the colon is a port.
_LOGIN = re.compile(
    r"://(?P<user>[^\s:@/]*)"
    r"(?:(?P<colon>:)(?!\d{1,5}[^\d@])[^@\n]*|\S*?)@(?:\S*@)?"
)
# Without an @, as in half an address or one that was cut off: what is no port is a password.
_CUT = re.compile(r"://(?P<user>[^\s:@/\[]*):(?!\d{1,5}(?!\w))[^\s@'\")]+(?!\S*@)")
_HALF = re.compile(r"[^\s/:@]+:[^\s/@]+@")
_EXAMPLE = "://user:password@"
"""What messages teach an address by."""
_STORES = ("redis", "rediss", "valkey", "valkeys", "memory")


def masked(text: str) -> str:
    """Return a text with the login of every address in it masked: `postgresql://ann:***@host`."""
    if "://" not in text:
        return text
    return _CUT.sub(r"://\g<user>:***", _LOGIN.sub(_shown, text))


def _shown(login: re.Match[str]) -> str:
    if login[0] == _EXAMPLE:
        return _EXAMPLE
    user = login["user"]
    return f"://{user}:***@" if user and login["colon"] else "://***@"


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
