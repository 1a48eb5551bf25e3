"""`ServiceSlot` and `AsyncServiceSlot`: a place that the service grants, held while needed.

By `with` it is acquired, renewed while held, and released. When the service is away, a slot is one
of this process's share.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from limen.backends import Change, Renew
from limen.client.desk import Desk, Flow, Held
from limen.client.questions import Asked
from limen.client.refused import ServiceRefused
from limen.client.stand_in import limit_of
from limen.ending import to_the_end
from limen.errors import InvalidInput, LimenError
from limen.limiter.keeper import Keeper, log_lost, log_not_renewed, renewal_interval
from limen.model import Check, Concurrency
from limen.wire import Verdict

T = TypeVar("T")
_HELD = "this slot is held already; release it, or make another by client.slot(...)"
_logger = logging.getLogger("limen")


class Run(Protocol):
    """Carries out a flow, for threads."""

    def __call__(self, flow: Flow[T]) -> T:
        """Return what the flow returns."""
        ...


class RunAsync(Protocol):
    """Carries out a flow, for asyncio."""

    def __call__(self, flow: Flow[T]) -> Coroutine[Any, Any, T]:
        """Return what the flow returns."""
        ...


class Kept:
    """The slots that are held by `with` in this process, renewed by a thread of its own."""

    def __init__(self, desk: Desk, run: Run) -> None:
        self._desk = desk
        self._run = run
        self._held: dict[str, Held] = {}
        self._keeper = Keeper(self._renew)

    def keep(self, id_: str, held: Held) -> None:
        """Go on renewing until dropped."""
        if held.lease is not None:
            self._held[id_] = held
            self._keeper.keep(_check(held), (id_, 0))

    def drop(self, id_: str) -> None:
        """Stop renewing."""
        if self._held.pop(id_, None) is not None:
            self._keeper.drop((id_, 0))

    def close(self) -> None:
        """Stop renewing anything; what is held ends with its lease."""
        self._keeper.close()

    def _renew(self, change: Change) -> bool:
        held = self._held.get(change.holder) if isinstance(change, Renew) else None
        return held is None or self._run(self._desk.renew(held))


class ServiceSlot:
    """A slot to hold, from `Client.slot`. One slot, one holder."""

    def __init__(self, desk: Desk, run: Run, kept: Kept, asked: Asked) -> None:
        self.verdict: Verdict | None = None
        """The answer to the last `acquire`."""
        self._desk = desk
        self._run = run
        self._kept = kept
        self._asked = asked
        self._held: Held | None = None
        self._id = ""
        self._entered = threading.Lock()

    def acquire(self) -> Verdict:
        """Take the slot if there is one, and charge the limits beside it. Never waits its turn.

        Raises `InvalidInput` when it is held already: release it first.
        """
        if self._held is not None:
            raise InvalidInput(_HELD)
        held = self._run(self._desk.acquire(self._asked))
        self.verdict = held.verdict
        self._held = held if held.verdict.allowed else None
        return held.verdict

    def renew(self) -> bool:
        """Lengthen the lease to a full one; False when it had ended, or nothing is held.

        Raises `StoreError` when the service does not answer: the lease may then end.
        """
        return self._held is not None and self._run(self._desk.renew(self._held))

    def release(self) -> bool:
        """Free the slot; False when the lease had ended, or will because the service is away."""
        held, self._held = self._held, None
        return held is not None and self._run(self._desk.release(held))

    def __enter__(self) -> Self:
        if not self._entered.acquire(blocking=False):
            raise InvalidInput(_HELD)
        try:
            verdict = self.acquire()
            if not verdict.allowed:
                raise ServiceRefused(verdict)
        except BaseException:
            self._entered.release()
            raise
        assert self._held is not None
        self._id = secrets.token_hex(8)
        try:
            self._kept.keep(self._id, self._held)
            if verdict.delay:
                time.sleep(verdict.delay)
        except BaseException:
            self._let_go()
            self._run(self._desk.refund(verdict))
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
        self._kept.drop(self._id)
        try:
            self.release()
        except LimenError as error:
            _log_not_released(error)
        finally:
            self._entered.release()


class AsyncServiceSlot:
    """A slot to hold, from `AsyncClient.slot`. One slot, one holder."""

    def __init__(self, desk: Desk, run: RunAsync, asked: Asked) -> None:
        self.verdict: Verdict | None = None
        """The answer to the last `acquire`."""
        self._desk = desk
        self._run = run
        self._asked = asked
        self._held: Held | None = None
        self._entered = False
        self._renewing: asyncio.Task[None] | None = None

    async def acquire(self) -> Verdict:
        """Take the slot if there is one, and charge the limits beside it. Never waits its turn.

        Raises `InvalidInput` when it is held already: release it first.
        """
        if self._held is not None:
            raise InvalidInput(_HELD)
        acquiring = asyncio.ensure_future(self._run(self._desk.acquire(self._asked)))
        try:
            held = await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            # The service may grant it all the same, to nobody.
            await to_the_end(self._give_back(acquiring))
            raise
        self.verdict = held.verdict
        self._held = held if held.verdict.allowed else None
        return held.verdict

    async def renew(self) -> bool:
        """Lengthen the lease to a full one; False when it had ended, or nothing is held.

        Raises `StoreError` when the service does not answer: the lease may then end.
        """
        return self._held is not None and await self._run(self._desk.renew(self._held))

    async def release(self) -> bool:
        """Free the slot; False when the lease had ended, or will because the service is away."""
        held, self._held = self._held, None
        if held is None:
            return False
        # Whoever is cancelled lets go all the same: else nobody would, until the lease ends.
        return await to_the_end(self._run(self._desk.release(held)))

    async def __aenter__(self) -> Self:
        if self._entered:
            raise InvalidInput(_HELD)
        self._entered = True
        try:
            verdict = await self.acquire()
            if not verdict.allowed:
                raise ServiceRefused(verdict)
        except BaseException:
            self._entered = False
            raise
        assert self._held is not None
        if self._held.lease is not None:
            self._renewing = asyncio.create_task(self._keep(self._held))
        try:
            if verdict.delay:
                await asyncio.sleep(verdict.delay)
        except BaseException:
            await to_the_end(self._undo(verdict))
            raise
        return self

    async def _undo(self, verdict: Verdict) -> None:
        await self._let_go()
        await self._run(self._desk.refund(verdict))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._let_go()

    async def _let_go(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        try:
            await self.release()
        except LimenError as error:
            _log_not_released(error)
        finally:
            self._entered = False

    async def _give_back(self, acquiring: asyncio.Future[Held]) -> None:
        """Let go of what may yet be granted, and of what was charged beside it."""
        await asyncio.wait([acquiring])
        if acquiring.cancelled() or acquiring.exception() is not None:
            return
        held = acquiring.result()
        if held.verdict.allowed:
            await self._run(self._desk.release(held))
            await self._run(self._desk.refund(held.verdict))

    async def _keep(self, held: Held) -> None:
        """Renew for as long as it is held."""
        check, id_ = _check(held), secrets.token_hex(8)
        while True:
            await asyncio.sleep(renewal_interval(check))
            try:
                renewed = await self._run(self._desk.renew(held))
            except LimenError as error:
                log_not_renewed(check, id_, error)
                continue
            if not renewed:
                log_lost(check, id_)
                return


def _check(held: Held) -> Check:
    """Return what is held, as the logs tell of it, and with the lease that counts."""
    lease = held.lease or 1.0
    for part in held.verdict.parts:
        limit = None if part.limit is None else limit_of(part.limit)
        if isinstance(limit, Concurrency) and limit.lease == lease:
            return Check(limit, "slot")
    return Check(Concurrency(1, lease), "slot")


def _log_not_released(error: LimenError) -> None:
    # The work is done: what it raised, if anything, matters more.
    _logger.warning("a slot was not released, and ends with its lease: %s", error)
