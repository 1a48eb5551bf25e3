"""No password in a text: the one place that knows where one may stand.

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
_EXAMPLE = "://user:password@"
"""What messages teach an address by."""


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
