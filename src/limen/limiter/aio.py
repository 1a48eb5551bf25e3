"""`AsyncLimiter`: every verb of the library, for asyncio. The twin for threads is `sync`."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from limen._internal.functions import name_of
from limen.backends import AsyncBackend, Change, Correct, Fault, Prepared, Reset, Vitals
from limen.backends.memory import AsyncMemoryBackend
from limen.clock import Clock
from limen.ending import to_the_end
from limen.errors import ConfigurationError, RateLimitExceeded, StoreError
from limen.flow import run_async
from limen.limiter import plan
from limen.limiter.decorate import KeyFunction, key_function
from limen.limiter.flows import LimiterFlows
from limen.limiter.keeper import AsyncKeeper
from limen.limiter.line import Lines, Patience, as_refusal
from limen.limiter.settings import LimiterSettings, Observer, open_store_async
from limen.limiter.slot import AsyncSlot
from limen.limiter.sync import Limiter
from limen.model import Check, Concurrency, Decision, Limit, OnError, Receipt

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

P = ParamSpec("P")
R = TypeVar("R")


class AsyncLimiter(LimiterFlows[AsyncBackend]):
    """Decides whether requests may pass. Safe to share between tasks.

    ```python
    limiter = AsyncLimiter()
    decision = await limiter.check("user:42", "100/minute")
    ```

    The verbs are those of `Limiter`, and mean the same.
    """

    def __init__(
        self,
        store: str | Redis | RedisCluster = "memory://",
        *,
        namespace: str = "limen",
        on_error: OnError = "local",
        instances: int = 1,
        deadline: float = 0.05,
        observers: Iterable[Observer] = (),
        clock: Clock | None = None,
    ) -> None:
        settings = LimiterSettings(
            store, namespace, on_error, instances, deadline, observers, clock
        )
        backend = open_store_async(settings)
        memory = backend.memory if isinstance(backend, AsyncMemoryBackend) else None
        super().__init__(settings, backend, memory)
        self._deadline = settings.deadline

    @classmethod
    def beside(cls, limiter: Limiter) -> AsyncLimiter | None:
        """Return a limiter that counts in the memory of one for threads; None if that is on Redis.

        For those who have both in one process: on Redis, they share their counts anyway.
        """
        memory = limiter._memory
        if memory is None:
            return None
        found = cls(clock=limiter.clock)
        found._backend = AsyncMemoryBackend(memory)
        found._memory = memory
        found._observers = limiter._observers
        return found

    def after_fork(self) -> None:
        """Make anew what two processes must not share. Not for you to call."""
        super().after_fork()
        self._behind: set[asyncio.Task[None]] = set()
        self._lines: Lines[asyncio.Future[None]] = Lines()

    async def check(self, key: str | bytes, *limits: Limit | str, cost: int = 1) -> Decision:
        """Decide one request of `key`, and charge it when it is allowed. Never waits its turn.

        Raises `InvalidInput` or `InvalidLimit` for arguments that make no sense, and charges
        nothing then.
        """
        return await self.run(self._backend.prepare(self._limits.checks(limits, key, cost)))

    async def decide(
        self, *checks: Check, charge: bool = True, within: float | None = None
    ) -> Decision:
        """Decide several checks together, each with its own key and cost: all or nothing.

        Without `charge` it is a peek: it reports the decision and charges nothing. `within` is the
        deadline of this call, in seconds.
        """
        checks = plan.validated(checks, slots=not charge)
        return await self.run(self.prepare(checks, charge=charge), within)

    async def run(self, prepared: Prepared, within: float | None = None) -> Decision:
        """Decide prepared checks. Every decision is made here.

        `within` is the deadline of this call, in seconds. After a fault of the store, the fallback
        decides.
        """
        began_at = time.monotonic() if self._guard.owed else 0.0
        answer = await self._backend.run(prepared, within)
        decision = self._decided(prepared, answer)
        if isinstance(answer, Fault):
            self._replay_if_due()
        elif began_at:
            await self._pay_in_passing(began_at + (within or self._deadline))
        return decision

    def _start_replay(self) -> None:
        self._leave(_pay(weakref.ref(self)))

    def _leave(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have something done behind the caller."""
        behind = asyncio.get_running_loop().create_task(work)
        self._behind.add(behind)
        behind.add_done_callback(self._behind.discard)
        return behind

    async def _pay_some(self) -> bool:
        """Replay pending charges; return whether any are left."""
        unpaid, debts = 0, self._guard.debts()
        while unpaid < plan.MOST_UNPAID and (batch := list(islice(debts, plan.MOST_UNPAID))):
            unpaid += await self._pay_together(batch)
            self._guard.keeps_paying(time.monotonic())
        return self._guard.keeps_paying(time.monotonic())

    async def _pay_in_passing(self, ends: float) -> None:
        """Replay a few pending charges now, if the background replay ended with its loop."""
        now = time.monotonic()
        if now < ends and self._guard.should_pay(now):
            # A task of its own: cancelling the caller does not cancel it.
            paying = self._leave(self._pay_few())
            await asyncio.wait([paying], timeout=ends - now)

    async def _pay_few(self) -> None:
        debts = list(islice(self._guard.debts(), plan.MOST_UNPAID))
        if not await self._pay_together(debts):
            self._guard.stop_paying()

    async def _pay_together(self, debts: list[Correct]) -> int:
        """Pay some debts; return how many could not be paid."""
        unpaid = 0
        answers = await asyncio.gather(*[self._backend.change(debt) for debt in debts])
        for debt, answer in zip(debts, answers, strict=True):
            if isinstance(answer, Fault):
                self._guard.owe_again(debt, answer)
                unpaid += 1
        return unpaid

    async def _change(self, change: Change) -> bool:
        return await run_async(self._changed(change))

    async def peek(self, key: str | bytes, *limits: Limit | str, cost: int = 1) -> Decision:
        """Return the decision of `check`, and charge nothing. `remaining` is before charging."""
        checks = self._limits.checks(limits, key, cost)
        return await self.run(self._backend.prepare(checks, False))

    async def refund(self, decision: Decision | Receipt) -> bool:
        """Give back what a decision charged and is still counted; return whether there was any.

        Once: a second refund, or the refund of a refusal, changes nothing.
        """
        return await self.settle(decision, 0)

    async def settle(self, decision: Decision | Receipt, actual_cost: int) -> bool:
        """Correct the cost of an allowed decision, once; return whether anything changed.

        Less is given back. More is charged now, into debt if need be, but never beyond twice what
        the limit holds.
        """
        correct = plan.correct(decision, actual_cost)
        return correct is not None and await self._change(correct)

    async def reset(self, key: str | bytes, *limits: Limit | str) -> None:
        """Forget all that was counted for `key` under these limits.

        Raises `StoreError` when the store does not answer.
        """
        await self._change(Reset(self._limits.checks(limits, key, 1)))

    async def forget(self, *checks: Check) -> None:
        """Forget all that was counted for each of some checks: what `decide` is to `check`.

        Raises `StoreError` when the store does not answer.
        """
        await self._change(Reset(plan.validated(checks, slots=True)))

    async def acquire(
        self,
        key: str | bytes,
        *limits: Limit | str,
        cost: int = 1,
        timeout: float | None = None,  # noqa: ASYNC109  # it also refuses early, unlike a cancellation
    ) -> Decision:
        """Wait until the request is allowed, and sit out the delay of a leaky bucket.

        Callers of one key are served in the order they came, and wait for no other key. Raises
        `RateLimitExceeded` as soon as it is clear that `timeout` seconds will not do, or that no
        wait would.
        """
        checks = self._limits.checks(limits, key, cost)
        patience = Patience(self._clock.monotonic(), timeout)
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        # A line of its own for each loop: a future belongs to one, and so to one thread.
        line = (id(loop), checks[0].key)
        if self._lines.join(line, turn):
            turn.set_result(None)
        try:
            if not turn.done():
                patience.wait_for(await self._peek(checks), self._clock.monotonic())
                await asyncio.wait([turn], timeout=patience.left(self._clock.monotonic()))
                if not turn.done():
                    raise RateLimitExceeded(as_refusal(await self._peek(checks)))
            return await run_async(self._admit(checks, patience))
        finally:
            following = self._lines.leave(line, turn)
            if following is not None:
                following.set_result(None)

    def _sleep(self, seconds: float) -> Awaitable[None]:
        return self._clock.sleep_async(seconds)

    async def _give_back(self, decision: Decision) -> bool:
        return await to_the_end(self.refund(decision))

    def slot(self, key: str | bytes, concurrency: Concurrency, *limits: Limit | str) -> AsyncSlot:
        """Return a slot of `key` to hold, under `limits` too; by `async with` it is held in there.

        Raises `RateLimitExceeded` on entering when there is none free.
        """
        beside = self._limits.checks(limits, key, 1) if limits else ()
        return self.hold(plan.slot_check(concurrency, key), *beside)

    def hold(self, *checks: Check, id: str | None = None) -> AsyncSlot:
        """Return a slot that holds a place for each check of a `Concurrency`, under the others too.

        What `slot` is for one key, this is for several, as `decide` is to `check`. With the `id` of
        a slot that is held already, it can be renewed and released from here.
        """
        checks = plan.validated(checks, slots=True)
        keeper = AsyncKeeper(self._change)
        return AsyncSlot(self._hold, self._change, self._sleep, keeper, checks, id)

    def limit(
        self, *limits: Limit | str, key: str | KeyFunction | None = None, cost: int = 1
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
        """Decorate an async function so that a call over the limit raises `RateLimitExceeded`.

        `key` is the name of an argument, whose values are counted apart; or a function of the
        arguments; or None, which counts all calls together. A leaky bucket delays the call.
        """
        self._limits.checks(limits, "any", cost)

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
            if not inspect.iscoroutinefunction(function):
                raise ConfigurationError(
                    f"{name_of(function)} is not async; use Limiter for it, or make it async"
                )
            key_of = key_function(function, key)

            @functools.wraps(function)
            async def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
                decision = await self.check(key_of(*args, **kwargs), *limits, cost=cost)
                if not decision.allowed:
                    raise RateLimitExceeded(decision)
                if decision.delay:
                    await run_async(self._sit_out(decision, Patience(0.0, None)))
                return await function(*args, **kwargs)

            return guarded

        return decorate

    async def vitals(self) -> dict[str, Vitals]:
        """Return what each server of the store that answers says of itself: memory, load."""
        return await self._backend.vitals()

    async def ping(self) -> None:
        """Connect to the store, or raise `StoreError`. Memory is always there."""
        fault = await self._backend.ping()
        if fault is not None:
            raise StoreError(str(fault))

    async def aclose(self) -> None:
        """Let go of the store."""
        for task in list(self._behind):
            if not task.get_loop().is_closed():
                task.get_loop().call_soon_threadsafe(task.cancel)
        await self._backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


async def _pay(limiter: weakref.ref[AsyncLimiter]) -> None:
    """Pay a limiter's debts, until there are none, or it is gone itself."""
    owes = True
    while owes:
        await asyncio.sleep(plan.PAY_S)
        alive = limiter()
        owes = alive is not None and await alive._pay_some()
        del alive
