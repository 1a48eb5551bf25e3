"""Requests as Envoy sends them, and what a service answers; built by protobuf, not by ourselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from limen.server.envoy.schema import RateLimitResponse, envoy_schema


class Askable(Protocol):
    """A service, or the part of it that answers Envoy."""

    def run(self, work: Any) -> Any: ...

    @property
    def service(self) -> Any: ...


Entries = Mapping[str, str] | Sequence[tuple[str, str]]
RateLimitRequest = envoy_schema().message("envoy.service.ratelimit.v3.RateLimitRequest")
OK, OVER_LIMIT = 1, 2
SECOND, MINUTE, HOUR, DAY, MONTH, YEAR = range(1, 7)


def described(
    entries: Entries, hits: int | None = None, limit: tuple[int, int] | None = None
) -> Any:
    """Return a descriptor; `limit` is what it brings along: requests, and the unit."""
    found = RateLimitRequest().descriptors.add()
    pairs = entries.items() if isinstance(entries, Mapping) else entries
    for key, value in pairs:
        found.entries.add(key=key, value=value)
    if hits is not None:
        found.hits_addend.value = hits
    if limit is not None:
        found.limit.requests_per_unit, found.limit.unit = limit
    return found


def request(*descriptors: Any, domain: str = "d", hits: int = 0) -> Any:
    found = RateLimitRequest(domain=domain, hits_addend=hits)
    for descriptor in descriptors:
        more = descriptor if not isinstance(descriptor, Mapping) else described(descriptor)
        found.descriptors.add().CopyFrom(more)
    return found


def asked(asker: Askable, *descriptors: Any, domain: str = "d", hits: int = 0) -> Any:
    """Ask, and return the response."""
    raw = request(*descriptors, domain=domain, hits=hits).SerializeToString()
    return RateLimitResponse.FromString(asker.run(asker.service.envoy.should_limit(raw)))


def codes(response: Any) -> list[int]:
    """Return the overall code, and that of each descriptor."""
    return [response.overall_code, *[status.code for status in response.statuses]]


def remaining(response: Any) -> list[int]:
    return [status.limit_remaining for status in response.statuses]


def headers(response: Any) -> dict[str, str]:
    found = {each.key: each.value for each in response.response_headers_to_add}
    assert len(found) == len(response.response_headers_to_add), "a header stands twice"
    return found
