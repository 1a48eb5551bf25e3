"""`Slot` and `AsyncSlot`: a place among those that may run at once, held by a lease."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from limen.backends import Change, Release, Renew
from limen.clock import Clock
from limen.errors import InvalidInput, RateLimitExceeded, StoreError
from limen.limiter import plan
from limen.model import Check, Concurrency, Decision

_IDLE_S = 5.0
_MAX_THREADS = 32
_logger = logging.getLogger("limen")

Place = tuple[str, int]
"""Who holds, and which of the places that it holds."""

_HELD = "this slot is held already; make another by limiter.slot(...)"


class Slot:
    """A slot to hold. By `with` it is acquired, renewed while held, and released.

    ```python
    with limiter.slot("user:42", Concurrency(10, lease=30)):
        ...
    ```

    One slot, one holder: who wants to hold another makes another.
    """

    def __init__(
        self,
        decide: Callable[[tuple[Check, ...], str], Decision],
        change: Callable[[Change], bool],
        keeper: Keeper,
        clock: Clock,
        checks: tuple[Check, ...],
    ) -> None:
        self.id: str = secrets.token_hex(8)
        """Who holds it; nobody else's slot can be renewed or released by it."""
        self.decision: Decision | None = None
        """The answer to the last `acquire`."""
        self._decide = decide
        self._change = change
        self._keeper = keeper
        self._clock = clock
        self._checks = checks
        self._held = _places(checks)
        self._entered = threading.Lock()

    def acquire(self) -> Decision:
        """Take the slot if there is one, and charge the limits beside it. Never waits."""
        self.decision = self._decide(self._checks, self.id)
        self._held = _places(self._checks, self.decision)
        return self.decision

    def renew(self) -> bool:
        """Lengthen the lease to a full one; False when it had ended.

        Raises `StoreError` when the store does not answer: the lease may then end.
        """
        # Each of them: one that had ended is no reason to let go of the others.
        renewed = [self._change(Renew(check, self.id)) for check in self._held]
        return all(renewed)

    def release(self) -> bool:
        """Free the slot; False when the lease had ended, or will because the store is away."""
        released = [self._change(Release(check, self.id)) for check in self._held]
        return all(released)

    def __enter__(self) -> Self:
        if not self._entered.acquire(blocking=False):
            raise InvalidInput(_HELD)
        # A new holder each time: what is still under way for the last one does not reach it.
        self.id = secrets.token_hex(8)
        try:
            decision = self.acquire()
            if not decision.allowed:
                raise RateLimitExceeded(decision)
        except BaseException:
            self._entered.release()
            raise
        for number, check in enumerate(self._held):
            self._keeper.keep(check, (self.id, number))
        try:
            if decision.delay:
                self._clock.sleep(decision.delay)
        except BaseException:
            self._let_go()
            correct = plan.correct(decision, 0)
            if correct is not None:
                self._change(correct)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._let_go()

    def _let_go(self) -> None:
        for number in range(len(self._held)):
            self._keeper.drop((self.id, number))
        try:
            self.release()
        finally:
            self._entered.release()


class AsyncSlot:
    """A slot to hold. By `async with` it is acquired, renewed while held, and released.

    One slot, one holder: who wants to hold another makes another.
    """

    def __init__(
        self,
        decide: Callable[[tuple[Check, ...], str], Awaitable[Decision]],
        change: Callable[[Change], Awaitable[bool]],
        clock: Clock,
        checks: tuple[Check, ...],
    ) -> None:
        self.id: str = secrets.token_hex(8)
        """Who holds it; nobody else's slot can be renewed or released by it."""
        self.decision: Decision | None = None
        """The answer to the last `acquire`."""
        self._decide = decide
        self._change = change
        self._clock = clock
        self._checks = checks
        self._held = _places(checks)
        self._entered = False
        self._renewing: list[asyncio.Task[None]] = []

    async def acquire(self) -> Decision:
        """Take the slot if there is one, and charge the limits beside it. Never waits its turn."""
        try:
            self.decision = await self._decide(self._checks, self.id)
        except asyncio.CancelledError:
            # The store may have granted it already, to nobody.
            await self.release()
            raise
        self._held = _places(self._checks, self.decision)
        return self.decision

    async def renew(self) -> bool:
        """Lengthen the lease to a full one; False when it had ended.

        Raises `StoreError` when the store does not answer: the lease may then end.
        """
        return all([await self._change(Renew(check, self.id)) for check in self._held])

    async def release(self) -> bool:
        """Free the slot; False when the lease had ended, or will because the store is away."""
        return all([await self._change(Release(check, self.id)) for check in self._held])

    async def __aenter__(self) -> Self:
        if self._entered:
            raise InvalidInput(_HELD)
        self._entered = True
        # A new holder each time: what is still under way for the last one does not reach it.
        self.id = secrets.token_hex(8)
        try:
            decision = await self.acquire()
            if not decision.allowed:
                raise RateLimitExceeded(decision)
        except BaseException:
            self._entered = False
            raise
        self._renewing = [asyncio.create_task(self._keep(check)) for check in self._held]
        try:
            if decision.delay:
                await self._clock.sleep_async(decision.delay)
        except BaseException:
            await self._let_go()
            correct = plan.correct(decision, 0)
            if correct is not None:
                await self._change(correct)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._let_go()

    async def _let_go(self) -> None:
        for renewing in self._renewing:
            renewing.cancel()
        self._renewing = []
        try:
            await self.release()
        finally:
            self._entered = False

    async def _keep(self, check: Check) -> None:
        """Renew one place for as long as it is held."""
        while True:
            await asyncio.sleep(_renewal_interval(check))
            try:
                renewed = await self._change(Renew(check, self.id))
            except StoreError as error:
                _log_not_renewed(check, self.id, error)
                continue
            if not renewed:
                _log_lost(check, self.id)
                return


