"""Who judges, who tells, and what all others show: one process for all that share a store.

It holds a claim in Redis, and writes down what is open, so that the next one goes on where it left
off. While Redis is away each process judges by what it saw itself, and one of a host tells.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from limen.errors import StoreError
from limen.observe.alerts import Alert, Judge, Notice, Thresholds, decode, encode
from limen.observe.board import Board
from limen.observe.ring import SHORT_S
from limen.observe.slices import merged
from limen.observe.view import View
from limen.server.insight.deliver import Delivery

_JUDGED_S = 2 * SHORT_S
_CLAIM_S = 5.0
_KEPT_S = 3_600.0
_WRITTEN_S = 5.0
"""How often what is open is written down, if nothing begins or ends."""
_PATIENCE_S = 1.0
_WHAT = "alerts"

IsFirst = Callable[[float], Awaitable[bool]]
"""Returns whether this process is the one of its host that tells."""


class Alerting:
    """The alerts of all processes that share a store, as one of them knows them."""

    def __init__(
        self,
        thresholds: Thresholds,
        view: View,
        board: Board | None,
        delivery: Delivery,
        is_first: IsFirst,
    ) -> None:
        self.thresholds: Thresholds = thresholds
        self._view = view
        self._board = board
        self._delivery = delivery
        self._is_first = is_first
        self._ours = Judge(thresholds)
        """For all, while this process holds the claim."""
        self._alone = Judge(thresholds)
        """For this process alone, while there is nobody to share with."""
        self._told_alone: set[str] = set()
        """The ids of those that this process told of when it saw them alone."""
        self._holds = False
        self._told = Notice()
        """What the one who judges has written down."""
        self._written_at = 0.0

    @property
    def open(self) -> tuple[Alert, ...]:
        """Those that have begun and not ended."""
        return self._alone.open + (self._ours.open if self._holds else self._told.open)

    @property
    def ended(self) -> tuple[Alert, ...]:
        """The last that are over, newest first."""
        theirs = self._ours.ended if self._holds else self._told.ended
        return tuple(sorted(self._alone.ended + theirs, key=_ended, reverse=True))

    @property
    def more(self) -> int:
        """How many more are above a threshold than are told one by one."""
        return self._alone.more + (self._ours.more if self._holds else self._told.more)

    async def turn(self, now: float) -> None:
        """Judge, or learn what was judged; tell what began or ended."""
        if self._board is not None and self._view.is_shared:
            try:
                await self._turn_together(self._board, now)
            except StoreError as error:
                self._view.rest(error)
        if self._board is None or not self._view.is_shared:
            self._holds, self._told = False, Notice()
            await self._turn_alone(now)
        if self._delivery.is_waiting:
            # Not awaited for long: a slow webhook must not hold up the next look.
            sending = asyncio.to_thread(self._delivery.send_due, now)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(sending), _PATIENCE_S)

    async def _turn_together(self, board: Board, now: float) -> None:
        holds = await board.claim(_WHAT, _CLAIM_S)
        if not holds or not self._holds:
            self._told = decode(await board.notice(_WHAT))
        if holds:
            if not self._holds:
                self._ours.resume(self._told)
            picture = await self._view.picture(_JUDGED_S, now)
            changed = self._ours.judge(picture.whole, now)
            if changed or (self._ours.open and now - self._written_at >= _WRITTEN_S):
                self._written_at = now
                await board.post(_WHAT, encode(self._ours), _KEPT_S)
            # Behind that: where it cannot be written down, each judges alone, and tells by itself.
            self._delivery.deliver(changed, self._ours.more)
        self._holds = holds
        if self._alone.open:
            # What began while nobody could be asked ends with that.
            calm = merged([], 0, _JUDGED_S)
            changed = self._alone.judge(calm, now)
            # By whoever told of the beginning, and not by every worker.
            ended = [alert for alert in changed if alert.id in self._told_alone]
            if ended:
                self._delivery.deliver(ended)
            self._told_alone &= {alert.id for alert in self._alone.open}

    async def _turn_alone(self, now: float) -> None:
        picture = await self._view.picture(_JUDGED_S, now)
        changed = self._alone.judge(picture.whole, now)
        if changed:
            tells = self._board is None or await self._is_first(now)
            # An end is told by whoever told of the beginning, also if another is the first by now.
            ours = self._told_alone
            told = [each for each in changed if each.id in ours or (tells and each.ended is None)]
            if told or tells:
                self._delivery.deliver(told, self._alone.more)
            self._told_alone.update([alert.id for alert in told])
            self._told_alone &= {alert.id for alert in self._alone.open}

    def close(self) -> None:
        """Let go of what tells."""
        self._delivery.close()


def _ended(alert: Alert) -> float:
    return alert.ended or 0.0
