"""Checks of arguments that several commands share."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from limen.errors import ConfigurationError

_LOGIN = r"[^\s/:@]+:[^\s/@]+@"
_STORES = ("redis", "rediss", "valkey", "valkeys", "memory")


def refuse_address(text: str, expected: str = "a file") -> None:
    """Raise `ConfigurationError` for an address in the wrong place. The message does not repeat it,
    because it may contain a password.
    """
    scheme, separator, _ = text.partition("://")
    if not separator and (not re.match(_LOGIN, text) or _exists(text)):
        return
    option = "--store" if scheme.partition("+")[0] in _STORES else "--rules"
    raise ConfigurationError(f"that is an address, not {expected}; did you mean {option}?")


def _exists(path: str) -> bool:
    """Return whether a file exists; True as well if its folder cannot be read."""
    try:
        return Path(path).exists()
    except OSError:
        return True


def read_time(text: str) -> datetime:
    """Return a date or a time in UTC; UTC is also the default of its offset.

    Raises `ValueError` or `OverflowError`.
    """
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)


def author_name(option: str | None) -> str:
    """Return the value of `--author`, or the login name."""
    name = login_name() if option is None else option
    if name is None:
        raise ConfigurationError("this user has no login name; add --author NAME")
    return name


def login_name() -> str | None:
    """Return the name of the user; None if the system has none."""
    import getpass

    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return None
