"""Secrets, and addresses that may contain one. Logs, errors and `repr` show neither."""

from __future__ import annotations

import re

from pydantic import SecretStr

_HIDDEN = "***"
# Drivers take a password as an option too: sentinel_password=..., sslpassword=...
_PASSWORD_OPTION = re.compile(r"([?&][^=&]*pass[^=&]*=)[^&]*", re.IGNORECASE)


class Secret(SecretStr):
    """A text that is shown as `***`; empty is none."""

    def _display(self) -> str:
        return _HIDDEN if self else ""


class SecretAddress(SecretStr):
    """A valid address, or a path, that is shown without its password: `redis://joe:***@host`.

    `limen.masking` has to find addresses in any text. Here the whole text is one, so that all of
    its login can be hidden, and passwords among its options too.
    """

    def _display(self) -> str:
        text = self.get_secret_value()
        scheme, separator, rest = text.partition("://")
        if not separator:
            return text
        login, at, host = rest.rpartition("@")
        user, colon, _ = login.partition(":")
        masked_login = f"{user}:{_HIDDEN}@" if user and colon else f"{_HIDDEN}@"
        host = _PASSWORD_OPTION.sub(rf"\g<1>{_HIDDEN}", host)
        return f"{scheme}://{masked_login if at else ''}{host}"
