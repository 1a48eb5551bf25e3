"""Transports for httpx2 that keep to the limits of the servers they call. Thin: see `outgoing`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Literal, Self

from limen.adapters.missing import missing

try:
    import httpx2
except ImportError as _error:
    raise missing("httpx2", _error) from None

from limen.adapters import outgoing
from limen.client import AsyncClient, Client
from limen.errors import ConfigurationError
from limen.limiter import AsyncLimiter, Limiter
from limen.limiter.decorate import name_of
from limen.model import Limit

__all__ = ["AsyncRateLimitTransport", "RateLimitTransport", "RateLimited"]


class RateLimited(outgoing.RateLimited, httpx2.TransportError):
    """Say that a request was not sent; `retry_after` says in how many seconds it would be.

    It is a `LimenError` and an `httpx2.TransportError`, so that what retries those retries this.
    """


class RateLimitTransport(httpx2.BaseTransport):
    """Sends requests when limits and servers allow it, for `httpx2.Client`.

    ```python
    limiter = Limiter("redis://localhost:6379")
    client = httpx2.Client(transport=RateLimitTransport(limiter, "10/second"))
    ```

    A request waits for its turn, at most `wait` seconds: 0 is never, None without end. What does
    not fit is not sent, and raises `RateLimited` as soon as that is clear. Each `key` is counted
    apart: each host, or whatever a function of the request returns. `cost` is a number or a
    function of the request. What `exempt_when` is true for is neither counted nor held up.

    With `learn`, nothing of a key is sent while its server asks for a pause, by `Retry-After` or
    `RateLimit`; for `max_pause` seconds at most. Without limits, that is all it does.

    `wrapped` does the sending; None is `httpx2.HTTPTransport()`. It is closed with this one. The
    limiter is not: it may have others to serve.
    """

    def __init__(
        self,
        limiter: Limiter | Client,
        *limits: Limit | str,
        key: Literal["host"] | Callable[[httpx2.Request], str] = "host",
        cost: int | Callable[[httpx2.Request], int] = 1,
        exempt_when: Callable[[httpx2.Request], bool] | None = None,
        wait: float | None = 30.0,
        wrapped: httpx2.BaseTransport | None = None,
        learn: bool = True,
        max_pause: float = 300.0,
    ) -> None:
        settings = outgoing.Settings(limits, key, cost, exempt_when, wait, learn, max_pause)
        self._gate = outgoing.Gate(limiter, settings, RateLimited)
        if wrapped is not None and not isinstance(wrapped, httpx2.BaseTransport):
            raise ConfigurationError(
                f"wrapped must be an httpx2.BaseTransport, got a {name_of(type(wrapped))}"
            )
        self._wrapped = wrapped if wrapped is not None else httpx2.HTTPTransport()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request when its time has come, or raise `RateLimited`."""
        key = self._gate.admit(request)
        response = self._wrapped.handle_request(request)
        self._gate.learn(key, response.status_code, response.headers)
        return response

    def close(self) -> None:
        """Close the wrapped transport."""
        self._wrapped.close()

    def __enter__(self) -> Self:
        self._wrapped.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._wrapped.__exit__(exc_type, exc_value, traceback)


class AsyncRateLimitTransport(httpx2.AsyncBaseTransport):
    """Sends requests when limits and servers allow it, for `httpx2.AsyncClient` on asyncio.

    ```python
    limiter = AsyncLimiter("redis://localhost:6379")
    client = httpx2.AsyncClient(transport=AsyncRateLimitTransport(limiter, "10/second"))
    ```

    The settings are those of `RateLimitTransport`, and mean the same. The functions may be async.
    """

    def __init__(
        self,
        limiter: AsyncLimiter | AsyncClient,
        *limits: Limit | str,
        key: Literal["host"] | Callable[[httpx2.Request], str | Awaitable[str]] = "host",
        cost: int | Callable[[httpx2.Request], int | Awaitable[int]] = 1,
        exempt_when: Callable[[httpx2.Request], bool | Awaitable[bool]] | None = None,
        wait: float | None = 30.0,
        wrapped: httpx2.AsyncBaseTransport | None = None,
        learn: bool = True,
        max_pause: float = 300.0,
    ) -> None:
        settings = outgoing.Settings(limits, key, cost, exempt_when, wait, learn, max_pause)
        self._gate = outgoing.AsyncGate(limiter, settings, RateLimited)
        if wrapped is not None and not isinstance(wrapped, httpx2.AsyncBaseTransport):
            raise ConfigurationError(
                f"wrapped must be an httpx2.AsyncBaseTransport, got a {name_of(type(wrapped))}"
            )
        self._wrapped = wrapped if wrapped is not None else httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request when its time has come, or raise `RateLimited`."""
        key = await self._gate.admit(request)
        response = await self._wrapped.handle_async_request(request)
        self._gate.learn(key, response.status_code, response.headers)
        return response

    async def aclose(self) -> None:
        """Close the wrapped transport."""
        await self._wrapped.aclose()

    async def __aenter__(self) -> Self:
        await self._wrapped.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._wrapped.__aexit__(exc_type, exc_value, traceback)
