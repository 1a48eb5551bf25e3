"""Storages of `limits`: `LimenStorage` for threads, `AsyncLimenStorage` for asyncio."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ClassVar

from limits.aio import storage as aio
from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage

from limen.adapters.limits import settings, windows
from limen.adapters.limits.settings import SCHEMES
from limen.adapters.limits.windows import Window
from limen.clock import Clock
from limen.errors import StoreError
from limen.flow import Flow, run, run_async
from limen.limiter import AsyncLimiter, Limiter
from limen.model import Decision


def _verb(flow: Callable[..., Flow[Any]]) -> Callable[..., Any]:
    """Make a verb of a flow: on asyncio it returns an awaitable."""

    @wraps(flow)
    def verb(self: StorageFlows, *args: Any, **kwargs: Any) -> Any:
        made = flow(self, *args, **kwargs)
        return run(made) if self._kind is Limiter else run_async(made)

    return verb


class StorageFlows:
    """The verbs of a storage."""

    _kind: ClassVar[Any]

    def __init__(
        self,
        uri: str = "limen+memory://",
        wrap_exceptions: bool = False,
        *,
        clock: Clock | None = None,
        **options: object,
    ) -> None:
        super().__init__(uri, wrap_exceptions)  # type: ignore[call-arg]  # of a storage of `limits`
        self._clock = clock
        with settings.errors_of_limits():
            self._settings = settings.read(uri, options)
            self._limiter: Any = self._settings.open(self._kind, clock)

    @property
    def storage(self) -> Any:
        """The limiter that decides, under the name that storages of `limits` have for their client.

        `flask limiter config` shows it.
        """
        return self._limiter

    @property
    def base_exceptions(self) -> type[Exception]:
        """What is raised when the store does not answer, by those verbs that raise then."""
        return StoreError

    @_verb
    def incr(self, key: str, expiry: float, amount: int = 1) -> Flow[int]:
        """Count a hit in a fixed window if it fits; return the count, or one beyond the quota."""
        window = windows.fixed(key, expiry)
        if not window.holds(amount):
            return amount
        return window.counted_by((yield from self._hit(key, window, amount)), amount)

    @_verb
    def get(self, key: str) -> Flow[int]:
        """Return how many hits are counted in a fixed window."""
        window = windows.fixed(key)
        return window.counted((yield from self._peek(key, window)))

    @_verb
    def get_expiry(self, key: str) -> Flow[float]:
        """Return when a fixed window ends, in seconds since 1970; now, when nothing is counted."""
        window = windows.fixed(key)
        return window.ends((yield from self._peek(key, window)), self._now())

    @_verb
    def acquire_entry(self, key: str, limit: int, expiry: float, amount: int = 1) -> Flow[bool]:
        """Count a hit in a moving window if it fits; return whether it did."""
        window = windows.moving(limit, expiry)
        return window.holds(amount) and (yield from self._hit(key, window, amount)).allowed

    @_verb
    def get_moving_window(self, key: str, limit: int, expiry: float) -> Flow[tuple[float, int]]:
        """Return when the oldest hit in view was made, and how many are in view."""
        window = windows.moving(limit, expiry)
        return window.moving((yield from self._peek_at_next(key, window)), self._now())

    @_verb
    def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: float, amount: int = 1
    ) -> Flow[bool]:
        """Count a hit in a sliding window if it fits; return whether it did."""
        window = self._sliding(key, expiry)
        return window.holds(amount) and (yield from self._hit(key, window, amount)).allowed

    @_verb
    def get_sliding_window(self, key: str, expiry: float) -> Flow[tuple[int, float, int, float]]:
        """Return the estimate of a sliding window, all of it told as the current window.

        That is 0 and 0.0 for the previous window, then the hits counted, and the seconds until one
        of them is set free.
        """
        window = self._sliding(key, expiry)
        return window.sliding((yield from self._peek_at_next(key, window)))

    @_verb
    def clear(self, key: str) -> Flow[None]:
        """Forget all that was counted for a key, by any strategy.

        Raises `StoreError` when the store does not answer.
        """
        yield self._limiter.forget(*windows.all_of(key, self._settings.instances))

    def clear_sliding_window(self, key: str, expiry: float) -> Any:
        """Do the same."""
        return self.clear(key)

    @_verb
    def check(self) -> Flow[bool]:
        """Return whether the store answers. It may take seconds to find out that it does not."""
        try:
            yield self._limiter.ping()
        except StoreError:
            return False
        return True

    @_verb
    def reset(self) -> Flow[None]:
        """Forget everything, in this process; raise `NotImplementedError` for a shared store."""
        if not self._settings.in_memory:
            raise NotImplementedError(windows.NO_RESET)
        self._limiter = self._settings.open(self._kind, self._clock)
        yield from ()

    def _sliding(self, key: str, expiry: float) -> Window:
        return windows.sliding(key, expiry, self._settings.instances)

    def _hit(self, key: str, window: Window, amount: int) -> Flow[Decision]:
        decision = yield self._limiter.check(key, window.limit, cost=amount * window.unit)
        return self._settings.accepted(decision)

    def _peek(self, key: str, window: Window, cost: int = 1) -> Flow[Decision]:
        decision = yield self._limiter.peek(key, window.limit, cost=cost)
        return self._settings.accepted(decision)

    def _peek_at_next(self, key: str, window: Window) -> Flow[Decision]:
        return windows.peek_at_next(window, partial(self._peek, key, window))

    def _now(self) -> float:
        # Read after the store has answered: who waits until then does not come too early.
        return time.time() if self._clock is None else self._clock.time_ns() / 1e9


class LimenStorage(StorageFlows, Storage, MovingWindowSupport, SlidingWindowCounterSupport):
    """Decides for the strategies of `limits`, on a limiter of limen. Safe to share between threads.

    ```python
    storage = storage_from_string("limen+redis://localhost:6379?on_error=raise")
    strategy = MovingWindowRateLimiter(storage)
    strategy.hit(parse("10/minute"), "user", "42")
    ```

    Options are those of `Settings`. A `clock` is for tests on `limen+memory://`. Raises
    `ConfigurationError` for an address or an option that makes no sense.
    """

    STORAGE_SCHEME: list[str] | None = list(SCHEMES)  # noqa: RUF012
    _kind = Limiter

    def close(self) -> None:
        """Let go of the store."""
        self._limiter.close()


class AsyncLimenStorage(
    StorageFlows, aio.Storage, aio.MovingWindowSupport, aio.SlidingWindowCounterSupport
):
    """Decides for the strategies of `limits.aio`, on a limiter of limen. Safe between tasks.

    ```python
    storage = storage_from_string("async+limen+redis://localhost:6379")
    strategy = MovingWindowRateLimiter(storage)
    await strategy.hit(parse("10/minute"), "user", "42")
    ```

    The verbs and options are those of `LimenStorage`, and mean the same.
    """

    STORAGE_SCHEME: list[str] | None = [f"async+{scheme}" for scheme in SCHEMES]  # noqa: RUF012
    _kind = AsyncLimiter

    async def aclose(self) -> None:
        """Let go of the store."""
        await self._limiter.aclose()
