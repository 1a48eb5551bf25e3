"""`LimiterFlows`: what the two limiters share. No I/O of its own; see `limen.flow`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from limen import fork
from limen.backends import AsyncBackend, Backend, Change, Fault, Prepared, Release, Renew, Shard
from limen.backends.memory import MemoryBackend
from limen.clock import Clock, SystemClock
from limen.flow import Flow
from limen.guarded import Guard
from limen.limiter import plan
from limen.limiter.line import Patience, counts_denied
from limen.limiter.settings import LimiterSettings, quick, valid_instances
from limen.model import Check, Decision, Reading, receipt_ids

B = TypeVar("B", bound=Backend | AsyncBackend)


class LimiterFlows(Generic[B]):
    """The store of a limiter, its fallback, and the verbs that take several calls of the store."""

    run: Callable[..., Any]
    """Decide prepared checks."""
    _start_replay: Callable[[], None]
    """Start a background replay of locally admitted requests."""
    _sleep: Callable[[float], Any]
    """Wait on the clock of this limiter."""
    _give_back: Callable[[Decision], Any]
    """Refund a decision, even if the caller is cancelled."""

    def __init__(self, settings: LimiterSettings, backend: B, memory: MemoryBackend | None) -> None:
        self._backend = backend
        self._memory = memory
        self._guard = Guard(settings.on_error, settings.instances)
        self._clock = settings.clock or SystemClock()
        self._observers = tuple([quick(observer) for observer in settings.observers])
        self._limits = plan.Limits()
        self.after_fork()
        fork.watch(self)

    def after_fork(self) -> None:
        """Make anew what two processes must not share. Not for you to call."""
        self._ids: Iterator[int] = receipt_ids()

    def prepare(
        self, checks: tuple[Check, ...], *, charge: bool = True, holder: str = ""
    ) -> Prepared:
        """Encode valid checks for `run`.

        Callers that decide the same checks repeatedly keep the result.
        """
        return self._backend.prepare(checks, charge, holder or ("" if charge else plan.NOBODY))

    @property
    def shards(self) -> tuple[Shard, ...]:
        """How each server of the store is doing, as this process sees it; nothing in memory."""
        return self._backend.shards()

    @property
    def tables(self) -> dict[str, int]:
        """The number of entries in this process: keys of the `memory` store; or keys counted here
        while the store was away (`local`), keys `owed` to the store, and its last `readings`."""
        return self._guard.tables if self._memory is None else {"memory": len(self._memory)}

    @property
    def lost_refunds(self) -> int:
        """How many reservations could not be given back, and stay charged for their period."""
        return self._backend.lost_refunds

    @property
    def clock(self) -> Clock:
        """What it waits by."""
        return self._clock

    def share_with(self, instances: int) -> None:
        """Say how many processes there are now, this one included.

        While the store is away, each may admit its share of a limit, as with `instances`.
        """
        self._guard.instances = valid_instances(instances)

    def _peek(self, checks: tuple[Check, ...]) -> Any:
        return self.run(self._backend.prepare(checks, False))

    def _hold(self, checks: tuple[Check, ...], holder: str) -> Any:
        return self.run(self._backend.prepare(checks, True, holder))

    def _decided(self, prepared: Prepared, answer: tuple[Reading, ...] | Fault) -> Decision:
        """Return the decision for an answer of the store, and call the observers."""
        if isinstance(answer, Fault):
            decision = plan.fall_back(self._guard, prepared, answer, next(self._ids))
        else:
            decision = plan.combine(prepared.checks, answer, next(self._ids))
            if self._memory is None:
                self._guard.record(prepared.checks, answer)
        if self._observers and prepared.charge:
            plan.notify(self._observers, decision)
        return decision

    def _replay_if_due(self) -> None:
        """Start a background replay of locally admitted requests, unless one is running."""
        if self._guard.should_pay(time.monotonic()):
            self._start_replay()

    def _changed(self, change: Change) -> Flow[bool]:
        done = self._guard.change(change)
        self._replay_if_due()
        if done and isinstance(change, Renew):
            # What was granted here is taken over by the store; while that is full, it is held here.
            yield self._backend.run(self._backend.prepare((change.check,), True, change.holder))
        if done is not None and not isinstance(change, Release):
            return done
        # A slot that was granted here may have been granted there too, by a reply that was lost.
        answer = yield self._backend.change(change)
        if isinstance(answer, Fault):
            return bool(done) or self._guard.give_up(answer, change)
        return answer or bool(done)

    def _admit(self, checks: tuple[Check, ...], patience: Patience) -> Flow[Decision]:
        """Decide until the checks are allowed, and sit out the delay of a leaky bucket."""
        prepared = self._backend.prepare(checks)
        peek = self._backend.prepare(checks, False) if counts_denied(checks) else None
        while True:
            # Where refusals count, peek first: a waiting caller must not be charged for them.
            decision: Decision = yield self.run(prepared if peek is None else peek)
            if peek is not None and decision.allowed:
                decision = yield self.run(prepared)
            if decision.allowed:
                if decision.delay:
                    yield from self._sit_out(decision, patience)
                return decision
            yield self._sleep(patience.wait_for(decision, self._clock.monotonic()))

    def _sit_out(self, decision: Decision, patience: Patience) -> Flow[None]:
        """Wait for as long as a leaky bucket says; give the place back when that fails."""
        try:
            yield self._sleep(patience.wait_for(decision, self._clock.monotonic()))
        except BaseException:
            yield self._give_back(decision)
            raise
