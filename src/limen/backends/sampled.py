"""A log for what may happen thousands of times a second: an outage must not fill the disk."""

from __future__ import annotations

import logging
import time

EVERY_S = 1.0
_logger = logging.getLogger("limen")


class SampledLog:
    """Warns of each kind of thing once a second at most, or as rarely as asked; counts the rest."""

    def __init__(self, every_s: float | None = None) -> None:
        self._every_s = every_s
        # Without a lock: two that come at the same moment may both be logged, and a process that
        # is forked at that moment does not hang.
        self._kinds: dict[str, tuple[float, int]] = {}

    def warn(self, kind: str, text: str) -> None:
        """Log a line, unless one of the kind was logged just now."""
        now = time.monotonic()
        due, unsaid = self._kinds.get(kind, (0.0, 0))
        if now < due:
            self._kinds[kind] = (due, unsaid + 1)
            return
        self._kinds[kind] = (now + (self._every_s or EVERY_S), 0)
        more = f" (and {unsaid} more of the kind since the last line)" if unsaid else ""
        _logger.warning("%s%s", text, more)
