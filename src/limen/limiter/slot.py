"""`Slot` and `AsyncSlot`: a place among those that may run at once, held by a lease."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

from limen.backends import Change, Release, Renew
from limen.ending import to_the_end
from limen.errors import InvalidInput, RateLimitExceeded, StoreError
from limen.flow import Flow, run, run_async
from limen.limiter import plan
from limen.limiter.keeper import AsyncKeeper, Keeper, Place
from limen.model import Check, Concurrency, Decision

T = TypeVar("T")
_HELD = "this slot is held already; release it, or make another by limiter.slot(...)"


class SlotFlows:
    """What `Slot` and `AsyncSlot` share. `decide`, `change` and `sleep` are those of a limiter."""

    _finish: Callable[[Flow[Any]], Any]
    """Run a flow to its end, even if the caller is cancelled."""
    _all: Callable[[list[Any]], Any]
    """Return whether the results of all calls are true."""

    def __init__(
        self,
        decide: Callable[[tuple[Check, ...], str], Any],
        change: Callable[[Change], Any],
        sleep: Callable[[float], Any],
        keeper: Keeper | AsyncKeeper,
        checks: tuple[Check, ...],
        id: str | None = None,
    ) -> None:
        self.id: str = id or secrets.token_hex(8)
        """Who holds it; nobody else's slot can be renewed or released by it."""
        self.decision: Decision | None = None
        """The answer to the last `acquire`."""
        self._decide = decide
        self._change = change
        self._sleep = sleep
        self._keeper = keeper
        self._checks = checks
        self._held = _held_by(checks)
        self._is_held = False
        self._kept: list[Place] = []
        self._entered = threading.Lock()

    @property
    def places(self) -> tuple[Check, ...]:
        """What it holds a place of; before `acquire`, what it would."""
        return self._held

    def _acquire(self) -> Flow[Decision]:
        if self._is_held and len(self._checks) > 1:
            raise InvalidInput(_HELD)
        try:
            decision: Decision = yield self._decide(self._checks, self.id)
        except GeneratorExit:  # the event loop has ended, so that nothing can be released
            raise
        except BaseException:  # also of a signal handler, or a time-out of gevent
            # The store may have granted it already, shadows too.
            if not self._is_held:
                self._held = tuple(
                    [check for check in self._checks if isinstance(check.limit, Concurrency)]
                )
                yield self._finish(self._release())
            raise
        self.decision = decision
        self._held = _held_by(self._checks, decision)
        self._is_held = decision.allowed
        return decision

    def _enter(self) -> Flow[None]:
        if not self._entered.acquire(blocking=False):
            raise InvalidInput(_HELD)
        # A new holder each time: what is still under way for the last one does not reach it.
        self.id = secrets.token_hex(8)
        try:
            decision = yield from self._acquire()
            if not decision.allowed:
                raise RateLimitExceeded(decision)
        except BaseException:
            self._entered.release()
            raise
        try:
            for number, check in enumerate(self._held):
                self._kept.append((self.id, number))
                self._keeper.keep(check, self._kept[-1])
            if decision.delay:
                yield self._sleep(decision.delay)
        except BaseException:
            yield self._finish(self._give_back(decision))
            raise

    def _give_back(self, decision: Decision) -> Flow[None]:
        """Let go of the slot, and refund the limits beside it."""
        yield from self._let_go()
        correct = plan.correct(decision, 0)
        if correct is not None:
            yield self._change(correct)

    def _let_go(self) -> Flow[None]:
        while self._kept:
            self._keeper.drop(self._kept.pop())
        try:
            yield self._finish(self._release())
        finally:
            self._entered.release()

    def _release(self) -> Flow[bool]:
        self._is_held = False
        has_released: bool = yield self._all(
            [self._change(Release(check, self.id)) for check in self._held]
        )
        return has_released


class Slot(SlotFlows):
    """A slot to hold. By `with` it is acquired, renewed while held, and released.

    ```python
    with limiter.slot("user:42", Concurrency(10, lease=30)):
        ...
    ```

    One slot, one holder: who wants to hold another makes another.
    """

    _finish = staticmethod(run)
    _all = staticmethod(all)

    def acquire(self) -> Decision:
        """Take the slot if there is one, and charge the limits beside it. Never waits.

        Who holds it already keeps it. Beside limits, or other slots, that is an `InvalidInput`:
        release it first.
        """
        return run(self._acquire())

    def renew(self) -> bool:
        """Lengthen the lease to a full one; False when it had ended.

        Raises `StoreError` when the store does not answer: the lease may then end.
        """
        renewed, trouble = [], None
        for check in self._held:
            # Each of them: one that had ended, or cannot be reached, is no reason to let go of the
            # others.
            try:
                renewed.append(self._change(Renew(check, self.id)))
            except StoreError as error:
                trouble = error
        if trouble is not None:
            raise trouble
        return all(renewed)

    def release(self) -> bool:
        """Free the slot; False when the lease had ended, or will because the store is away."""
        return run(self._release())

    def __enter__(self) -> Self:
        run(self._enter())
        return self

    def __exit__(self, *error: object) -> None:
        run(self._let_go())


async def _finish_async(flow: Flow[T]) -> T:
    return await to_the_end(run_async(flow))


async def _all_async(calls: list[Any]) -> bool:
    return all(await asyncio.gather(*calls))


class AsyncSlot(SlotFlows):
    """A slot to hold. By `async with` it is acquired, renewed while held, and released.

    One slot, one holder: who wants to hold another makes another.
    """

    _finish = staticmethod(_finish_async)
    _all = staticmethod(_all_async)

    async def acquire(self) -> Decision:
        """Take the slot if there is one, and charge the limits beside it. Never waits its turn.

        Who holds it already keeps it. Beside limits, or other slots, that is an `InvalidInput`:
        release it first.
        """
        return await run_async(self._acquire())

    async def renew(self) -> bool:
        """Lengthen the lease to a full one; False when it had ended.

        Raises `StoreError` when the store does not answer: the lease may then end.
        """
        changes = [self._change(Renew(check, self.id)) for check in self._held]
        # Each of them, as above.
        renewed = await asyncio.gather(*changes, return_exceptions=True)
        for result in renewed:
            if isinstance(result, BaseException):
                raise result
        return all(renewed)

    async def release(self) -> bool:
        """Free the slot; False when the lease had ended, or will because the store is away."""
        # Whoever is cancelled lets go all the same: else nobody would, until the leases end.
        return await _finish_async(self._release())

    async def __aenter__(self) -> Self:
        await run_async(self._enter())
        return self

    async def __aexit__(self, *error: object) -> None:
        await run_async(self._let_go())


def _held_by(checks: Iterable[Check], decision: Decision | None = None) -> tuple[Check, ...]:
    """Return what a slot holds a place of: of shadows only those that granted one."""
    parts = decision.parts if decision else None
    return tuple(
        check
        for number, check in enumerate(checks)
        if isinstance(check.limit, Concurrency)
        and (check.enforce or (parts is not None and parts[number].allowed))
    )
