"""What does not work at the moment, and a log that says each thing once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from limen.errors import LimenError

_logger = logging.getLogger("limen")


class Notes:
    """The open problems by topic, as `Status` lists them."""

    def __init__(self) -> None:
        self._trouble: dict[str, str] = {}

    @property
    def trouble(self) -> dict[str, str]:
        """What does not work now."""
        return dict(self._trouble)

    def complain(self, about: str, reason: str) -> None:
        """Note a problem, and log it unless it is the same as before."""
        if self._trouble.get(about) != reason:
            self._trouble = {**self._trouble, about: reason}
            _logger.error("rules, %s: %s", about, reason)

    def settle(self, about: str) -> None:
        """Note that something works again."""
        if about in self._trouble:
            rest = {name: reason for name, reason in self._trouble.items() if name != about}
            self._trouble = rest
            _logger.info("rules, %s: works again", about)

    @contextmanager
    def watch(self, about: str) -> Iterator[None]:
        """Note an error that is raised inside, and continue after the block."""
        try:
            yield
        except TimeoutError:
            self.complain(about, "no answer in time")
        except LimenError as error:
            self.complain(about, str(error))
        except Exception as error:  # of a driver, or of a callback of the program
            self.complain(about, f"{type(error).__name__}: {error}")
        else:
            self.settle(about)
