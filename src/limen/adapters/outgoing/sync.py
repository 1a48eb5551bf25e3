"""`Gate`: lets requests out when their limits and their servers allow it, for threads.

The asyncio twin is `limen.adapters.outgoing.aio`. Knows no HTTP library: of a request it reads the
address, of a response the status and the headers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from limen.adapters.outgoing.learn import pause_asked
from limen.adapters.outgoing.pace import Pauses, Turn
from limen.adapters.outgoing.refused import RateLimited
from limen.adapters.outgoing.settings import Settings, clock_of, failed, origin
from limen.adapters.plan import plain
from limen.client import AsyncClient, Client
from limen.errors import ConfigurationError, RateLimitExceeded
from limen.limiter import AsyncLimiter, Limiter
from limen.model import Decision
from limen.wire import Verdict


class Gate:
    """Lets requests out when their limits and their servers allow it. Shared by all threads."""

    def __init__(
        self, limiter: Limiter | Client, settings: Settings, error: type[RateLimited]
    ) -> None:
        if isinstance(limiter, AsyncLimiter | AsyncClient):
            raise ConfigurationError(
                f"RateLimitTransport takes a Limiter or a Client; for an {type(limiter).__name__} "
                "there is AsyncRateLimitTransport"
            )
        if not isinstance(limiter, Limiter | Client):
            # Not the value itself: it may be an address with a password.
            raise ConfigurationError(
                "RateLimitTransport takes a Limiter or a Client, such as Limiter('redis://...'), "
                f"got a {type(limiter).__name__}"
            )
        settings.refuse_async()
        self._limiter = limiter
        self._refund: Callable[[Any], bool] = limiter.refund
        self._settings = settings
        self._error = error
        self._clock = clock_of(limiter)
        self._pauses = Pauses(settings.max_pause)

    def admit(self, request: Any) -> str | None:
        """Wait until a request may be sent; return its key, or None when it is exempt.

        Raises what it was made with as soon as it is clear that the wait would be too long.
        """
        settings = self._settings
        exempt_when, cost = settings.exempt_when, settings.cost
        if exempt_when is not None and self._ask("exempt_when", exempt_when, request):
            return None
        if settings.key == "host":
            key = origin(request)
        else:
            key = settings.key_from(self._ask("key", settings.key, request))
        if callable(cost):
            cost = settings.cost_from(self._ask("cost", cost, request))
        self._wait(key, cost)
        return key

    def learn(self, key: str | None, status: int, headers: Mapping[str, str]) -> None:
        """Listen to what a server says in its response to a request that was let out."""
        if key is None or not self._settings.learn:
            return
        seconds = pause_asked(status, headers, self._clock.time_ns() / 1e9)
        if seconds is not None:
            self._pauses.begin(key, seconds, self._clock.monotonic())

    def _wait(self, key: str, cost: int) -> None:
        clock = self._clock
        wait = self._settings.wait
        turn = Turn(self._pauses, key, self._error, wait, clock.monotonic())
        while True:
            while pause := turn.pause(clock.monotonic()):
                clock.sleep(pause)
            if not self._settings.limits:
                return
            answer = self._acquire(turn, key, cost)
            if not turn.is_held(clock.monotonic()):
                return
            # Meanwhile the server has asked for a pause. What was counted before it must not be
            # sent after it, together with all that is counted then.
            self._refund(answer)

    def _acquire(self, turn: Turn, key: str, cost: int) -> Decision | Verdict:
        # Who never waits does not stand in line either: that it is somebody else's turn is no
        # reason to refuse what there is room for.
        if isinstance(self._limiter, Client) or not self._settings.waits:
            return self._poll(turn, key, cost)
        left = turn.left(self._clock.monotonic())
        try:
            return self._limiter.acquire(key, *self._settings.limits, cost=cost, timeout=left)
        except RateLimitExceeded as error:
            raise turn.refusal(error.decision) from error

    def _poll(self, turn: Turn, key: str, cost: int) -> Decision | Verdict:
        while True:
            answer = self._limiter.check(key, *self._settings.limits, cost=cost)
            if answer.allowed and not answer.delay:
                return answer
            try:
                self._clock.sleep(turn.delay(answer, self._clock.monotonic()))
            except BaseException:
                if answer.allowed:
                    self._refund(answer)
                raise
            if answer.allowed:
                return answer

    def _ask(self, name: str, function: Callable[[Any], object], request: Any) -> object:
        try:
            return plain(function, request)
        except ConfigurationError:
            raise
        except Exception as error:
            raise failed(name, function, error) from error
