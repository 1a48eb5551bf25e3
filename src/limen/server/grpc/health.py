"""Health as gRPC has it (`grpc.health.v1`): whether a service can be asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from limen.server.grpc.calls import Call, Code, Failed, Methods, Streamed, Unary
from limen.server.grpc.schema import File, Schema, decoded

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
_PACKAGE = "grpc.health.v1"
_LOOK_S = 0.5
_FILE = File(
    "grpc/health/v1/health.proto",
    _PACKAGE,
    {
        "HealthCheckRequest": "string service = 1;",
        "HealthCheckResponse": "HealthCheckResponse.ServingStatus status = 1;",
        "HealthCheckResponse.ServingStatus": (
            "UNKNOWN",
            "SERVING",
            "NOT_SERVING",
            "SERVICE_UNKNOWN",
        ),
    },
    service=(
        "Health",
        """
        Check(HealthCheckRequest) returns (HealthCheckResponse);
        Watch(HealthCheckRequest) returns (stream HealthCheckResponse);
        """,
    ),
)


class Health:
    """Tells whether the services of a schema can be asked: all of them or none.

    `aliases` are other names that clients may ask for.
    """

    def __init__(
        self, schema: Schema, is_ready: Callable[[], bool], aliases: Iterable[str] = ()
    ) -> None:
        schema.add(_FILE)
        self._services = schema.services
        self._aliases = frozenset(aliases)
        self._is_ready = is_ready
        self._request: Any = schema.message(f"{_PACKAGE}.HealthCheckRequest")
        self._response: Any = schema.message(f"{_PACKAGE}.HealthCheckResponse")

    @property
    def methods(self) -> Methods:
        """What can be called."""
        return {
            b"/grpc.health.v1.Health/Check": Unary(self._check),
            b"/grpc.health.v1.Health/Watch": Streamed(self._watch),
        }

    async def _check(self, raw: bytes, call: Call) -> bytes:
        status = self._status(raw)
        if status == SERVICE_UNKNOWN:
            raise Failed(Code.NOT_FOUND, "there is no such service; reflection lists them")
        return self._told(status)

    async def _watch(self, messages: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        async for raw in messages:
            last = None
            while True:
                status = self._status(raw)
                if status != last:
                    last = status
                    yield self._told(status)
                await asyncio.sleep(_LOOK_S)

    def _status(self, raw: bytes) -> int:
        service = decoded(self._request, raw).service
        if service and service not in self._services and service not in self._aliases:
            return SERVICE_UNKNOWN
        return SERVING if self._is_ready() else NOT_SERVING

    def _told(self, status: int) -> bytes:
        found: bytes = self._response(status=status).SerializeToString()
        return found
