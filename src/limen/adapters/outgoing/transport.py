"""The transports of both libraries: httpx and its successor httpx2 have the same interface.

`limen.adapters.httpx` and `limen.adapters.httpx2` add the base classes of their library.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import ModuleType, TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from limen._internal.functions import name_of
from limen.adapters.outgoing.gate import Gate
from limen.adapters.outgoing.refused import RateLimited
from limen.adapters.outgoing.settings import Settings
from limen.client import AsyncClient, Client
from limen.errors import ConfigurationError
from limen.flow import run, run_async
from limen.limiter import AsyncLimiter, Limiter
from limen.model import Limit

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
WrappedT = TypeVar("WrappedT")


class Transport(Generic[RequestT, ResponseT, WrappedT]):
    """A transport for threads. `WrappedT` is the class of the library's own transports."""

    _library: ModuleType
    _error: type[RateLimited]

    def __init__(
        self,
        limiter: Limiter | Client,
        *limits: Limit | str,
        key: Literal["host"] | Callable[[RequestT], str] = "host",
        cost: int | Callable[[RequestT], int] = 1,
        exempt_when: Callable[[RequestT], bool] | None = None,
        wait: float | None = 30.0,
        wrapped: WrappedT | None = None,
        learn: bool = True,
        max_pause: float = 300.0,
    ) -> None:
        settings = Settings(limits, key, cost, exempt_when, wait, learn, max_pause)
        self._gate = Gate(limiter, settings, self._error, is_async=False)
        self._wrapped: Any = _sender(self._library, "", wrapped)

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

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._wrapped.__exit__(exc_type, exc_value, traceback)


class AsyncTransport(Generic[RequestT, ResponseT, WrappedT]):
    """A transport for asyncio. `WrappedT` is the class of the library's own async transports."""

    _library: ModuleType
    _error: type[RateLimited]

    def __init__(
        self,
        limiter: AsyncLimiter | AsyncClient,
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
        self._gate = Gate(limiter, settings, self._error, is_async=True)
        self._wrapped: Any = _sender(self._library, "Async", wrapped)

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

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._wrapped.__aexit__(exc_type, exc_value, traceback)


def _sender(library: ModuleType, prefix: str, wrapped: object) -> object:
    """Return the transport that sends: the given one, or a new one of the library."""
    if wrapped is None:
        return getattr(library, f"{prefix}HTTPTransport")()
    if isinstance(wrapped, getattr(library, f"{prefix}BaseTransport")):
        return wrapped
    raise ConfigurationError(
        f"wrapped must be an {library.__name__}.{prefix}BaseTransport, "
        f"got a {name_of(type(wrapped))}"
    )
