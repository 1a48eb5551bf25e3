"""Leader election for alert evaluation and delivery: one process for all that share a store.

The leader holds a claim in Redis and writes down the open alerts, so that the next leader goes on
where it left off. While Redis is away each process judges by its own slices, and one process of
each host tells. When Redis is back these alerts are handed over to the leader: an outage is one
alert from begin to end, whichever processes judge it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from limen.errors import StoreError
from limen.observe.alerts import CALM_S, STORE, Alert, Judge, Notice, Thresholds, decode, encode
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
_HANDED = "handed"
_HANDED_S = 3 * CALM_S
"""For how long the leader can find alerts that were opened while Redis was away."""

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
        """The ids of the open alerts in `_alone` whose beginning was told."""
        self._untold: set[str] = set()
        """The ids of alerts in `_ours` whose beginning may not have been told."""
        self._holds = False
        self._told = Notice()
        """What the one who judges has written down."""
        self._written_at = 0.0

    @property
    def open(self) -> tuple[Alert, ...]:
        """Those that have begun and not ended, one for each cause."""
        shared = self._shared.open
        causes = {alert.cause for alert in shared}
        return (*[alert for alert in self._alone.open if alert.cause not in causes], *shared)

    @property
    def ended(self) -> tuple[Alert, ...]:
        """The last that are over, newest first."""
        ended = {alert.id: alert for alert in (*self._alone.ended, *self._shared.ended)}
        return tuple(sorted(ended.values(), key=_ended, reverse=True))

    @property
    def more(self) -> int:
        """How many more are above a threshold than are told one by one."""
        return self._alone.more + self._shared.more

    @property
    def _shared(self) -> Judge | Notice:
        """The alerts of all processes; none while Redis is away."""
        return self._ours if self._holds else self._told

    async def turn(self, now: float) -> None:
        """Judge, or learn what was judged; tell what began or ended."""
        if self._board is not None and self._view.is_shared:
            try:
                await self._turn_together(self._board, now)
            except StoreError as error:
                self._view.rest(error)
        if self._board is None or not self._view.is_shared:
            if self._board is not None:
                self._take_along()
            self._holds, self._told = False, Notice()
            await self._turn_alone(now)
        if self._delivery.is_waiting:
            # Not awaited for long: a slow webhook must not hold up the next look.
            sending = asyncio.to_thread(self._delivery.send_due, now)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(sending), _PATIENCE_S)

    def _take_along(self) -> None:
        """Go on alone with the store's alert, if one is open for all: its cause is the same."""
        store = [alert for alert in self._shared.open if alert.cause == STORE]
        untold = self._untold if self._holds else set(self._told.untold)
        self._told_alone.update({*self._alone.adopt(store)} - untold)

    async def hand_over(self) -> None:
        """Let the leader find the alerts that this process opened alone.

        To be called before slices are shared, by which the leader would open alerts of its own.
        Raises `StoreError`.
        """
        if self._board is None or not self._alone.open:
            return
        untold = {alert.id for alert in self._alone.open} - self._told_alone
        written = encode(self._alone, untold)
        # An alert that was told takes precedence over those of the other processes.
        await self._board.post(_HANDED, written, _HANDED_S, only_first=not self._told_alone)

    async def _turn_together(self, board: Board, now: float) -> None:
        holds = await board.claim(_WHAT, _CLAIM_S)
        if not holds or not self._holds:
            self._told = decode(await board.notice(_WHAT))
        if holds:
            if not self._holds:
                self._ours.resume(self._told)
                self._untold = set(self._told.untold)
            picture = await self._view.picture(_JUDGED_S, now)
            # Behind the slices: a process hands over its alerts before it shares its slices.
            is_changed = self._adopt(decode(await board.notice(_HANDED)))
            changed = self._ours.judge(picture.whole, now)
            if changed or is_changed or (self._ours.open and now - self._written_at >= _WRITTEN_S):
                self._written_at = now
                await board.post(_WHAT, encode(self._ours, self._untold), _KEPT_S)
            # Behind that: where it cannot be written down, each judges alone, and tells by itself.
            told = [alert for alert in changed if alert.id not in self._untold]
            self._delivery.deliver(told, self._ours.more)
            self._untold &= {alert.id for alert in self._ours.open}
        self._holds = holds
        if self._alone.open:
            self._settle_alone(now)

    def _adopt(self, handed: Notice) -> bool:
        """Take over the alerts of processes that were alone; return whether any is new."""
        over = {alert.id for alert in self._ours.ended}
        alerts = [alert for alert in handed.open if alert.id not in over]
        told = [alert for alert in alerts if alert.id not in handed.untold]
        adopted = self._ours.adopt(told, self._untold)
        untold = self._ours.adopt([alert for alert in alerts if alert.id in handed.untold])
        self._untold.update(untold)
        return bool(adopted or untold)

    def _settle_alone(self, now: float) -> None:
        """Drop the alerts that the leader has taken over; end the others with those of all."""
        shared = self._shared
        causes = {alert.cause for alert in shared.open}
        taken = {alert.id for alert in (*shared.open, *shared.ended)}
        # Another one of the same cause stands for those that nobody was told of.
        unknown = {alert.id for alert in self._alone.open if alert.cause in causes}
        self._alone.forget(taken | (unknown - self._told_alone))
        calm = merged([], 0, _JUDGED_S)
        changed = self._alone.judge(calm, now, held=causes)
        # By the process that told of the beginning, and not by every worker.
        ended = [alert for alert in changed if alert.id in self._told_alone]
        if ended:
            self._delivery.deliver(ended)
        self._told_alone &= {alert.id for alert in self._alone.open}

    async def _turn_alone(self, now: float) -> None:
        picture = await self._view.picture(_JUDGED_S, now)
        # Without an answer of the store its alert cannot be over, even if there are no requests.
        held = () if self._board is None else (STORE,)
        changed = self._alone.judge(picture.whole, now, held)
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
