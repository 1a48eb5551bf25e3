"""`AsyncLimenStorage`: a storage of `limits.aio`. The twin for threads is `sync`."""

from __future__ import annotations

import time
from functools import partial

from limits.aio.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage

from limen.adapters.limits import settings, windows
from limen.adapters.limits.windows import Window
from limen.clock import Clock
from limen.errors import StoreError
from limen.flow import run_async
from limen.limiter import AsyncLimiter
from limen.model import Decision


class AsyncLimenStorage(Storage, MovingWindowSupport, SlidingWindowCounterSupport):
    """Decides for the strategies of `limits.aio`, on a limiter of limen. Safe between tasks.

    ```python
    storage = storage_from_string("async+limen+redis://localhost:6379")
    strategy = MovingWindowRateLimiter(storage)
    await strategy.hit(parse("10/minute"), "user", "42")
    ```

    The verbs and options are those of `LimenStorage`, and mean the same.
    """

    STORAGE_SCHEME: list[str] | None = [f"async+{scheme}" for scheme in settings.SCHEMES]  # noqa: RUF012

    def __init__(
        self,
        uri: str = "async+limen+memory://",
        wrap_exceptions: bool = False,
        *,
        clock: Clock | None = None,
        **options: object,
    ) -> None:
        super().__init__(uri, wrap_exceptions)
        self._clock = clock
        with settings.errors_of_limits():
            self._settings = settings.read(uri, options)
            self._limiter = self._settings.open(AsyncLimiter, clock)

    @property
    def storage(self) -> AsyncLimiter:
        """The limiter that decides, under the name that storages of `limits` have for their client.

        `flask limiter config` shows it.
        """
        return self._limiter

    @property
    def base_exceptions(self) -> type[Exception]:
        """What is raised when the store does not answer, by those verbs that raise then."""
        return StoreError

    async def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        """Count a hit in a fixed window if it fits; return the count, or one beyond the quota."""
        window = windows.fixed(key, expiry)
        if not window.holds(amount):
            return amount
        return window.counted_by(await self._hit(key, window, amount), amount)

    async def get(self, key: str) -> int:
        """Return how many hits are counted in a fixed window."""
        window = windows.fixed(key)
        return window.counted(await self._peek(key, window))

    async def get_expiry(self, key: str) -> float:
        """Return when a fixed window ends, in seconds since 1970; now, when nothing is counted."""
        window = windows.fixed(key)
        return window.ends(await self._peek(key, window), self._now())

    async def acquire_entry(self, key: str, limit: int, expiry: float, amount: int = 1) -> bool:
        """Count a hit in a moving window if it fits; return whether it did."""
        window = windows.moving(limit, expiry)
        return window.holds(amount) and (await self._hit(key, window, amount)).allowed

    async def get_moving_window(self, key: str, limit: int, expiry: float) -> tuple[float, int]:
        """Return when the oldest hit in view was made, and how many are in view."""
        window = windows.moving(limit, expiry)
        return window.moving(await self._peek_at_next(key, window), self._now())

    async def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: float, amount: int = 1
    ) -> bool:
        """Count a hit in a sliding window if it fits; return whether it did."""
        window = self._sliding(key, expiry)
        return window.holds(amount) and (await self._hit(key, window, amount)).allowed

    async def get_sliding_window(self, key: str, expiry: float) -> tuple[int, float, int, float]:
        """Return the estimate of a sliding window, all of it told as the current window.

        That is 0 and 0.0 for the previous window, then the hits counted, and the seconds until one
        of them is set free.
        """
        window = self._sliding(key, expiry)
        return window.sliding(await self._peek_at_next(key, window))

    async def clear(self, key: str) -> None:
        """Forget all that was counted for a key, by any strategy.

        Raises `StoreError` when the store does not answer.
        """
        await self._limiter.forget(*windows.all_of(key, self._settings.instances))

    async def clear_sliding_window(self, key: str, expiry: float) -> None:
        """Do the same."""
        await self.clear(key)

    async def check(self) -> bool:
        """Return whether the store answers. It may take seconds to find out that it does not."""
        try:
            await self._limiter.ping()
        except StoreError:
            return False
        return True

    async def reset(self) -> int | None:
        """Forget everything, in this process; raise `NotImplementedError` for a shared store."""
        if not self._settings.in_memory:
            raise NotImplementedError(windows.NO_RESET)
        self._limiter = self._settings.open(AsyncLimiter, self._clock)
        return None

    async def aclose(self) -> None:
        """Let go of the store."""
        await self._limiter.aclose()

    def _sliding(self, key: str, expiry: float) -> Window:
        return windows.sliding(key, expiry, self._settings.instances)

    async def _hit(self, key: str, window: Window, amount: int) -> Decision:
        decision = await self._limiter.check(key, window.limit, cost=amount * window.unit)
        return self._settings.accepted(decision)

    async def _peek(self, key: str, window: Window, cost: int = 1) -> Decision:
        return self._settings.accepted(await self._limiter.peek(key, window.limit, cost=cost))

    async def _peek_at_next(self, key: str, window: Window) -> Decision:
        return await run_async(windows.peek_at_next(window, partial(self._peek, key, window)))

    def _now(self) -> float:
        # Read after the store has answered: who waits until then does not come too early.
        return time.time() if self._clock is None else self._clock.time_ns() / 1e9
