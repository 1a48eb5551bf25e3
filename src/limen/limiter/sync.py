"""`Limiter`: every verb of the library, for threads. The asyncio twin is `limen.limiter.aio`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, cast

from limen import behind, fork
from limen.backends import Change, Fault, Release, Renew, Reset, Shard
from limen.backends.memory import MemoryBackend
from limen.clock import Clock
from limen.errors import ConfigurationError, RateLimitExceeded, StoreError
from limen.guarded import Guard
from limen.limiter import plan
from limen.limiter.decorate import KeyFunction, key_function, name_of
from limen.limiter.keeper import Keeper
from limen.limiter.line import Lines, Patience, as_refusal, counts_denied
from limen.limiter.settings import Observer, open_store, valid_instances, validate
from limen.limiter.slot import Slot
from limen.model import (
    MAX_COST,
    NEVER_US,
    Check,
    Concurrency,
    Decision,
    Limit,
    OnError,
    Receipt,
    decision_of,
    receipt_ids,
)

if TYPE_CHECKING:
    from redis import Redis
    from redis.cluster import RedisCluster

P = ParamSpec("P")
R = TypeVar("R")


class Limiter:
    """Decides whether requests may pass. Safe to share between threads.

    ```python
    limiter = Limiter()
    decision = limiter.check("user:42", "100/minute")
    if not decision.allowed:
        print(f"come back in {decision.retry_after} s")
    ```

    Wherever limits are taken, each is a `Limit` or text such as `"100/minute"` or
    `"10/second; 1000/hour"`; several are decided together, all or nothing.
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
        self._backend = open_store(settings)
        self._memory = self._backend if isinstance(self._backend, MemoryBackend) else None
        self._guard = Guard(settings.on_error, settings.instances)
        self._clock = settings.clock
        self._observers = settings.observers
        self._limits = plan.Limits()
        self._alone = self._limits.alone
        self.after_fork()
        fork.watch(self)
        self._keeper = Keeper(self._change)

    def after_fork(self) -> None:
        """Make anew what two processes must not share. Not for you to call."""
        self._ids = receipt_ids()
        self._lines: Lines[threading.Lock] = Lines()
        self._lines_lock = threading.Lock()
        self._closed = threading.Event()

    def check(self, key: str | bytes, *limits: Limit | str, cost: int = 1) -> Decision:
        """Decide one request of `key`, and charge it when it is allowed. Never waits.

        Raises `InvalidInput` or `InvalidLimit` for arguments that make no sense, and charges
        nothing then.
        """
        memory = self._memory
        limit: object = limits[0] if len(limits) == 1 else None
        if type(limit) is str:
            limit = self._alone.get(limit)
        if (
            memory is None
            or type(limit) is not Limit
            or type(key) is not str
            or not key
            or type(cost) is not int
            or (cost != 1 and not 0 <= cost <= MAX_COST)
        ):
            return self._ask(self._limits.checks(limits, key, cost))
        # Nearly every call in memory comes this way: one limit, seen before, on a proper key.
        # Nothing is left to plan or to combine, and each function not called is a twentieth of
        # the time.
        allowed, remaining, retry_us, reset_us, delay_us, stamp_us = memory.run(limit, key, cost)
        decision = Decision(
            limit,
            key,
            cost,
            allowed,
            remaining,
            0.0 if allowed else None if retry_us == NEVER_US else retry_us / 1e6,
            reset_us / 1e6,
            delay_us / 1e6 if delay_us else 0.0,
            stamp_us,
            "store",
            next(self._ids),
        )
        for observer in self._observers:
            try:
                observer(decision)
            except Exception:
                plan.complain(observer)
        return decision

    def decide(self, *checks: Check, charge: bool = True, within: float | None = None) -> Decision:
        """Decide several checks together, each with its own key and cost: all or nothing.

        Without `charge` it says what it would decide, and charges nothing, as `peek` does. `within`
        is for this call the deadline in seconds.
        """
        found = plan.validated(checks, slots=not charge)
        return self.ask(found, charge=charge, within=within)

    def ask(
        self, checks: tuple[Check, ...], *, charge: bool = True, within: float | None = None
    ) -> Decision:
        """Decide checks that rules made, as `decide` does: they are valid, and not looked at.

        Whoever asks the same again does well to bring the same tuple along.
        """
        if charge:
            memory, check = self._memory, checks[0]
            if memory is not None and len(checks) == 1 and check.enforce:
                limit = check.limit
                if type(limit) is Limit:
                    return self._alone_in_memory(memory, check, limit)
            return self._ask(checks, within=within)
        # Whoever only looks at slots holds none, and needs no name of its own.
        return self._ask(checks, "nobody", charge=False, within=within)

    def _alone_in_memory(self, memory: MemoryBackend, check: Check, limit: Limit) -> Decision:
        """Decide a single check, which most are, where there is nothing to combine or to fear."""
        reading = memory.run(limit, check.key, check.cost)
        decision = decision_of(check, reading, "store", next(self._ids))
        if self._observers:
            plan.notify(self._observers, decision)
        return decision

    def _ask(
        self,
        checks: tuple[Check, ...],
        holder: str = "",
        *,
        charge: bool = True,
        within: float | None = None,
    ) -> Decision:
        answer = self._backend.run_all(checks, charge, holder, within)
        if isinstance(answer, Fault):
            readings, sources = self._guard.decide(answer, checks, charge, holder)
            decision = plan.combine(checks, readings, next(self._ids), sources, answer.kind)
            self._have_paid()
        else:
            decision = plan.combine(checks, answer, next(self._ids))
            if self._memory is None:
                self._guard.record(checks, answer)
            if self._guard.owed:
                self._have_paid()  # whoever was to pay may have had no thread
        if self._observers and charge:
            plan.notify(self._observers, decision)
        return decision

    def _have_paid(self) -> None:
        """See to it that what was admitted without the store is charged there when it is back."""
        if self._guard.should_pay(time.monotonic()):
            with contextlib.suppress(RuntimeError):  # no thread to be had: the next one tries
                behind.start(_pay, weakref.ref(self), self._closed)

    def _pay_some(self) -> bool:
        """Pay what can be paid now; return whether anything is owed still."""
        unpaid = 0
        for debt in self._guard.debts():
            answer = self._backend.change(debt)
            if isinstance(answer, Fault):
                self._guard.owe_again(debt, answer)
                unpaid += 1
                if unpaid >= plan.MOST_UNPAID:
                    break
            self._guard.keeps_paying(time.monotonic())
        return self._guard.keeps_paying(time.monotonic())

    def _change(self, change: Change) -> bool:
        done = self._guard.change(change)
        self._have_paid()
        if done and isinstance(change, Renew):
            # What was granted here is taken over by the store; while that is full, it is held here.
            self._backend.run_all((change.check,), True, change.holder)
        if done is not None and not isinstance(change, Release):
            return done
        # A slot that was granted here may have been granted there too, by a reply that was lost.
        answer = self._backend.change(change)
        if isinstance(answer, Fault):
            return bool(done) or self._guard.give_up(answer, change)
        return answer or bool(done)

    def peek(self, key: str | bytes, *limits: Limit | str, cost: int = 1) -> Decision:
        """Say what `check` would say, and charge nothing. `remaining` is before charging."""
        return self._ask(self._limits.checks(limits, key, cost), charge=False)

    def refund(self, decision: Decision | Receipt) -> bool:
        """Give back what a decision charged and is still counted; return whether there was any.

        Once: a second refund, or the refund of a refusal, changes nothing.
        """
        return self.settle(decision, 0)

    def settle(self, decision: Decision | Receipt, actual_cost: int) -> bool:
        """Correct the cost of an allowed decision, once; return whether anything changed.

        Less is given back. More is charged now, into debt if need be, but never beyond twice what
        the limit holds.
        """
        correct = plan.correct(decision, actual_cost)
        return correct is not None and self._change(correct)

    def reset(self, key: str | bytes, *limits: Limit | str) -> None:
        """Forget all that was counted for `key` under these limits.

        Raises `StoreError` when the store does not answer.
        """
        self._change(Reset(self._limits.checks(limits, key, 1)))

    def forget(self, *checks: Check) -> None:
        """Forget all that was counted for each of some checks: what `decide` is to `check`.

        Raises `StoreError` when the store does not answer.
        """
        self._change(Reset(plan.validated(checks, slots=True)))

    def acquire(
        self, key: str | bytes, *limits: Limit | str, cost: int = 1, timeout: float | None = None
    ) -> Decision:
        """Wait until the request is allowed, and sit out the delay of a leaky bucket.

        Callers of one key are served in the order they came, and wait for no other key. Raises
        `RateLimitExceeded` as soon as it is clear that `timeout` seconds will not do, or that no
        wait would.
        """
        checks = self._limits.checks(limits, key, cost)
        patience = Patience(self._clock.monotonic(), timeout)
        turn = threading.Lock()
        turn.acquire()
        line = checks[0].key
        try:
            with self._lines_lock:
                first = self._lines.join(line, turn)
            if not first:
                patience.wait_for(self._ask(checks, charge=False), self._clock.monotonic())
                left = patience.left(self._clock.monotonic())
                if not turn.acquire(timeout=-1 if left is None else left):
                    raise RateLimitExceeded(as_refusal(self._ask(checks, charge=False)))
            while True:
                # Where refusals count, ask first: who waits for his turn is not hammering.
                decision = self._ask(checks, charge=False) if counts_denied(checks) else None
                if decision is None or decision.allowed:
                    decision = self._ask(checks)
                if decision.allowed:
                    self._sit_out(decision, patience)
                    return decision
                self._clock.sleep(patience.wait_for(decision, self._clock.monotonic()))
        finally:
            with self._lines_lock:
                following = self._lines.leave(line, turn)
            if following is not None:
                following.release()

    def _sit_out(self, decision: Decision, patience: Patience) -> None:
        """Wait for as long as a leaky bucket says; give the place back when that fails."""
        if not decision.delay:
            return
        try:
            self._clock.sleep(patience.wait_for(decision, self._clock.monotonic()))
        except BaseException:
            self.refund(decision)
            raise

    def slot(self, key: str | bytes, concurrency: Concurrency, *limits: Limit | str) -> Slot:
        """Return a slot of `key` to hold, under `limits` too; used by `with`, it is held in there.

        Raises `RateLimitExceeded` on entering when there is none free.
        """
        beside = self._limits.checks(limits, key, 1) if limits else ()
        return self.hold(plan.slot_check(concurrency, key), *beside)

    def hold(self, *checks: Check, id: str | None = None) -> Slot:
        """Return a slot that holds a place for each check of a `Concurrency`, under the others too.

        What `slot` is for one key, this is for several, as `decide` is to `check`. With the `id` of
        a slot that is held already, it can be renewed and released from here.
        """
        found = plan.validated(checks, slots=True)
        return Slot(self._ask, self._change, self._keeper, self._clock, found, id)

    def limit(
        self, *limits: Limit | str, key: str | KeyFunction | None = None, cost: int = 1
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function so that a call over the limit raises `RateLimitExceeded`.

        `key` is the name of an argument, whose values are counted apart; or a function of the
        arguments; or None, which counts all calls together. A leaky bucket delays the call.
        """
        self._limits.checks(limits, "any", cost)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            key_of = key_function(function, key)
            if self._memory is None and inspect.iscoroutinefunction(function):
                raise ConfigurationError(
                    f"{name_of(function)} is async, and Limiter would hold up its event loop "
                    "while it asks the store; use AsyncLimiter"
                )

            def admit(*args: Any, **kwargs: Any) -> Decision:
                decision = self.check(key_of(*args, **kwargs), *limits, cost=cost)
                if not decision.allowed:
                    raise RateLimitExceeded(decision)
                return decision

            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def guarded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                    decision = admit(*args, **kwargs)
                    if decision.delay:
                        try:
                            await self._clock.sleep_async(decision.delay)
                        except BaseException:
                            self.refund(decision)
                            raise
                    return await function(*args, **kwargs)

                return cast("Callable[P, R]", guarded_async)

            @functools.wraps(function)
            def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
                self._sit_out(admit(*args, **kwargs), Patience(0.0, None))
                return function(*args, **kwargs)

            return guarded

        return decorate

    @property
    def memory(self) -> MemoryBackend | None:
        """The store, if it is in this process. Not for you to ask."""
        return self._memory

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
    def observers(self) -> tuple[Observer, ...]:
        """Who is told of every decision."""
        return self._observers

    @property
    def clock(self) -> Clock:
        """What it waits by."""
        return self._clock

    def share_with(self, instances: int) -> None:
        """Say how many processes there are now, this one included.

        While the store is away, each may admit its share of a limit, as with `instances`.
        """
        self._guard.instances = valid_instances(instances)

    def ping(self) -> None:
        """Connect to the store, or raise `StoreError`. Memory is always there."""
        fault = self._backend.ping()
        if fault is not None:
            raise StoreError(str(fault))

    def close(self) -> None:
        """Let go of the store, and stop renewing slots."""
        self._keeper.close()
        self._closed.set()
        self._closed = threading.Event()
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _pay(limiter: weakref.ref[Limiter], closed: threading.Event) -> None:
    """Pay a limiter's debts, until there are none, or it is gone itself."""
    owes = True
    while owes and not closed.wait(plan.PAY_S):
        alive = limiter()
        owes = alive is not None and alive._pay_some()
        if alive is not None and closed.is_set():
            # Meanwhile; and this may have opened a connection again.
            alive._backend.close()
        del alive
