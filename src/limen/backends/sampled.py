"""A log for what may happen thousands of times a second: an outage must not fill the disk."""

from __future__ import annotations

import logging
import threading
import time

EVERY_S = 1.0
_logger = logging.getLogger("limen")


class SampledLog:
    """Warns of each kind of thing at most once a second, and says how many it left out."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._kinds: dict[str, tuple[float, int]] = {}

    def warn(self, kind: str, text: str) -> None:
        """Log a line, unless one of the kind was logged just now."""
        now = time.monotonic()
        with self._mutex:
            due, unsaid = self._kinds.get(kind, (0.0, 0))
            if now < due:
                self._kinds[kind] = (due, unsaid + 1)
                return
            self._kinds[kind] = (now + EVERY_S, 0)
        more = f" (and {unsaid} more of the kind since the last line)" if unsaid else ""
        _logger.warning("%s%s", text, more)
