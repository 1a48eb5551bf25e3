"""The slices of time that a process has seen, and for how long they are kept. No I/O, no clock.

Short slices for the last minutes, long ones for the last hour. A slice begins at a whole multiple
of its length in seconds since 1970, so that those of all processes lie on top of each other.
"""

from __future__ import annotations

from limen.observe.packed import decode, encode
from limen.observe.slices import Slice, merged

SHORT_S, SHORT_KEPT_S, SHORT_BYTES = 5, 300, 16_384
LONG_S, LONG_KEPT_S, LONG_BYTES = 60, 3_600, 32_768


class Ring:
    """The slices of this process, written as they are sent: their size is bounded then."""

    def __init__(self) -> None:
        self._short: dict[int, bytes] = {}
        self._long: dict[int, bytes] = {}
        self._minute: list[int] = []
        """The short slices of the minute that is not over, by their starts."""
        self._unsent: dict[tuple[int, int], None] = {}

    def put(self, slice_: Slice, *, is_over: bool) -> None:
        """Keep a short slice, in place of what was known of it before.

        When it is over, it becomes part of its minute; and that, when it is over too, a long slice.
        """
        start = slice_.start
        self._keep(SHORT_S, start, encode(slice_, SHORT_BYTES))
        if not is_over:
            return
        minute = start_of(start, LONG_S)
        if self._minute and start_of(self._minute[0], LONG_S) != minute:
            self._end_minute()
        if start not in self._minute:
            self._minute.append(start)
        if start + SHORT_S == minute + LONG_S:
            self._end_minute()

    def _end_minute(self) -> None:
        minute = start_of(self._minute[0], LONG_S)
        # As they were written, and so of a bounded size.
        parts = [decode(self._short[start]) for start in self._minute if start in self._short]
        whole = merged([part for part in parts if part is not None], minute, LONG_S)
        self._keep(LONG_S, minute, encode(whole, LONG_BYTES))
        self._minute = []

    def _keep(self, seconds: int, start: int, written: bytes) -> None:
        slices, kept_s = self._short, SHORT_KEPT_S
        if seconds == LONG_S:
            slices, kept_s = self._long, LONG_KEPT_S
        slices[start] = written
        self._unsent[seconds, start] = None
        for old in [each for each in slices if each <= start - kept_s]:
            del slices[old]
            self._unsent.pop((seconds, old), None)

    def unsent(self) -> list[tuple[int, int, bytes]]:
        """Return what others do not know yet: length, start, and the slice itself."""
        found = [(seconds, start, self.get(seconds, start)) for seconds, start in self._unsent]
        return [(seconds, start, each) for seconds, start, each in found if each is not None]

    def sent(self, sent: list[tuple[int, int, bytes]]) -> None:
        """Take note of what others know now."""
        for seconds, start, written in sent:
            if self.get(seconds, start) is written:
                self._unsent.pop((seconds, start), None)

    def get(self, seconds: int, start: int) -> bytes | None:
        """Return a slice of this process; None when there was nothing, or it is too old."""
        return (self._short if seconds == SHORT_S else self._long).get(start)


def start_of(at: float, seconds: int) -> int:
    """Return when the slice began that a moment lies in."""
    return int(at) // seconds * seconds
