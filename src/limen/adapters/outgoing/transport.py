"""The transports of both libraries: httpx and its successor httpx2 have the same interface.

`limen.adapters.httpx` and `limen.adapters.httpx2` declare them with the types of their library.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any, Generic, Literal, Self, TypeVar

from limen._internal.functions import name_of
from limen.adapters.outgoing.gate import Gate, Settings
from limen.adapters.outgoing.pace import RateLimited
from limen.client import AsyncClient, Client
from limen.errors import ConfigurationError
from limen.flow import run, run_async
from limen.limiter import AsyncLimiter, Limiter
from limen.model import Limit

LimiterT = TypeVar("LimiterT", bound=Limiter | Client | AsyncLimiter | AsyncClient)
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
WrappedT = TypeVar("WrappedT")


class _Transport(Generic[LimiterT, RequestT, WrappedT]):
    """What a transport is made with."""

    _library: ModuleType
    _error: type[RateLimited]
    """The `RateLimited` that is an error of the library too."""
    _is_async: bool

    def __init__(
        self,
        limiter: LimiterT,
        *limits: Limit | str,
        key: Literal["host"] | Callable[[RequestT], str | Awaitable[str]] = "host",
        cost: int | Callable[[RequestT], int | Awaitable[int]] = 1,
        exempt_when: Callable[[RequestT], bool | Awaitable[bool]] | None = None,
        wait: float | None = 30.0,
        wrapped: WrappedT | None = None,
        learn: bool = True,
        max_pause: float = 300.0,
    ) -> None:
        settings = Settings(limits, key, cost, exempt_when, wait, learn, max_pause)
        self._gate = Gate(limiter, settings, self._error, is_async=self._is_async)
        self._wrapped: Any = self._sender(wrapped)

    def _sender(self, wrapped: object) -> object:
        """Return the transport that sends: the given one, or a new one of the library."""
        library, prefix = self._library, "Async" if self._is_async else ""
        if wrapped is None:
            return getattr(library, f"{prefix}HTTPTransport")()
        if isinstance(wrapped, getattr(library, f"{prefix}BaseTransport")):
            return wrapped
        raise ConfigurationError(
            f"wrapped must be an {library.__name__}.{prefix}BaseTransport, "
            f"got a {name_of(type(wrapped))}"
        )


class Transport(
    _Transport[Limiter | Client, RequestT, WrappedT], Generic[RequestT, ResponseT, WrappedT]
):
    """Sends requests of a client for threads when limits and servers allow it.

    ```python
    limiter = Limiter("redis://localhost:6379")
    client = httpx.Client(transport=RateLimitTransport(limiter, "10/second"))
    ```

    A request waits for its turn, at most `wait` seconds: 0 is never, None without end. What does
    not fit is not sent, and raises `RateLimited` as soon as that is clear. Each `key` is counted
    apart: each host, or whatever a function of the request returns. `cost` is a number or a
    function of the request. What `exempt_when` is true for is neither counted nor held up.

    With `learn`, nothing of a key is sent while its server asks for a pause, by `Retry-After` or
    `RateLimit`; for `max_pause` seconds at most. Without limits, that is all it does.

    `wrapped` does the sending; None is the library's own `HTTPTransport()`. It is closed with this
    one. The limiter is not: it may have others to serve.
    """

    _is_async = False

    def handle_request(self, request: RequestT) -> ResponseT:
        """Send a request when its time has come, or raise `RateLimited`."""
        response: ResponseT = run(self._gate.send(request, self._wrapped.handle_request))
        return response

    def close(self) -> None:
        """Close the wrapped transport."""
        self._wrapped.close()

    def __enter__(self) -> Self:
        self._wrapped.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._wrapped.__exit__(*details)


class AsyncTransport(
    _Transport[AsyncLimiter | AsyncClient, RequestT, WrappedT],
    Generic[RequestT, ResponseT, WrappedT],
):
    """Sends requests of a client for asyncio when limits and servers allow it.

    ```python
    limiter = AsyncLimiter("redis://localhost:6379")
    client = httpx.AsyncClient(transport=AsyncRateLimitTransport(limiter, "10/second"))
    ```

    The settings are those of `RateLimitTransport`, and mean the same. The functions may be async.
    """

    _is_async = True

    async def handle_async_request(self, request: RequestT) -> ResponseT:
        """Send a request when its time has come, or raise `RateLimited`."""
        flow = self._gate.send(request, self._wrapped.handle_async_request)
        response: ResponseT = await run_async(flow)
        return response

    async def aclose(self) -> None:
        """Close the wrapped transport."""
        await self._wrapped.aclose()

    async def __aenter__(self) -> Self:
        await self._wrapped.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self._wrapped.__aexit__(*details)
