"""The door for Envoy: a gRPC server beside the HTTP one, on the loop of the same worker.

Several workers listen on one port, and the kernel spreads connections over them. Beside the rate
limit service there are health (`grpc.health.v1`) and reflection, for those who look with grpcurl.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from limen.errors import ConfigurationError, InvalidInput, InvalidLimit
from limen.server.access import Access, admit
from limen.server.envoy import schema
from limen.server.envoy.service import RateLimits
from limen.server.exchange import Rejected
from limen.server.listen import Tls

_PATH = f"/{schema.SERVICE}/{schema.METHOD}"
_CODES = {401: grpc.StatusCode.UNAUTHENTICATED, 403: grpc.StatusCode.PERMISSION_DENIED}
_MARGIN_S = 0.002
"""What is kept of a client's patience for the way back."""
_GRACE_S = 5.0
_LOOK_S = 1.0
_logger = logging.getLogger("limen.server")

Context = grpc.aio.ServicerContext[bytes, bytes]

# What reflection tells of health and of itself.
for _known in (health_pb2, reflection_pb2):
    schema.POOL.AddSerializedFile(_known.DESCRIPTOR.serialized_pb)


class GrpcServer:
    """Serves the rate limit service of one worker, from `start` to `stop`."""

    def __init__(
        self,
        limits: RateLimits,
        access: Access | None,
        reserved: socket.socket,
        is_ready: Callable[[], bool],
        *,
        tls: Tls | None = None,
        max_message: int,
        max_connection_age: float,
    ) -> None:
        # `access` is None where no token is needed; `reserved` keeps the address for all workers.
        self._limits = limits
        self._access = access
        self._reserved = reserved
        self._is_ready = is_ready
        self._tls = tls
        self._options = (
            ("grpc.so_reuseport", 1),
            ("grpc.max_receive_message_length", max_message),
            ("grpc.max_connection_age_ms", int(max_connection_age * 1_000)),
            ("grpc.max_connection_age_grace_ms", int(_GRACE_S * 1_000)),
            # A ping now and then keeps what lies between from forgetting an idle connection.
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.max_metadata_size", 16_384),
        )
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises `ConfigurationError`."""
        server = grpc.aio.server(options=self._options)
        server.add_generic_rpc_handlers((_Method(self._answer),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (schema.SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server, pool=schema.POOL)
        address = _address(self._reserved)
        try:
            if self._tls is None:
                server.add_insecure_port(address)
            else:
                server.add_secure_port(address, _credentials(self._tls))
        except RuntimeError:
            raise ConfigurationError(f"cannot listen for gRPC on {address}") from None
        await self._tell_health()
        await server.start()
        self._server = server
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Take no more connections, and let what is under way finish."""
        if self._server is not None and self._watching is not None:
            self._watching.cancel()
            await self._health.enter_graceful_shutdown()
            await self._server.stop(_GRACE_S)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._tell_health()

    async def _tell_health(self) -> None:
        kinds = health_pb2.HealthCheckResponse
        status = kinds.SERVING if self._is_ready() else kinds.NOT_SERVING
        for name in ("", schema.SERVICE):
            await self._health.set(name, status)

    async def _answer(self, raw: bytes, context: Context) -> bytes:
        try:
            if self._access is not None:
                self._admit(self._access, context)
            left = context.time_remaining()
            within = None if left is None else max(left - _MARGIN_S, _MARGIN_S)
            return await self._limits.should_limit(raw, within)
        except Rejected as error:
            code, detail = _CODES[error.status], error.detail
        except (InvalidInput, InvalidLimit) as error:
            code, detail = grpc.StatusCode.INVALID_ARGUMENT, str(error)
        except Exception:
            _logger.exception("a mistake in the rate limit service")
            # Envoy lets pass or refuses, as it is told to when there is nobody to ask.
            code, detail = grpc.StatusCode.UNAVAILABLE, "the service made a mistake, and logged it"
        await context.abort(code, detail)
        raise AssertionError("not reached")

    def _admit(self, access: Access, context: Context) -> None:
        caller = None
        for name, value in context.invocation_metadata() or ():
            if name == "authorization":
                caller = access.bearer(value if isinstance(value, str) else value.decode("latin-1"))
        admit(caller, "'authorization: Bearer ...' in the metadata")


class _Method(grpc.GenericRpcHandler):
    """The one method of the service. Its messages are left as the bytes they are."""

    def __init__(self, answer: Callable[[bytes, Context], Awaitable[bytes]]) -> None:
        self._handler: Any = grpc.unary_unary_rpc_method_handler(answer)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return who answers a call; None for any other method."""
        return self._handler if handler_call_details.method == _PATH else None


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    """Return what shows the certificate that is loaded at the moment."""

    def configuration() -> Any:
        key, certificate = tls.pem
        return grpc.ssl_server_certificate_configuration([(key, certificate)])

    return grpc.dynamic_ssl_server_credentials(configuration(), configuration)


def _address(reserved: socket.socket) -> str:
    host, port = reserved.getsockname()[:2]
    return f"[{host}]:{port}" if reserved.family == socket.AF_INET6 else f"{host}:{port}"
