"""`AsyncLimiter`: every verb of the library, for asyncio. The twin for threads is `sync`."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from itertools import islice
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from msgspec import Struct

from limen import fork
from limen.backends import (
    AsyncBackend,
    Change,
    Correct,
    Fault,
    Release,
    Renew,
    Reset,
    Shard,
    Vitals,
)
from limen.backends.memory import AsyncMemoryBackend, MemoryBackend
from limen.clock import Clock
from limen.ending import to_the_end
from limen.errors import ConfigurationError, RateLimitExceeded, StoreError
from limen.guarded import Guard
from limen.limiter import plan
from limen.limiter.decorate import KeyFunction, key_function, name_of
from limen.limiter.line import Lines, Patience, as_refusal, counts_denied
from limen.limiter.settings import Observer, open_store_async, valid_instances, validate
from limen.limiter.slot import AsyncSlot
from limen.limiter.sync import Limiter
from limen.model import (
    Check,
    Concurrency,
    Decision,
    Limit,
    OnError,
    Reading,
    Receipt,
    decision_of,
    receipt_ids,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

_ALLOWED = itemgetter(0)
P = ParamSpec("P")
R = TypeVar("R")


class Prepared(Struct, frozen=True, gc=False):
    """Checks that will be asked again and again."""

    checks: tuple[Check, ...]
    asked: object
    """The same as the store is asked."""


class AsyncLimiter:
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
        settings = validate(store, namespace, on_error, instances, deadline, observers, clock)
        self._backend = open_store_async(settings)
        self._memory = _memory_of(self._backend)
        self._guard = Guard(settings.on_error, settings.instances)
        self._deadline = settings.deadline
        self._clock = settings.clock
        self._observers = settings.observers
        self._limits = plan.Limits()
        self.after_fork()
        fork.watch(self)

    @classmethod
    def beside(cls, limiter: Limiter) -> AsyncLimiter | None:
        """Return a limiter that counts in the memory of one for threads; None if that is on Redis.

        For those who have both in one process: on Redis, they share their counts anyway.
        """
        memory = limiter.memory
        if memory is None:
            return None
        found = cls(clock=limiter.clock)
        found._backend = AsyncMemoryBackend(memory)
        found._memory = memory
        found._observers = limiter.observers
        return found

    def after_fork(self) -> None:
        """Make anew what two processes must not share. Not for you to call."""
        self._ids = receipt_ids()
        self._behind: set[asyncio.Task[None]] = set()
        self._lines: Lines[asyncio.Future[None]] = Lines()

    async def check(self, key: str | bytes, *limits: Limit | str, cost: int = 1) -> Decision:
        """Decide one request of `key`, and charge it when it is allowed. Never waits its turn.

        Raises `InvalidInput` or `InvalidLimit` for arguments that make no sense, and charges
        nothing then.
        """
        return await self._ask(self._limits.checks(limits, key, cost))

    async def decide(
        self, *checks: Check, charge: bool = True, within: float | None = None
    ) -> Decision:
        """Decide several checks together, each with its own key and cost: all or nothing.

        Without `charge` it says what it would decide, and charges nothing, as `peek` does. `within`
        is for this call the deadline in seconds.
        """
        found = plan.validated(checks, slots=not charge)
        return await self.ask(found, charge=charge, within=within)

    async def ask(
        self, checks: tuple[Check, ...], *, charge: bool = True, within: float | None = None
    ) -> Decision:
        """Decide checks that rules made, as `decide` does: they are valid, and not looked at."""
        if charge:
            memory, check = self._memory, checks[0]
            if memory is not None and len(checks) == 1 and check.enforce:
                limit = check.limit
                if type(limit) is Limit:
                    return self._alone_in_memory(memory, check, limit)
            return await self._ask(checks, within=within)
        # Whoever only looks at slots holds none, and needs no name of its own.
        return await self._ask(checks, "nobody", charge=False, within=within)

    async def admit(
        self, prepared: Prepared, within: float | None = None
    ) -> tuple[Reading, ...] | Decision:
        """Decide checks that were prepared, as `decide` does.

        For who answers very many: when the store lets all of them pass, and nobody observes, this
        is what it said of each, and no decision is made of it.
        """
        checks = prepared.checks
        answer = await self._backend.run_prepared(checks, prepared.asked, within)
        return self.admitted(checks, answer)

    def prepare(self, checks: tuple[Check, ...]) -> Prepared:
        """Return checks that rules made, and that are all enforced, for who asks them again."""
        return Prepared(checks, self._backend.prepare(checks))

    def admit_soon(
        self, prepared: Prepared, tell: Callable[[tuple[Reading, ...] | Fault], object]
    ) -> bool:
        """Do what `admit` does, without a task that waits for it.

        `tell` is called at once, or later by the loop: with what `admitted` takes. It must not
        raise. False, and nothing is done, when only `admit` can do it.
        """
        return self._backend.run_soon(prepared.asked, tell)

    def admitted(
        self, checks: tuple[Check, ...], answer: tuple[Reading, ...] | Fault
    ) -> tuple[Reading, ...] | Decision:
        """Return what `admit` returns, once the store was asked."""
        if isinstance(answer, Fault) or self._observers or not all(map(_ALLOWED, answer)):
            return self._decision(checks, answer, "", charge=True)
        if self._memory is None:
            self._guard.record(checks, answer)
        return answer

    def _alone_in_memory(self, memory: MemoryBackend, check: Check, limit: Limit) -> Decision:
        """Decide a single check, which most are, where there is nothing to wait for."""
        reading = memory.run(limit, check.key, check.cost)
        decision = decision_of(check, reading, "store", next(self._ids))
        if self._observers:
            plan.notify(self._observers, decision)
        return decision

    async def _ask(
        self,
        checks: tuple[Check, ...],
        holder: str = "",
        *,
        charge: bool = True,
        within: float | None = None,
    ) -> Decision:
        began_at = time.monotonic() if self._guard.owed else 0.0
        answer = await self._backend.run_all(checks, charge, holder, within)
        if began_at and not isinstance(answer, Fault):
            await self._pay_in_passing(began_at + (within or self._deadline))
        return self._decision(checks, answer, holder, charge=charge)

    def _decision(
        self,
        checks: tuple[Check, ...],
        answer: tuple[Reading, ...] | Fault,
        holder: str,
        *,
        charge: bool,
    ) -> Decision:
        if isinstance(answer, Fault):
            readings, sources = self._guard.decide(answer, checks, charge, holder)
            decision = plan.combine(checks, readings, next(self._ids), sources, answer.kind)
            self._have_paid()
        else:
            decision = plan.combine(checks, answer, next(self._ids))
            if self._memory is None:
                self._guard.record(checks, answer)
        if self._observers and charge:
            plan.notify(self._observers, decision)
        return decision

    def _have_paid(self) -> None:
        """See to it that what was admitted without the store is charged there when it is back."""
        if self._guard.should_pay(time.monotonic()):
            self._leave(_pay(weakref.ref(self)))

    def _leave(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have something done behind the caller."""
        behind = asyncio.get_running_loop().create_task(work)
        self._behind.add(behind)
        behind.add_done_callback(self._behind.discard)
        return behind

    async def _pay_some(self) -> bool:
        """Pay what can be paid now; return whether anything is owed still."""
        unpaid, debts = 0, self._guard.debts()
        while unpaid < plan.MOST_UNPAID and (batch := list(islice(debts, plan.MOST_UNPAID))):
            unpaid += await self._pay_together(batch)
            self._guard.keeps_paying(time.monotonic())
        return self._guard.keeps_paying(time.monotonic())

    async def _pay_in_passing(self, ends: float) -> None:
        """Pay a few debts now, if whoever was to pay them is gone, as with a loop for each call."""
        now = time.monotonic()
        if now < ends and self._guard.should_pay(now):
            # A task, so that nobody who is cancelled here takes them along.
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
        done = self._guard.change(change)
        self._have_paid()
        if done and isinstance(change, Renew):
            # What was granted here is taken over by the store; while that is full, it is held here.
            await self._backend.run_all((change.check,), True, change.holder)
        if done is not None and not isinstance(change, Release):
            return done
        # A slot that was granted here may have been granted there too, by a reply that was lost.
        answer = await self._backend.change(change)
        if isinstance(answer, Fault):
            return bool(done) or self._guard.give_up(answer, change)
        return answer or bool(done)

    async def peek(self, key: str | bytes, *limits: Limit | str, cost: int = 1) -> Decision:
        """Say what `check` would say, and charge nothing. `remaining` is before charging."""
        return await self._ask(self._limits.checks(limits, key, cost), charge=False)

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
                patience.wait_for(await self._ask(checks, charge=False), self._clock.monotonic())
                await asyncio.wait([turn], timeout=patience.left(self._clock.monotonic()))
                if not turn.done():
                    raise RateLimitExceeded(as_refusal(await self._ask(checks, charge=False)))
            while True:
                # Where refusals count, ask first: who waits for his turn is not hammering.
                decision = await self._ask(checks, charge=False) if counts_denied(checks) else None
                if decision is None or decision.allowed:
                    decision = await self._ask(checks)
                if decision.allowed:
                    await self._sit_out(decision, patience)
                    return decision
                pause = patience.wait_for(decision, self._clock.monotonic())
                await self._clock.sleep_async(pause)
        finally:
            following = self._lines.leave(line, turn)
            if following is not None:
                following.set_result(None)

    async def _sit_out(self, decision: Decision, patience: Patience) -> None:
        """Wait for as long as a leaky bucket says; give the place back when that fails."""
        if not decision.delay:
            return
        try:
            pause = patience.wait_for(decision, self._clock.monotonic())
            await self._clock.sleep_async(pause)
        except BaseException:
            await to_the_end(self.refund(decision))
            raise

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
        found = plan.validated(checks, slots=True)
        return AsyncSlot(self._ask, self._change, self._clock, found, id)

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
                await self._sit_out(decision, Patience(0.0, None))
                return await function(*args, **kwargs)

            return guarded

        return decorate

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

    async def vitals(self) -> dict[str, Vitals]:
        """Return what each server of the store that answers says of itself: memory, load."""
        return await self._backend.vitals()

    @property
    def clock(self) -> Clock:
        """What it waits by."""
        return self._clock

    def share_with(self, instances: int) -> None:
        """Say how many processes there are now, this one included.

        While the store is away, each may admit its share of a limit, as with `instances`.
        """
        self._guard.instances = valid_instances(instances)

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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


async def _pay(limiter: weakref.ref[AsyncLimiter]) -> None:
    """Pay a limiter's debts, until there are none, or it is gone itself."""
    owes = True
    while owes:
        await asyncio.sleep(plan.PAY_S)
        alive = limiter()
        owes = alive is not None and await alive._pay_some()
        del alive


def _memory_of(backend: AsyncBackend) -> MemoryBackend | None:
    return backend.memory if isinstance(backend, AsyncMemoryBackend) else None
