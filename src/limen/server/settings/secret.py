"""Holders of what must not be read by chance: secrets, and addresses that may hold one."""

from __future__ import annotations

import hmac
import re

HIDDEN = "***"
# Drivers take a password as an option too: sentinel_password=..., sslpassword=...
_PASSWORD_OPTION = re.compile(r"([?&][^=&]*pass[^=&]*=)[^&]*", re.IGNORECASE)


class Secret:
    """A text that no log, error or `repr` shows. Who needs it says `reveal()`. Empty is none."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret itself; empty when there is none."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        mine, theirs = (each.encode("utf-8", "surrogatepass") for each in (self._text, other._text))
        return hmac.compare_digest(mine, theirs)

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __repr__(self) -> str:
        return HIDDEN


class SecretAddress(Secret):
    """A valid address, or a path, that is shown without its password: `redis://joe:***@host`.

    `limen.masking` has to find addresses in any text. Here the whole text is one, so that all of
    its login can go, whatever is in it, and passwords among its options too.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        scheme, separator, rest = self._text.partition("://")
        if not separator:
            return self._text
        login, at, place = rest.rpartition("@")
        user, colon, _ = login.partition(":")
        who = f"{user}:{HIDDEN}@" if user and colon else f"{HIDDEN}@"
        place = _PASSWORD_OPTION.sub(rf"\g<1>{HIDDEN}", place)
        return f"{scheme}://{who if at else ''}{place}"
