"""`acquire`, slots and decorators: what waits, what holds, what wraps."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from limen import (
    AsyncLimiter,
    Check,
    Concurrency,
    ConfigurationError,
    Decision,
    InvalidInput,
    InvalidLimit,
    Limit,
    Limiter,
    RateLimitExceeded,
    StoreError,
)
from limen.backends import Change, Release, Renew
from limen.limiter.keeper import MAX_RENEWALS, Keeper
from limen.testing import ManualClock
from tests.conformance.stores import Blocking, Threaded, is_renewed
from tests.exhausted import no_thread
from tests.forked import in_child
from tests.waiting import wait_until


class SoftTimeLimit(Exception):
    """As Celery raises in a task that takes too long."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
def limiter(clock: ManualClock) -> Iterator[Limiter]:
    with Limiter(clock=clock) as limiter:
        yield limiter


class TestAcquire:
    def test_waits_exactly_as_long_as_needed(self, limiter: Limiter, clock: ManualClock) -> None:
        start = clock.monotonic()
        for _ in range(5):
            limiter.acquire("k", "2/second")
        assert clock.monotonic() - start == 2.0

    def test_sits_out_the_delay_of_a_leaky_bucket(
        self, limiter: Limiter, clock: ManualClock
    ) -> None:
        start = clock.monotonic()
        for _ in range(5):
            limiter.acquire("k", "2/second leaky_bucket")
        assert clock.monotonic() - start == 2.0

    def test_gives_up_at_once_when_the_timeout_will_not_do(
        self, limiter: Limiter, clock: ManualClock
    ) -> None:
        limiter.acquire("k", "1/minute")
        start = clock.monotonic()
        with pytest.raises(RateLimitExceeded, match="retry in 60 s") as caught:
            limiter.acquire("k", "1/minute", timeout=59.9)
        assert caught.value.decision.retry_after == 60.0
        assert clock.monotonic() == start
        assert limiter.acquire("k", "1/minute", timeout=60).allowed

    def test_gives_up_at_once_on_what_never_fits(self, limiter: Limiter) -> None:
        with pytest.raises(RateLimitExceeded, match="never fits"):
            limiter.acquire("k", "1/minute", cost=2)

    def test_a_delay_beyond_the_timeout_is_refused_and_given_back(self, limiter: Limiter) -> None:
        limiter.acquire("k", "1/minute leaky_bucket burst 3")
        with pytest.raises(RateLimitExceeded) as caught:
            limiter.acquire("k", "1/minute leaky_bucket burst 3", timeout=10)
        assert (caught.value.decision.allowed, caught.value.decision.retry_after) == (False, 60.0)
        assert limiter.peek("k", "1/minute leaky_bucket burst 3").remaining == 2

    def test_waiting_its_turn_is_not_counted_as_hammering(
        self, limiter: Limiter, clock: ManualClock
    ) -> None:
        start = clock.monotonic()
        for _ in range(3):
            limiter.acquire("k", "1/10s count_denied")
        assert clock.monotonic() - start == 20.0

    def test_a_wait_that_is_cut_short_gives_its_place_back(self) -> None:
        text = "2/s leaky_bucket burst 5"

        async def run() -> int:
            limiter = AsyncLimiter()
            await limiter.check("k", text)
            waiting = asyncio.create_task(limiter.acquire("k", text))
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            return (await limiter.peek("k", text)).remaining

        assert asyncio.run(run()) == 4

        class Interrupted(ManualClock):
            def sleep(self, seconds: float) -> None:
                raise KeyboardInterrupt

        limiter = Limiter(clock=Interrupted())
        guarded = limiter.limit(text, key=lambda: "k")(lambda: None)
        limiter.check("k", text)
        for wait in (lambda: limiter.acquire("k", text), guarded):
            with pytest.raises(KeyboardInterrupt):
                wait()
        assert limiter.peek("k", text).remaining == 4

    def test_who_can_never_pass_does_not_stand_in_line(self) -> None:
        async def run() -> float:
            limiter = AsyncLimiter()
            await limiter.acquire("k", "2/hour", cost=2)
            first = asyncio.create_task(limiter.acquire("k", "2/hour"))
            await asyncio.sleep(0)
            start = time.monotonic()
            with pytest.raises(RateLimitExceeded, match="never fits"):
                await limiter.acquire("k", "2/hour", cost=3)
            with pytest.raises(RateLimitExceeded, match="retry in"):
                await limiter.acquire("k", "2/hour", timeout=30)
            first.cancel()
            return time.monotonic() - start

        assert asyncio.run(run()) < 20

    def test_async_waits_too(self, clock: ManualClock) -> None:
        async def run() -> float:
            limiter, start = AsyncLimiter(clock=clock), clock.monotonic()
            for _ in range(5):
                await limiter.acquire("k", "2/second")
            with pytest.raises(RateLimitExceeded):
                await limiter.acquire("k", "2/second", cost=2, timeout=0.5)
            return clock.monotonic() - start

        assert asyncio.run(run()) == 2.0

    def test_tasks_are_served_in_the_order_they_came(self) -> None:
        async def run() -> list[int]:
            limiter, served = AsyncLimiter(), list[int]()

            async def worker(number: int) -> None:
                await limiter.acquire("k", "1/5ms")
                served.append(number)

            await asyncio.gather(*(worker(number) for number in range(20)))
            return served

        assert asyncio.run(run()) == list(range(20))

    def test_a_waiting_key_holds_up_no_other(self) -> None:
        async def run() -> float:
            limiter = AsyncLimiter()
            await limiter.acquire("slow", "1/hour")
            waiting = asyncio.create_task(limiter.acquire("slow", "1/hour"))
            await asyncio.sleep(0)
            start = time.monotonic()
            await limiter.acquire("free", "1/hour")
            elapsed = time.monotonic() - start
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            return elapsed

        assert asyncio.run(run()) < 20

    def test_a_cancelled_waiter_passes_its_turn_on(self) -> None:
        async def run() -> Decision:
            limiter = AsyncLimiter()
            await limiter.acquire("k", "1/20ms")
            first = asyncio.create_task(limiter.acquire("k", "1/20ms"))
            second = asyncio.create_task(limiter.acquire("k", "1/20ms"))
            third = asyncio.create_task(limiter.acquire("k", "1/20ms"))
            await asyncio.sleep(0)
            second.cancel()
            first.cancel()
            return await asyncio.wait_for(third, 5)

        assert asyncio.run(run()).allowed

    def test_a_waiter_whose_time_runs_out_in_line_is_refused(self) -> None:
        async def run() -> None:
            limiter = AsyncLimiter()
            await limiter.acquire("k", "1/200ms")
            first = asyncio.create_task(limiter.acquire("k", "1/200ms"))
            second = asyncio.create_task(limiter.acquire("k", "1/200ms"))
            await asyncio.sleep(0)
            # Long enough for the next turn, but two are before it.
            with pytest.raises(RateLimitExceeded):
                await limiter.acquire("k", "1/200ms", timeout=0.25)
            second.cancel()
            await first

        asyncio.run(run())

    def test_two_event_loops_can_share_a_limiter(self) -> None:
        limiter = AsyncLimiter()

        async def run() -> int:
            waits = (limiter.acquire("k", "1/2ms", timeout=20) for _ in range(20))
            return sum(decision.allowed for decision in await asyncio.gather(*waits))

        admitted = list[int]()
        threads = [
            threading.Thread(target=lambda: admitted.append(asyncio.run(run()))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert admitted == [20, 20]

    def test_threads_are_served_in_the_order_they_came(self) -> None:
        limiter, served = Limiter(), list[int]()
        limiter.acquire("k", "1/50ms")

        def worker(number: int) -> None:
            limiter.acquire("k", "1/50ms")
            served.append(number)

        threads = [threading.Thread(target=worker, args=(number,)) for number in range(4)]
        for index, thread in enumerate(threads):
            thread.start()
            wait_until(
                lambda count=index + 1: (  # type: ignore[misc]
                    served or len(limiter._lines._lines.get("k", ())) == count
                ),
                interval_s=0.0005,
            )
        for thread in threads:
            thread.join(10)
        assert served == [0, 1, 2, 3]

    def test_a_thread_whose_time_runs_out_in_line_is_refused(self) -> None:
        limiter = Limiter()
        limiter.acquire("k", "1/300ms")
        first = threading.Thread(target=limiter.acquire, args=("k", "1/300ms"))
        first.start()
        wait_until(lambda: limiter._lines._lines.get("k"), interval_s=0.001)
        with pytest.raises(RateLimitExceeded):
            limiter.acquire("k", "1/300ms", timeout=0.35)
        first.join(10)
        assert not limiter._lines._lines


class TestSlots:
    limit = Concurrency(2, lease=30)

    def test_holds_a_slot_inside_with_and_frees_it_after(self, limiter: Limiter) -> None:
        with limiter.slot("k", self.limit) as one, limiter.slot("k", self.limit) as two:
            assert one.id != two.id
            assert two.decision is not None
            assert two.decision.remaining == 0
            with (
                pytest.raises(RateLimitExceeded, match="2 at once, lease 30 seconds"),
                limiter.slot("k", self.limit),
            ):
                raise AssertionError("unreachable")
        assert limiter.slot("k", self.limit).acquire().remaining == 1

    def test_is_freed_also_when_the_body_fails(self, limiter: Limiter) -> None:
        with pytest.raises(ZeroDivisionError), limiter.slot("k", Concurrency(1, lease=30)):
            raise ZeroDivisionError
        assert limiter.slot("k", Concurrency(1, lease=30)).acquire().allowed

    def test_a_lost_lease_is_not_released_for_another(
        self, limiter: Limiter, clock: ManualClock
    ) -> None:
        one = Concurrency(1, lease=30)
        dead, alive = limiter.slot("k", one), limiter.slot("k", one)
        assert dead.acquire().allowed
        refused = alive.acquire()
        assert (refused.allowed, refused.retry_after) == (False, 30.0)
        clock.advance(30)
        assert alive.acquire().allowed
        assert not dead.release()
        assert not dead.renew()
        assert alive.renew()
        assert alive.release()

    def test_limits_beside_a_slot_are_all_or_nothing(self, limiter: Limiter) -> None:
        slot = limiter.slot("k", self.limit, "1/minute")
        assert slot.acquire().allowed
        refused = limiter.slot("k", self.limit, "1/minute").acquire()
        assert str(refused.limit) == "1/minute"
        assert limiter.slot("k", self.limit).acquire().remaining == 0  # none was taken above

    def test_is_renewed_while_it_is_held(self) -> None:
        limit = Concurrency(1, lease=2)
        with Limiter() as limiter:
            with limiter.slot("k", limit):
                for _ in range(3):  # the last is within a lease that was lengthened
                    assert is_renewed(Threaded(limiter), "k", limit)
            assert limiter.slot("k", limit).acquire().allowed

    def test_async_is_renewed_while_it_is_held(self) -> None:
        limit = Concurrency(1, lease=2)
        with asyncio.Runner() as runner:
            limiter = Blocking(AsyncLimiter(), runner)
            with limiter.slot("k", limit) as held:
                for _ in range(3):
                    assert is_renewed(limiter, "k", limit)
                assert held.renew()
            with (
                pytest.raises(RateLimitExceeded),
                limiter.slot("k", limit),
                limiter.slot("k", limit),
            ):
                raise AssertionError("unreachable")
            assert limiter.slot("k", limit).acquire().allowed
            limiter.close()

    def test_a_slot_lost_while_held_is_said_in_the_log(
        self, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        with (
            caplog.at_level(logging.WARNING, logger="limen"),
            Limiter(clock=clock) as limiter,
            limiter.slot("k", Concurrency(1, lease=0.03)),
        ):
            clock.advance(1)
            wait_until(lambda: "was lost: its lease ended before it was renewed" in caplog.text)

    def test_a_slot_is_freed_when_the_wait_for_a_leaky_bucket_is_cut_short(self) -> None:
        limits = (Concurrency(1, lease=30), "1/s leaky_bucket burst 5")

        async def run() -> bool:
            limiter = AsyncLimiter()
            await limiter.check("k", limits[1])

            async def hold() -> None:
                async with limiter.slot("k", *limits):
                    raise AssertionError("unreachable")

            holding = asyncio.create_task(hold())
            await asyncio.sleep(0.01)
            holding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await holding
            return (await limiter.slot("k", limits[0]).acquire()).allowed

        assert asyncio.run(run())

        class Interrupted(ManualClock):
            def sleep(self, seconds: float) -> None:
                raise KeyboardInterrupt

        limiter = Limiter(clock=Interrupted())
        limiter.check("k", limits[1])
        with pytest.raises(KeyboardInterrupt), limiter.slot("k", *limits):
            raise AssertionError("unreachable")
        assert limiter.slot("k", limits[0]).acquire().allowed

    def test_slots_are_renewed_in_the_child_of_a_fork_too(self) -> None:
        limit = Concurrency(1, lease=2)
        limiter = Limiter()
        with limiter.slot("parent", limit):
            pass  # the thread that renews has begun

        def work() -> bool:
            with limiter.slot("child", limit):
                return is_renewed(Threaded(limiter), "child", limit)

        assert in_child(work)

    def test_the_child_of_a_fork_waits_for_no_lock_of_its_parent(self) -> None:
        limiter = Limiter()
        is_held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with limiter._keeper._changed:
                is_held.set()
                done.wait(90)

        def work() -> bool:
            limiter.close()
            return True

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            assert is_held.wait(10)
            assert in_child(work)
        finally:
            done.set()
            thread.join()

    def test_without_a_thread_that_renews_none_is_held(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limit = Concurrency(1, lease=2)
        limiter = Limiter()
        slot = limiter.slot("k", limit)

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(RuntimeError, match="new thread"), slot:
                raise AssertionError("unreachable")
        with slot:  # it was let go, and there are threads again
            assert is_renewed(Threaded(limiter), "k", limit)

    def test_failed_thread_start_does_not_end_the_renewals(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        renewed: list[str] = []

        def renew(change: Change) -> bool:
            assert isinstance(change, Renew)
            renewed.append(change.holder)
            return True

        keeper = Keeper(renew)
        check = Check(Concurrency(1, lease=0.03), "k")
        keeper.keep(check, ("held", 0))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            renewed.clear()
            wait_until(lambda: len(renewed) > MAX_RENEWALS, interval_s=0.001)
            keeper.drop(("held", 0))
        keeper.keep(check, ("next", 0))
        wait_until(lambda: "next" in renewed, interval_s=0.001)
        keeper.close()

    def test_renewals_start_again_after_their_thread_has_ended(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        renewed = threading.Event()
        keeper = Keeper(lambda _: renewed.set() or True)  # type: ignore[func-returns-value]
        check = Check(Concurrency(1, lease=0.03), "k")
        ended: list[object] = []

        def fail() -> list[Any]:
            raise MemoryError

        monkeypatch.setattr(threading, "excepthook", ended.append)
        with monkeypatch.context() as patch:
            patch.setattr(keeper, "_wait_for_due", fail)
            keeper.keep(check, ("first", 0))
            wait_until(lambda: ended)
        keeper.keep(check, ("second", 0))
        assert renewed.wait(30)
        keeper.close()

    def test_many_slots_are_renewed_by_few_threads(self) -> None:
        lock, done = threading.Lock(), threading.Event()
        renewing, most, renewed = 0, 0, set[str]()

        def renew(change: Change) -> bool:
            nonlocal renewing, most
            assert isinstance(change, Renew)
            with lock:
                renewing += 1
                most = max(most, renewing)
            done.wait(0.002)
            with lock:
                renewing -= 1
                renewed.add(change.holder)
            return True

        keeper = Keeper(renew)
        for number in range(100):
            keeper.keep(Check(Concurrency(1, lease=0.3), f"k{number}"), (f"{number}", 0))
        wait_until(lambda: len(renewed) == 100)
        keeper.close()
        assert 1 < most <= MAX_RENEWALS

    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, SoftTimeLimit])
    def test_exception_of_a_signal_handler_frees_the_slot(
        self, limiter: Limiter, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limit = Concurrency(1, lease=30)
        run = limiter._backend.run

        def interrupted(*arguments: Any) -> Any:
            run(*arguments)  # the slot is granted
            raise kind

        with monkeypatch.context() as patch:
            patch.setattr(limiter._backend, "run", interrupted)
            with pytest.raises(kind), limiter.slot("k", limit):
                raise AssertionError("unreachable")
        assert limiter.slot("k", limit).acquire().allowed

    def test_async_slot_is_freed_when_acquire_fails_after_the_grant(self) -> None:
        limit = Concurrency(1, lease=30)

        async def run() -> bool:
            limiter = AsyncLimiter()
            slot = limiter.slot("k", limit)
            decide = slot._decide

            async def interrupted(*arguments: Any) -> Any:
                await decide(*arguments)
                raise SoftTimeLimit

            slot._decide = interrupted
            with pytest.raises(SoftTimeLimit):
                await slot.acquire()
            return (await limiter.slot("k", limit).acquire()).allowed

        assert asyncio.run(run())

    def test_async_acquire_can_be_closed_without_its_loop(self) -> None:
        slot = AsyncLimiter().slot("k", Concurrency(1, lease=30))

        async def pause() -> None:
            future: asyncio.Future[None] = asyncio.Future(loop=loop)
            await future

        loop = asyncio.new_event_loop()
        slot._decide = lambda *_: pause()
        acquiring = slot.acquire()
        acquiring.send(None)
        loop.close()
        acquiring.close()  # raises if the coroutine waits again

    def test_is_free_when_the_wait_for_its_grant_is_cut_short(
        self, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend, slot = limiter._backend, limiter.slot("k", Concurrency(1, lease=30))
        decide = backend.run

        def interrupted(*arguments: Any) -> Any:
            decide(*arguments)  # it is granted, and nobody hears of it
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(backend, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                limiter.slot("k", Concurrency(1, lease=30)).acquire()
        assert slot.acquire().allowed
        # Who holds it already keeps it.
        with monkeypatch.context() as patch:
            patch.setattr(backend, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                slot.acquire()
        assert not limiter.slot("k", Concurrency(1, lease=30)).acquire().allowed

    def test_one_slot_has_one_holder(self, limiter: Limiter) -> None:
        slot = limiter.slot("k", self.limit)
        with slot:
            with pytest.raises(InvalidInput, match="held already"), slot:
                raise AssertionError("unreachable")
            assert limiter.slot("k", self.limit).acquire().remaining == 0
        with slot:
            pass

        async def run() -> None:
            slot = AsyncLimiter().slot("k", self.limit)
            async with slot:
                with pytest.raises(InvalidInput, match="held already"):
                    async with slot:
                        raise AssertionError("unreachable")
            async with slot:
                pass

        asyncio.run(run())

    def test_wants_a_concurrency(self, limiter: Limiter) -> None:
        with pytest.raises(InvalidInput, match="expected a Concurrency"):
            limiter.slot("k", "10/minute")  # type: ignore[arg-type]  # that it fails is the point


class TestDecorator:
    def test_counts_the_values_of_an_argument_apart(self, limiter: Limiter) -> None:
        @limiter.limit("1/minute", key="user_id")
        def greet(greeting: str, user_id: int = 0) -> str:
            """Say hello."""
            return f"{greeting} {user_id}"

        assert greet("hi", 1) == "hi 1"
        assert greet("hi", user_id=2) == "hi 2"
        assert greet("hi") == "hi 0"
        for call in (
            functools.partial(greet, "hi", user_id=1),
            functools.partial(greet, "hi", 2),
            functools.partial(greet, "hi"),
        ):
            with pytest.raises(RateLimitExceeded):
                call()
        assert greet.__doc__ == "Say hello."

    def test_two_functions_do_not_share_the_values_of_an_argument(self, limiter: Limiter) -> None:
        @limiter.limit("1/minute", key="number")
        def one(number: int) -> int:
            return number

        @limiter.limit("1/minute", key="number")
        def two(number: int) -> int:
            return number

        assert one(1) == two(1) == 1

    def test_takes_the_key_from_a_function_as_it_is(self, limiter: Limiter) -> None:
        @limiter.limit("1/minute", key=lambda user: f"user:{user}")
        def act(user: str) -> str:
            return user

        act("a")
        assert not limiter.check("user:a", "1/minute").allowed

    def test_a_caller_cannot_choose_the_key_of_a_positional_argument(
        self, limiter: Limiter
    ) -> None:
        @limiter.limit("1/minute", key="user")
        def act(user: str, /, **rest: str) -> str:
            return user

        act("a")
        with pytest.raises(RateLimitExceeded):
            act("a", user="somebody else")

    def test_without_a_key_all_calls_count_together(self, limiter: Limiter) -> None:
        @limiter.limit("1/minute")
        def act(number: int) -> int:
            return number

        act(1)
        with pytest.raises(RateLimitExceeded):
            act(2)

    def test_wraps_a_partial(self, limiter: Limiter) -> None:
        def add(one: int, two: int) -> int:
            return one + two

        guarded = limiter.limit("1/minute")(functools.partial(add, 1))
        assert guarded(2) == 3
        with pytest.raises(RateLimitExceeded):
            guarded(2)

    def test_a_refused_call_does_not_run(self, limiter: Limiter) -> None:
        ran = list[int]()

        @limiter.limit("2/minute", cost=2)
        def act() -> None:
            ran.append(1)

        act()
        with pytest.raises(RateLimitExceeded):
            act()
        assert ran == [1]

    def test_delays_under_a_leaky_bucket(self, limiter: Limiter, clock: ManualClock) -> None:
        @limiter.limit("2/second leaky_bucket")
        def act() -> float:
            return clock.monotonic()

        start = clock.monotonic()
        assert [act() - start for _ in range(3)] == [0.0, 0.5, 1.0]

    def test_wraps_async_functions_on_both_limiters(self, clock: ManualClock) -> None:
        async def run() -> None:
            for limiter in (Limiter(clock=clock), AsyncLimiter(clock=clock)):

                @limiter.limit("1/minute; 5/second leaky_bucket", key="name")
                async def act(name: str) -> str:
                    return name

                assert inspect.iscoroutinefunction(act)
                assert await act("a") == "a"
                with pytest.raises(RateLimitExceeded):
                    await act("a")
                assert await act("b") == "b"

        asyncio.run(run())

    def test_a_sync_function_under_an_async_limiter_is_an_error(self) -> None:
        with pytest.raises(ConfigurationError, match="use Limiter for it"):

            @AsyncLimiter().limit("1/minute")  # type: ignore[arg-type]  # that it fails is the point
            def act() -> None: ...

    def test_mistakes_are_found_when_decorating(self, limiter: Limiter) -> None:
        def act(user: str, *rest: str) -> None: ...

        with pytest.raises(ConfigurationError, match=r"has no argument 'usr'; it has: user, rest"):
            limiter.limit("1/minute", key="usr")(act)
        with pytest.raises(ConfigurationError, match="holds many values"):
            limiter.limit("1/minute", key="rest")(act)
        with pytest.raises(ConfigurationError, match="name of an argument or a function"):
            limiter.limit("1/minute", key=5)(act)  # type: ignore[arg-type]  # as above
        with pytest.raises(InvalidLimit):
            limiter.limit("1/minutes-ish")
        with pytest.raises(InvalidInput):
            limiter.limit(Limit(1, 60), cost=-1)

    def test_a_key_argument_must_have_a_text_of_its_own(self, limiter: Limiter) -> None:
        @limiter.limit("1/minute", key="value")
        def act(value: object) -> None: ...

        act(b"a")
        for bad in (None, 1.5, True, object()):
            with pytest.raises(InvalidInput, match="must be text, bytes or a whole number"):
                act(bad)
        with pytest.raises(TypeError, match="missing"):
            act()  # type: ignore[call-arg]  # that it fails is the point


def test_slots_on_a_store_that_hangs_hold_up_no_other_renewal() -> None:
    # As with two nodes of which one is frozen: each renewal there takes its whole deadline.
    renewed: list[str] = []

    def change(change: Change) -> bool:
        assert isinstance(change, Renew)
        if change.holder.startswith("frozen"):
            time.sleep(0.1)
            raise StoreError("no answer in time")
        renewed.append(change.holder)
        return True

    keeper = Keeper(change)
    check = Check(Concurrency(100, lease=0.6), "k")
    for number in range(20):
        keeper.keep(check, (f"frozen{number}", 0))
    keeper.keep(check, ("healthy", 0))
    time.sleep(0.55)
    keeper.close()
    # Renewals that have not ended would log during the next test.
    for thread in threading.enumerate():
        if thread.name == "limen":
            thread.join(10)
    assert renewed, "one after the other, the healthy one would have waited for two seconds"


def test_a_slot_that_is_let_go_while_it_is_renewed_is_not_left_with_nobody() -> None:
    """The store may grant anew what was granted here, behind the release that found nothing."""
    seen: list[Change] = []
    released = threading.Event()

    def change(change: Change) -> bool:
        seen.append(change)
        if isinstance(change, Renew):
            keeper.drop(("somebody", 0))
        else:
            released.set()
        return True

    keeper = Keeper(change)
    check = Check(Concurrency(1, lease=0.3), "k")
    keeper.keep(check, ("somebody", 0))
    assert released.wait(10)
    assert seen == [Renew(check, "somebody"), Release(check, "somebody")]
    keeper.close()


def test_what_is_held_when_a_keeper_is_closed_ends_with_its_lease() -> None:
    seen: list[Change] = []
    done = threading.Event()

    def change(change: Change) -> bool:
        seen.append(change)
        keeper.close()
        done.set()
        return True

    keeper = Keeper(change)
    keeper.keep(Check(Concurrency(1, lease=0.3), "k"), ("somebody", 0))
    assert done.wait(10)
    time.sleep(0.1)
    assert [type(each) for each in seen] == [Renew]
