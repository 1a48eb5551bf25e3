"""What does not work at the moment, and a log that says each thing once."""

from __future__ import annotations

import logging

_logger = logging.getLogger("limen")


class Notes:
    """Troubles by what they are about, as `Status` lists them."""

    def __init__(self) -> None:
        self._trouble: dict[str, str] = {}

    @property
    def trouble(self) -> dict[str, str]:
        """What does not work now."""
        return dict(self._trouble)

    def complain(self, about: str, reason: str) -> None:
        """Take note of a trouble, and log it unless it is the same as before."""
        if self._trouble.get(about) != reason:
            self._trouble = {**self._trouble, about: reason}
            _logger.error("rules, %s: %s", about, reason)

    def settle(self, about: str) -> None:
        """Take note that something works again."""
        if about in self._trouble:
            rest = {name: reason for name, reason in self._trouble.items() if name != about}
            self._trouble = rest
            _logger.info("rules, %s: works again", about)
