"""`Gate`: sends requests when their limits and their servers allow it, on threads and on asyncio.

Knows no HTTP library: of a request it reads the address, of a response the status and the headers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from limen._internal.functions import call_async, call_sync, is_async, name_of
from limen.adapters.deciders import kind_of
from limen.adapters.limit import cost_from
from limen.adapters.outgoing.learn import pause_asked
from limen.adapters.outgoing.pace import Pauses, RateLimited, Turn
from limen.clock import Clock, SystemClock
from limen.ending import to_the_end
from limen.errors import ConfigurationError, RateLimitExceeded, shown
from limen.flow import Flow
from limen.limiter.plan import Limits
from limen.model import Decision, Limit, valid_cost
from limen.wire import Verdict

_YEAR_S = 366 * 86_400
Function = Callable[[Any], Any]
Answer = Decision | Verdict


class Settings(Struct, frozen=True):
    """What a transport was made with. Raises `ConfigurationError` for what makes no sense."""

    limits: tuple[Limit | str, ...]
    """What may be sent. Nothing here: only the servers are listened to."""
    key: Any
    """`"host"`, or a function of the request."""
    cost: Any
    """A number, or a function of the request."""
    exempt_when: Any
    """None, or a function of the request."""
    wait: float | None
    """For how many seconds a request may wait; 0 is never, None without end."""
    learn: bool
    """Whether servers are listened to."""
    max_pause: float
    """The longest pause, in seconds, that a server can ask for."""

    def __post_init__(self) -> None:
        if self.limits:
            Limits().checks(self.limits, "any", 1)
        if self.key != "host" and not callable(self.key):
            # Not the value itself: it may be the key of an API.
            raise ConfigurationError(
                "key must be 'host', or a function of the request that returns text, "
                f"got {'other text' if isinstance(self.key, str) else type(self.key).__name__}"
            )
        if not callable(self.cost):
            valid_cost(self.cost)
        if self.exempt_when is not None and not callable(self.exempt_when):
            raise ConfigurationError(
                f"exempt_when must be a function of the request, got {shown(self.exempt_when)}"
            )
        if self.wait is not None and (
            self.wait is True or not isinstance(self.wait, int | float) or not self.wait >= 0
        ):
            raise ConfigurationError(
                f"wait must be seconds from 0, or None to wait without end, got {shown(self.wait)}"
            )
        if not isinstance(self.learn, bool):
            raise ConfigurationError(f"learn must be True or False, got {shown(self.learn)}")
        if (
            isinstance(self.max_pause, bool)
            or not isinstance(self.max_pause, int | float)
            or not 0 < self.max_pause <= _YEAR_S
        ):
            raise ConfigurationError(
                f"max_pause must be seconds above 0, a year at most, got {shown(self.max_pause)}"
            )

    @property
    def waits(self) -> bool:
        """Whether a request may wait at all."""
        return self.wait is None or self.wait > 0

    def refuse_async(self) -> None:
        """Raise `ConfigurationError` if a function is async, for a transport of threads."""
        for function in (self.key, self.cost, self.exempt_when):
            if is_async(function):
                raise ConfigurationError(
                    f"{name_of(function)} is async, and a transport of threads cannot await it; "
                    "use a function that is not, or AsyncRateLimitTransport"
                )

    def key_from(self, answer: object) -> str:
        """Return what a key function answered, or raise an error that names it."""
        if isinstance(answer, str) and answer:
            return answer
        # Not the answer itself: it may be a secret.
        got = "None" if answer is None else "empty text" if answer == "" else type(answer).__name__
        raise ConfigurationError(
            f"the key function {name_of(self.key)} returned {got}, and not text; to leave a "
            "request uncounted use exempt_when"
        )


def origin(request: Any) -> str:
    """Return whom a request goes to: `https://api.example.com`, with a port that is not usual."""
    return f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"


def failed(name: str, function: Callable[..., object], error: Exception) -> ConfigurationError:
    """Return what to raise when a function of the user's own raises.

    Without what that error says, which may be a secret; it is there as the cause.
    """
    return ConfigurationError(
        f"the function {name_of(function)}, given as {name}=, raised {type(error).__name__}"
    )


class Gate:
    """Sends requests when limits and servers allow it. Shared by all threads, or by all loops."""

    def __init__(
        self, limiter: Any, settings: Settings, error: type[RateLimited], *, is_async: bool
    ) -> None:
        kind = kind_of(limiter, is_async=is_async)
        if kind == "engine":
            raise ConfigurationError(
                "a transport has no attributes for rules; give it the limiter of the engine"
            )
        self._limiter = limiter
        self._settings = settings
        self._error = error
        # The one of the limiter, so that a clock that is set by hand is set for all of it.
        self._clock: Clock = limiter.clock if kind == "limiter" else SystemClock()
        # A request that never waits does not queue either: that it is the turn of another one is
        # no reason to refuse what there is room for.
        self._queues = kind == "limiter" and settings.waits
        self._pauses = Pauses(settings.max_pause)
        self._is_async = is_async
        if not is_async:
            settings.refuse_async()

    def send(self, request: Any, sender: Function) -> Flow[Any]:
        """Send a request by `sender` when its time has come; return the response."""
        key = yield from self.admit(request)
        response = yield sender(request)
        self.learn(key, response.status_code, response.headers)
        return response

    def admit(self, request: Any) -> Flow[str | None]:
        """Wait until a request may be sent; return its key, or None when it is exempt.

        Raises the error of the transport as soon as it is clear that the wait would be too long.
        """
        if self._is_async:
            _need_asyncio()
        settings = self._settings
        exempt_when, cost = settings.exempt_when, settings.cost
        if exempt_when is not None and (yield from self._ask("exempt_when", exempt_when, request)):
            return None
        if settings.key == "host":
            key = origin(request)
        else:
            key = settings.key_from((yield from self._ask("key", settings.key, request)))
        if callable(cost):
            cost = cost_from(cost, (yield from self._ask("cost", cost, request)))
        yield from self._wait(key, cost)
        return key

    def learn(self, key: str | None, status: int, headers: Mapping[str, str]) -> None:
        """Listen to what a server says in its response to a request that was sent."""
        if key is None or not self._settings.learn:
            return
        seconds = pause_asked(status, headers, self._clock.time_ns() / 1e9)
        if seconds is not None:
            self._pauses.begin(key, seconds, self._clock.monotonic())

    def _wait(self, key: str, cost: int) -> Flow[None]:
        clock = self._clock
        turn = Turn(self._pauses, key, self._error, self._settings.wait, clock.monotonic())
        while True:
            while pause := turn.pause(clock.monotonic()):
                yield self._sleep(pause)
            if not self._settings.limits:
                return
            answer = yield from self._acquire(turn, key, cost)
            if not turn.is_held(clock.monotonic()):
                return
            # Meanwhile the server has asked for a pause. What was counted before it must not be
            # sent after it, together with all that is counted then.
            yield self._refund(answer)

    def _acquire(self, turn: Turn, key: str, cost: int) -> Flow[Answer]:
        if not self._queues:
            return (yield from self._poll(turn, key, cost))
        left = turn.left(self._clock.monotonic())
        limits = self._settings.limits
        try:
            answer: Answer = yield self._limiter.acquire(key, *limits, cost=cost, timeout=left)
        except RateLimitExceeded as error:
            raise turn.refusal(error.decision) from error
        return answer

    def _poll(self, turn: Turn, key: str, cost: int) -> Flow[Answer]:
        while True:
            answer: Answer = yield self._limiter.check(key, *self._settings.limits, cost=cost)
            if answer.allowed and not answer.delay:
                return answer
            try:
                yield self._sleep(turn.delay(answer, self._clock.monotonic()))
            except BaseException:
                if answer.allowed:
                    yield self._refund(answer)
                raise
            if answer.allowed:
                return answer

    def _sleep(self, seconds: float) -> Any:
        clock = self._clock
        return clock.sleep_async(seconds) if self._is_async else clock.sleep(seconds)

    def _refund(self, answer: Any) -> Any:
        refund = self._limiter.refund(answer)
        return to_the_end(refund) if self._is_async else refund

    def _ask(self, name: str, function: Function, request: Any) -> Flow[Any]:
        call = call_async if self._is_async else call_sync
        try:
            return (yield call(function, request))
        except ConfigurationError:
            raise
        except Exception as error:
            raise failed(name, function, error) from error


def _need_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            "AsyncRateLimitTransport runs on asyncio, and this is another event loop; run the "
            "client by asyncio, or use RateLimitTransport in a thread"
        ) from None
