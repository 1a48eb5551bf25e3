"""Transports for httpx that keep to the limits of the servers they call. See `outgoing`."""

from __future__ import annotations

from limen.adapters.missing import missing

try:
    import httpx

    from limen.adapters import outgoing
except ImportError as _error:
    raise missing("httpx", _error) from None

__all__ = ["AsyncRateLimitTransport", "RateLimitTransport", "RateLimited"]


class RateLimited(outgoing.RateLimited, httpx.TransportError):
    """A request was not sent. Also a `httpx.TransportError`: it is retried as those are."""


class RateLimitTransport(
    outgoing.Transport[httpx.Request, httpx.Response, httpx.BaseTransport], httpx.BaseTransport
):
    """A transport for `httpx.Client`: `outgoing.Transport` says what the settings mean."""

    _library, _error = httpx, RateLimited


class AsyncRateLimitTransport(
    outgoing.AsyncTransport[httpx.Request, httpx.Response, httpx.AsyncBaseTransport],
    httpx.AsyncBaseTransport,
):
    """A transport for `httpx.AsyncClient` on asyncio. Functions may be async."""

    _library, _error = httpx, RateLimited
