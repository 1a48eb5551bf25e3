"""`View`: what all processes have seen, put together. Asks the board for what the others saw.

Without a board, or while it is away, this process is all there is, and the picture says so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from limen.errors import StoreError
from limen.observe.board import Board
from limen.observe.packed import decode
from limen.observe.ring import LONG_KEPT_S, LONG_S, SHORT_KEPT_S, SHORT_S, Ring, start_of
from limen.observe.slices import Slice, merged

MAX_WINDOW_S = LONG_KEPT_S
_FINAL_S = 20.0
"""After which nobody changes a slice that is over."""
_REST_S = 2.0
"""For how long the board is left alone after it did not answer."""
_MOST_KNOWN = 256
_logger = logging.getLogger("limen")

Run = Callable[..., Awaitable[Any]]
"""Calls a function with arguments in a thread, as `asyncio.to_thread` does."""


class Picture(Struct, frozen=True):
    """What was seen in some stretch of time."""

    whole: Slice
    """All of it, as one."""
    each: tuple[Slice, ...]
    """Slice by slice, the oldest first, those without anything too."""
    instances: tuple[str, ...]
    """Who saw it."""
    is_shared: bool
    """Whether all processes are in it that share a store; else it is this one alone."""


class View:
    """The slices of all processes."""

    def __init__(self, ring: Ring, board: Board | None, instance: str) -> None:
        self._ring = ring
        self._board = board
        self._instance = instance
        self._rests_until = 0.0
        self._latest = 0.0
        self._known: dict[tuple[int, int], tuple[Slice, tuple[str, ...]]] = {}

    @property
    def is_shared(self) -> bool:
        """Whether the board can be asked."""
        return self._board is not None and time.monotonic() >= self._rests_until

    def rest(self, error: StoreError) -> None:
        """Leave the board alone for a while."""
        if time.monotonic() >= self._rests_until + 10 * _REST_S:
            _logger.warning("insight is of this process alone for now: %s", error)
        self._rests_until = time.monotonic() + _REST_S

    async def picture(self, window_s: int, now: float, run: Run = asyncio.to_thread) -> Picture:
        """Return what was seen in the last so many seconds, to whole slices.

        `run` calls a function in a thread, since to merge many slices takes a while.
        """
        if now < self._latest:
            # The clock was ahead, or was set back: what seemed to be over may not be.
            self._known = {}
        self._latest = now
        if window_s <= SHORT_KEPT_S:
            starts = _starts(now, window_s, SHORT_S)
            each, instances, is_shared = await self._slices(SHORT_S, starts, now, run)
            seconds = SHORT_S
        else:
            starts = _starts(now, window_s, LONG_S)
            each, instances, is_shared = await self._slices(LONG_S, starts[:-1], now, run)
            # What is not over yet is there in short slices only.
            latest = range(starts[-1], int(now) + 1, SHORT_S)
            short, more, also = await self._slices(SHORT_S, latest, now, run)
            each.append(await run(merged, short, starts[-1], LONG_S))
            instances, is_shared, seconds = instances | more, is_shared and also, LONG_S
        whole = await run(merged, each, starts[0], starts[-1] + seconds - starts[0])
        return Picture(whole, tuple(each), tuple(sorted(instances)), is_shared)

    async def _slices(
        self, seconds: int, starts: Sequence[int], now: float, run: Run
    ) -> tuple[list[Slice], set[str], bool]:
        known_before = self._known
        wanted = [start for start in starts if (seconds, start) not in known_before]
        theirs: dict[int, dict[str, bytes]] = {}
        is_shared = self.is_shared
        if self._board is not None and is_shared and wanted:
            try:
                theirs = await self._board.slices(seconds, wanted)
            except StoreError as error:
                self.rest(error)
                is_shared = False
        # Our own are newer here than there.
        own = {start: self._ring.get(seconds, start) for start in wanted}
        fresh = await run(self._merge, seconds, own, theirs)
        if is_shared:
            for start in wanted:
                if start + seconds + _FINAL_S < now:
                    self._remember(seconds, start, fresh[start])
        known = [fresh.get(start) or known_before[seconds, start] for start in starts]
        instances = {who for _, several in known for who in several}
        return [each for each, _ in known], instances, is_shared

    def _merge(
        self, seconds: int, own: dict[int, bytes | None], theirs: dict[int, dict[str, bytes]]
    ) -> dict[int, tuple[Slice, tuple[str, ...]]]:
        """Put the slices of all processes together. For any thread."""
        return {
            start: self._merge_one(seconds, start, mine, theirs.get(start, {}))
            for start, mine in own.items()
        }

    def _merge_one(
        self, seconds: int, start: int, own: bytes | None, theirs: dict[str, bytes]
    ) -> tuple[Slice, tuple[str, ...]]:
        written = theirs if own is None else {**theirs, self._instance: own}
        read = {who: decode(each) for who, each in written.items()}
        good = {who: each for who, each in read.items() if each is not None}
        return merged(good.values(), start, seconds), tuple(good)

    def _remember(self, seconds: int, start: int, known: tuple[Slice, tuple[str, ...]]) -> None:
        if len(self._known) >= _MOST_KNOWN:
            # Another dict: somebody may be on the way with the old one.
            newer = sorted(self._known, key=_start)[_MOST_KNOWN // 2 :]
            self._known = {key: self._known[key] for key in newer}
        self._known[seconds, start] = known


def _starts(now: float, window_s: int, seconds: int) -> range:
    last = start_of(now, seconds)
    return range(start_of(now - window_s, seconds) + seconds, last + 1, seconds)


def _start(known: tuple[int, int]) -> int:
    return known[1]
