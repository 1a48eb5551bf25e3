"""`Limiter`: every verb of the library, for threads. The asyncio twin is `limen.limiter.aio`."""

from __future__ import annotations

import functools
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, cast

from limen._internal import background
from limen._internal.functions import name_of
from limen.backends import Backend, Change, Fault, Prepared, Reset
from limen.backends.memory import MemoryBackend
from limen.clock import Clock
from limen.errors import ConfigurationError, RateLimitExceeded, StoreError
from limen.flow import run
from limen.limiter import plan
from limen.limiter.decorate import KeyFunction, key_function
from limen.limiter.flows import LimiterFlows
from limen.limiter.keeper import Keeper
from limen.limiter.line import Lines, Patience, as_refusal
from limen.limiter.settings import LimiterSettings, Observer, open_store
from limen.limiter.slot import Slot
from limen.model import MAX_COST, Check, Concurrency, Decision, Limit, OnError, Receipt, decision_of

if TYPE_CHECKING:
    from redis import Redis
    from redis.cluster import RedisCluster

P = ParamSpec("P")
R = TypeVar("R")


class Limiter(LimiterFlows[Backend]):
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
        settings = LimiterSettings(
            store, namespace, on_error, instances, deadline, observers, clock
        )
        backend = open_store(settings)
        memory = backend if isinstance(backend, MemoryBackend) else None
        super().__init__(settings, backend, memory)
        self._alone = self._limits.alone
        self._keeper = Keeper(self._change)

    def after_fork(self) -> None:
        """Make anew what two processes must not share. Not for you to call."""
        super().after_fork()
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
            return self.run(self._backend.prepare(self._limits.checks(limits, key, cost)))
        # One known limit in memory is the most frequent call, and `run` takes 1.5 times as long.
        # Both must give the same decision: see tests/limiter/test_one_path.py.
        check = Check(limit, key, cost)
        decision = decision_of(check, memory.run_one(check), "store", next(self._ids))
        if self._observers:
            plan.notify(self._observers, decision)
        return decision

    def decide(self, *checks: Check, charge: bool = True, within: float | None = None) -> Decision:
        """Decide several checks together, each with its own key and cost: all or nothing.

        Without `charge` it is a peek: it reports the decision and charges nothing. `within` is the
        deadline of this call, in seconds.
        """
        checks = plan.validated(checks, slots=not charge)
        return self.run(self.prepare(checks, charge=charge), within)

    def run(self, prepared: Prepared, within: float | None = None) -> Decision:
        """Decide prepared checks. Every decision is made here, except in `check`.

        `within` is the deadline of this call, in seconds. After a fault of the store, the fallback
        decides.
        """
        answer = self._backend.run(prepared, within)
        decision = self._decided(prepared, answer)
        if self._guard.owed:
            self._replay_if_due()
        return decision

    def _start_replay(self) -> None:
        try:
            background.start(_pay, weakref.ref(self), self._closed)
        except RuntimeError:  # the system has no more threads; the next call tries again
            self._guard.stop_paying()

    def _pay_some(self) -> bool:
        """Replay pending charges; return whether any are left."""
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
        return run(self._changed(change))

    def peek(self, key: str | bytes, *limits: Limit | str, cost: int = 1) -> Decision:
        """Return the decision of `check`, and charge nothing. `remaining` is before charging."""
        return self.run(self._backend.prepare(self._limits.checks(limits, key, cost), False))

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
                patience.wait_for(self._peek(checks), self._clock.monotonic())
                left = patience.left(self._clock.monotonic())
                if not turn.acquire(timeout=-1 if left is None else left):
                    raise RateLimitExceeded(as_refusal(self._peek(checks)))
            return run(self._admit(checks, patience))
        finally:
            with self._lines_lock:
                following = self._lines.leave(line, turn)
            if following is not None:
                following.release()

    def _sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    def _give_back(self, decision: Decision) -> bool:
        return self.refund(decision)

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
        checks = plan.validated(checks, slots=True)
        return Slot(self._hold, self._change, self._sleep, self._keeper, checks, id)

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
                decision = admit(*args, **kwargs)
                if decision.delay:
                    run(self._sit_out(decision, Patience(0.0, None)))
                return function(*args, **kwargs)

            return guarded

        return decorate

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

    def __exit__(self, *error: object) -> None:
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
