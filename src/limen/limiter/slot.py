"""`Slot` and `AsyncSlot`: a place among those that may run at once, held by a lease."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

from limen.backends import Change, Release, Renew
from limen.clock import Clock
from limen.ending import to_the_end
from limen.errors import InvalidInput, RateLimitExceeded, StoreError
from limen.limiter import plan
from limen.limiter.keeper import Keeper, log_lost, log_not_renewed, renewal_interval
from limen.model import Check, Concurrency, Decision

_HELD = "this slot is held already; release it, or make another by limiter.slot(...)"


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
        id: str | None = None,
    ) -> None:
        self.id: str = id or secrets.token_hex(8)
        """Who holds it; nobody else's slot can be renewed or released by it."""
        self.decision: Decision | None = None
        """The answer to the last `acquire`."""
        self._decide = decide
        self._change = change
        self._keeper = keeper
        self._clock = clock
        self._checks = checks
        self._held = _places(checks)
        self._is_held = False
        self._entered = threading.Lock()

    @property
    def places(self) -> tuple[Check, ...]:
        """What it holds a place of; before `acquire`, what it would."""
        return self._held

    def acquire(self) -> Decision:
        """Take the slot if there is one, and charge the limits beside it. Never waits.

        Who holds it already keeps it. Beside limits, or other slots, that is an `InvalidInput`:
        release it first.
        """
        if self._is_held and len(self._checks) > 1:
            raise InvalidInput(_HELD)
        try:
            self.decision = self._decide(self._checks, self.id)
        except BaseException:
            # Of a signal handler: the store may have granted it already, to nobody; shadows too.
            if not self._is_held:
                self._held = _concurrent(self._checks)
                self.release()
            raise
        self._held = _places(self._checks, self.decision)
        self._is_held = self.decision.allowed
        return self.decision

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
        self._is_held = False
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
        try:
            for number, check in enumerate(self._held):
                self._keeper.keep(check, (self.id, number))
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
        id: str | None = None,
    ) -> None:
        self.id: str = id or secrets.token_hex(8)
        """Who holds it; nobody else's slot can be renewed or released by it."""
        self.decision: Decision | None = None
        """The answer to the last `acquire`."""
        self._decide = decide
        self._change = change
        self._clock = clock
        self._checks = checks
        self._held = _places(checks)
        self._is_held = False
        self._entered = False
        self._renewing: list[asyncio.Task[None]] = []

    @property
    def places(self) -> tuple[Check, ...]:
        """What it holds a place of; before `acquire`, what it would."""
        return self._held

    async def acquire(self) -> Decision:
        """Take the slot if there is one, and charge the limits beside it. Never waits its turn.

        Who holds it already keeps it. Beside limits, or other slots, that is an `InvalidInput`:
        release it first.
        """
        if self._is_held and len(self._checks) > 1:
            raise InvalidInput(_HELD)
        try:
            self.decision = await self._decide(self._checks, self.id)
        except asyncio.CancelledError:
            # The store may have granted it already, to nobody; shadows too.
            if not self._is_held:
                self._held = _concurrent(self._checks)
                await self.release()
            raise
        self._held = _places(self._checks, self.decision)
        self._is_held = self.decision.allowed
        return self.decision

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
        self._is_held = False
        # Whoever is cancelled lets go all the same: else nobody would, until the leases end.
        return await to_the_end(self._release())

    async def _release(self) -> bool:
        changes = [self._change(Release(check, self.id)) for check in self._held]
        return all(await asyncio.gather(*changes))

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
            await to_the_end(self._undo(decision))
            raise
        return self

    async def _undo(self, decision: Decision) -> None:
        await self._let_go()
        correct = plan.correct(decision, 0)
        if correct is not None:
            await self._change(correct)

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
            await asyncio.sleep(renewal_interval(check))
            try:
                renewed = await self._change(Renew(check, self.id))
            except StoreError as error:
                log_not_renewed(check, self.id, error)
                continue
            if not renewed:
                log_lost(check, self.id)
                return


def _concurrent(checks: Iterable[Check]) -> tuple[Check, ...]:
    return tuple(check for check in checks if isinstance(check.limit, Concurrency))


def _places(checks: Iterable[Check], decision: Decision | None = None) -> tuple[Check, ...]:
    """Return what a slot holds a place of: of shadows only those that granted one."""
    parts = decision.parts if decision else None
    return tuple(
        check
        for number, check in enumerate(checks)
        if isinstance(check.limit, Concurrency)
        and (check.enforce or (parts is not None and parts[number].allowed))
    )
