"""Transports for httpx2 that keep to the limits of the servers they call. See `outgoing`."""

from __future__ import annotations

from limen.adapters.missing import missing

try:
    import httpx2

    from limen.adapters import outgoing
except ImportError as _error:
    raise missing("httpx2", _error) from None

__all__ = ["AsyncRateLimitTransport", "RateLimitTransport", "RateLimited"]


class RateLimited(outgoing.RateLimited, httpx2.TransportError):
    """A request was not sent. Also a `httpx2.TransportError`: it is retried as those are."""


class RateLimitTransport(
    outgoing.Transport[httpx2.Request, httpx2.Response, httpx2.BaseTransport], httpx2.BaseTransport
):
    """A transport for `httpx2.Client`: `outgoing.Transport` says what the settings mean."""

    _library, _error = httpx2, RateLimited


class AsyncRateLimitTransport(
    outgoing.AsyncTransport[httpx2.Request, httpx2.Response, httpx2.AsyncBaseTransport],
    httpx2.AsyncBaseTransport,
):
    """A transport for `httpx2.AsyncClient` on asyncio. Functions may be async."""

    _library, _error = httpx2, RateLimited
