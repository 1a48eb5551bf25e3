"""Which limits hold for which method, and which methods have none. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from limen.adapters.limit import AnyLimit, RateLimit, listed
from limen.errors import ConfigurationError, shown

LimitsByMethod = Mapping[str, AnyLimit | Iterable[AnyLimit]]

INFRASTRUCTURE: tuple[str, ...] = (
    "/grpc.health.v1.Health/*",
    "/grpc.reflection.v1.ServerReflection/*",
    "/grpc.reflection.v1alpha.ServerReflection/*",
)
"""What is not limited unless asked for: a server whose health check is refused gets restarted."""

_PATTERN = re.compile(r"/[^/*\s]+/([^/*\s]+|\*)")


class Methods:
    """Which limits hold for which method."""

    def __init__(
        self,
        take: Callable[..., tuple[RateLimit, ...]],
        everywhere: tuple[RateLimit, ...],
        by_method: LimitsByMethod | None,
        exempt: Iterable[str],
        limit_infrastructure: bool,
    ) -> None:
        if isinstance(exempt, str):
            raise ConfigurationError(f"exempt must be a list, got the text {shown(exempt)}")
        self._everywhere = everywhere
        own = frozenset(map(_valid, exempt))
        self._exempt = own if limit_infrastructure else own.union(INFRASTRUCTURE)
        self._own: dict[str, tuple[RateLimit, ...]] = {}
        for pattern, limits in (by_method or {}).items():
            if self._is_exempt(_valid(pattern)):
                is_ours = _service(pattern) in INFRASTRUCTURE
                raise ConfigurationError(
                    f"the limits of {pattern!r} never hold, since it is exempt; "
                    f"see {'limit_infrastructure=True' if is_ours else 'exempt'}"
                )
            taken = take(*listed(limits))
            # What is written together is counted together: a whole service, or one method.
            self._own[pattern] = tuple([limit.at(pattern) for limit in taken])

    def limits_of(self, method: str) -> tuple[RateLimit, ...] | None:
        """Return the limits that hold for a method; None when it is exempt."""
        if self._is_exempt(method):
            return None
        own = self._own
        if not own:
            return self._everywhere
        return self._everywhere + own.get(_service(method), ()) + own.get(method, ())

    def _is_exempt(self, method: str) -> bool:
        return method in self._exempt or _service(method) in self._exempt


def _service(method: str) -> str:
    return f"{method.rpartition('/')[0]}/*"


def _valid(pattern: object) -> str:
    if isinstance(pattern, str) and _PATTERN.fullmatch(pattern):
        return pattern
    meant = ""
    if isinstance(pattern, str) and _PATTERN.fullmatch(f"/{pattern}"):
        meant = f"; did you mean '/{pattern}'?"
    raise ConfigurationError(
        "a method must be named in full, such as '/shop.Orders/Place', or '/shop.Orders/*' for all "
        f"of a service, got {shown(pattern)}{meant}"
    )