class Keeper:
    """Renews the slots that are held in this process, each three times a lease.

    One thread for all of them, which begins with the first and ends when none was held for a while.
    """

    def __init__(self, change: Callable[[Change], bool]) -> None:
        self._change = change
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._held: dict[Place, tuple[Check, float]] = {}
        self._thread: threading.Thread | None = None

    def keep(self, check: Check, place: Place) -> None:
        """Go on renewing until dropped."""
        if self._pid != os.getpid():
            # In the child of a fork: neither the thread nor the slots came along.
            self._begin()
        with self._changed:
            self._held[place] = (check, time.monotonic() + _renewal_interval(check))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="limen-slots", daemon=True)
                self._thread.start()
            else:
                self._changed.notify()

    def drop(self, place: Place) -> bool:
        """Stop renewing; return whether it was kept."""
        with self._changed:
            return self._held.pop(place, None) is not None

    def close(self) -> None:
        """Stop renewing anything; what is held ends with its lease."""
        with self._changed:
            self._held.clear()
            self._changed.notify()

    def _run(self) -> None:
        while due := self._wait_for_due():
            if len(due) == 1:
                self._renew(*due[0])
                continue
            # Together: they share a call, and none waits for a server that only others need.
            with ThreadPoolExecutor(min(len(due), _MAX_THREADS), "limen-slots") as threads:
                for place, check in due:
                    threads.submit(self._renew, place, check)

    def _renew(self, place: Place, check: Check) -> None:
        holder = place[0]
        try:
            renewed = self._change(Renew(check, holder))
        except Exception as error:
            _log_not_renewed(check, holder, error)
            return
        # A slot that was released meanwhile is not lost.
        if not renewed and self.drop(place):
            _log_lost(check, holder)

    def _wait_for_due(self) -> list[tuple[Place, Check]]:
        """Return the slots to renew now; none means that the thread ends."""
        with self._changed:
            idle_until = time.monotonic() + _IDLE_S
            while True:
                now = time.monotonic()
                due = [(place, check) for place, (check, at) in self._held.items() if at <= now]
                for place, check in due:
                    self._held[place] = (check, now + _renewal_interval(check))
                if due:
                    return due
                if not self._held and now >= idle_until:
                    self._thread = None
                    return []
                next_at = min((at for _, at in self._held.values()), default=idle_until)
                self._changed.wait(next_at - now)


def _places(checks: Iterable[Check], decision: Decision | None = None) -> tuple[Check, ...]:
    """Return what a slot holds a place of: of shadows only those that granted one."""
    parts = decision.parts if decision else None
    return tuple(
        check
        for number, check in enumerate(checks)
        if isinstance(check.limit, Concurrency)
        and (check.enforce or (parts is not None and parts[number].allowed))
    )


def _renewal_interval(check: Check) -> float:
    """Return the seconds between two renewals: two may fail before the lease ends."""
    limit = check.limit
    assert isinstance(limit, Concurrency)
    return limit.lease / 3


def _log_not_renewed(check: Check, holder: str, error: Exception) -> None:
    """Say that a lease was not lengthened. It is tried again, twice before the lease ends."""
    _logger.warning("slot %s (%s) was not renewed: %s", holder, check.limit, error)


def _log_lost(check: Check, holder: str) -> None:
    """Say that a slot ended while it was held: the process stood still for longer than that."""
    _logger.warning(
        "slot %s (%s) was lost: its lease ended before it was renewed", holder, check.limit
    )
