"""No secret in a text: the one place that knows where a password or a token may stand.

Whatever people may read, on a screen or in a log, goes through `masked`. Knows nothing of the rest
of limen.
"""

from __future__ import annotations

import re

# A password may hold anything, even what should have been escaped. Without a space in it, it ends
# at the last @ of the word. With one, at the first @; unless what follows the colon is a port.
_LOGIN = re.compile(
    r"://(?P<user>[^\s:@/]*)"
    r"(?:(?P<colon>:)(?!\d{1,5}[^\d@])[^@\n]*|\S*?)@(?:\S*@)?"
)
# Without an @, as in half an address or one that was cut off: what is no port is a password.
_CUT = re.compile(r"://(?P<user>[^\s:@/\[]*):(?!\d{1,5}(?!\w))[^\s@'\")]+(?!\S*@)")
# A token of limen, of which the id may be known; also when it was cut off.
_TOKEN = re.compile(r"\b(limen_[0-9a-f]{8}_)[A-Za-z0-9_-]{4,}")
_EXAMPLE = "://user:password@"
"""What messages teach an address by."""


def masked(text: str) -> str:
    """Return a text with every login and token in it masked: `postgresql://ann:***@host`."""
    if "limen_" in text:
        text = _TOKEN.sub(r"\1***", text)
    if "://" not in text:
        return text
    return _CUT.sub(r"://\g<user>:***", _LOGIN.sub(_shown, text))


def _shown(login: re.Match[str]) -> str:
    if login[0] == _EXAMPLE:
        return _EXAMPLE
    user = login["user"]
    return f"://{user}:***@" if user and login["colon"] else "://***@"
