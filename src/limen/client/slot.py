"""`ServiceSlot` and `AsyncServiceSlot`: a slot that the service grants, held while needed.

By `with` it is acquired, renewed while held, and released. When the service is away, a slot is one
of this process's share.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Self, TypeVar

from limen.backends import Release, Renew
from limen.client.fallback import Held, limit_of
from limen.client.flows import ClientFlows
from limen.client.questions import Asked
from limen.ending import to_the_end
from limen.errors import InvalidInput, LimenError
from limen.flow import Flow, run, run_async
from limen.limiter.keeper import AsyncKeeper, Keeper
from limen.model import Check, Concurrency
from limen.wire import Verdict

T = TypeVar("T")
_HELD = "this slot is held already; release it, or make another by client.slot(...)"
_logger = logging.getLogger("limen")


class ServiceRefused(LimenError):
    """Stop a caller whom the service refused. `verdict` tells which rule, and when to come back."""

    def __init__(self, verdict: Verdict) -> None:
        # The key stays out of the message: it may be somebody's API key, and messages get logged.
        by = f" by rule {verdict.rule}" if verdict.rule is not None else ""
        retry_after = verdict.retry_after
        when = "never fits" if retry_after is None else f"retry in {retry_after:.6g} s"
        super().__init__(f"refused{by}: {when}")
        self.verdict: Verdict = verdict

    def __reduce__(self) -> tuple[type[ServiceRefused], tuple[Verdict]]:
        return (ServiceRefused, (self.verdict,))


class ServiceSlotFlows:
    """What `ServiceSlot` and `AsyncServiceSlot` share."""

    _sleep: Callable[[float], Any]
    _finish: Callable[[Flow[Any]], Any]
    """Run a flow to its end, even if the caller is cancelled."""

    def __init__(self, flows: ClientFlows, keeper: Keeper | AsyncKeeper, asked: Asked) -> None:
        self.verdict: Verdict | None = None
        """The answer to the last `acquire`."""
        self._flows = flows
        self._keeper = keeper
        self._asked = asked
        self._held: Held | None = None
        self._id = ""
        self._entered = threading.Lock()

    def acquire(self) -> Any:
        """Take the slot if there is one."""
        raise NotImplementedError

    def _acquire(self) -> Flow[Verdict]:
        if self._held is not None:
            raise InvalidInput(_HELD)
        held = yield from self._flows.acquire(self._asked)
        self.verdict = held.verdict
        self._held = held if held.verdict.allowed else None
        return held.verdict

    def _renew(self) -> Flow[bool]:
        return self._held is not None and (yield from self._flows.change(self._held, Renew))

    def _release(self) -> Flow[bool]:
        held, self._held = self._held, None
        return held is not None and (yield from self._flows.change(held, Release))

    def _enter(self) -> Flow[None]:
        if not self._entered.acquire(blocking=False):
            raise InvalidInput(_HELD)
        try:
            verdict = yield self.acquire()
            if not verdict.allowed:
                raise ServiceRefused(verdict)
            try:
                if self._held is not None and self._held.lease is not None:
                    self._id = secrets.token_hex(8)
                    self._flows.held[self._id] = self._held
                    self._keeper.keep(_check(self._held, self._held.lease), (self._id, 0))
                if verdict.delay:
                    yield self._sleep(verdict.delay)
            except BaseException:
                yield self._finish(self._give_back(verdict))
                raise
        except BaseException:
            self._entered.release()
            raise

    def _exit(self) -> Flow[None]:
        try:
            yield self._finish(self._let_go())
        finally:
            self._entered.release()

    def _let_go(self) -> Flow[None]:
        if self._flows.held.pop(self._id, None) is not None:
            self._keeper.drop((self._id, 0))
        try:
            yield from self._release()
        except LimenError as error:
            # The work is done: what it raised, if anything, matters more.
            _logger.warning("a slot was not released, and ends with its lease: %s", error)

    def _give_back(self, verdict: Verdict) -> Flow[None]:
        """Let go of the slot, and refund the limits beside it."""
        yield from self._let_go()
        yield from self._flows.correct(verdict, None)


class ServiceSlot(ServiceSlotFlows):
    """A slot to hold, from `Client.slot`. One slot, one holder."""

    _sleep = staticmethod(time.sleep)
    _finish = staticmethod(run)

    def acquire(self) -> Verdict:
        """Take the slot if there is one, and charge the limits beside it. Never waits its turn.

        Raises `InvalidInput` when it is held already: release it first.
        """
        return run(self._acquire())

    def renew(self) -> bool:
        """Lengthen the lease to a full one; False when it had ended, or nothing is held.

        Raises `StoreError` when the service does not answer: the lease may then end.
        """
        return run(self._renew())

    def release(self) -> bool:
        """Free the slot; False when the lease had ended, or will because the service is away."""
        return run(self._release())

    def __enter__(self) -> Self:
        run(self._enter())
        return self

    def __exit__(self, *error: object) -> None:
        run(self._exit())


async def _finish_async(flow: Flow[T]) -> T:
    return await to_the_end(run_async(flow))


class AsyncServiceSlot(ServiceSlotFlows):
    """A slot to hold, from `AsyncClient.slot`. One slot, one holder."""

    _sleep = staticmethod(asyncio.sleep)
    _finish = staticmethod(_finish_async)

    async def acquire(self) -> Verdict:
        """Take the slot if there is one, and charge the limits beside it. Never waits its turn.

        Raises `InvalidInput` when it is held already: release it first.
        """
        acquiring = asyncio.ensure_future(run_async(self._acquire()))
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            # The service may grant it all the same.
            await to_the_end(self._undo(acquiring))
            raise

    async def renew(self) -> bool:
        """Lengthen the lease to a full one; False when it had ended, or nothing is held.

        Raises `StoreError` when the service does not answer: the lease may then end.
        """
        return await run_async(self._renew())

    async def release(self) -> bool:
        """Free the slot; False when the lease had ended, or will because the service is away."""
        return await _finish_async(self._release())

    async def __aenter__(self) -> Self:
        await run_async(self._enter())
        return self

    async def __aexit__(self, *error: object) -> None:
        await run_async(self._exit())

    async def _undo(self, acquiring: asyncio.Future[Verdict]) -> None:
        """Give back what a cancelled `acquire` is granted."""
        await asyncio.wait([acquiring])
        if not acquiring.cancelled() and acquiring.exception() is None and acquiring.result():
            await run_async(self._give_back(acquiring.result()))


def _check(held: Held, lease: float) -> Check:
    """Return the slot as the log shows it, with the lease that counts."""
    for part in held.verdict.parts:
        limit = None if part.limit is None else limit_of(part.limit)
        if isinstance(limit, Concurrency) and limit.lease == lease:
            return Check(limit, "slot")
    return Check(Concurrency(1, lease), "slot")
