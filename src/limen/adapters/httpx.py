"""Transports for httpx that keep to the limits of the servers they call. Thin: see `outgoing`."""

from __future__ import annotations

from limen.adapters.missing import missing

try:
    import httpx

    from limen.adapters import outgoing
except ImportError as _error:
    raise missing("httpx", _error) from None

__all__ = ["AsyncRateLimitTransport", "RateLimitTransport", "RateLimited"]


class RateLimited(outgoing.RateLimited, httpx.TransportError):
    """Say that a request was not sent; `retry_after` says in how many seconds it would be.

    It is a `LimenError` and an `httpx.TransportError`, so that what retries those retries this.
    """


class RateLimitTransport(
    outgoing.Transport[httpx.Request, httpx.Response, httpx.BaseTransport],
    httpx.BaseTransport,
):
    """Sends requests when limits and servers allow it, for `httpx.Client`.

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

    `wrapped` does the sending; None is `httpx.HTTPTransport()`. It is closed with this one. The
    limiter is not: it may have others to serve.
    """

    _library = httpx
    _error = RateLimited


class AsyncRateLimitTransport(
    outgoing.AsyncTransport[httpx.Request, httpx.Response, httpx.AsyncBaseTransport],
    httpx.AsyncBaseTransport,
):
    """Sends requests when limits and servers allow it, for `httpx.AsyncClient` on asyncio.

    ```python
    limiter = AsyncLimiter("redis://localhost:6379")
    client = httpx.AsyncClient(transport=AsyncRateLimitTransport(limiter, "10/second"))
    ```

    The settings are those of `RateLimitTransport`, and mean the same. The functions may be async.
    """

    _library = httpx
    _error = RateLimited
