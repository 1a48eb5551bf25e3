"""The methods of the gRPC listener, and their access control."""

from __future__ import annotations

from limen.backends.sampled import SampledLog
from limen.errors import InvalidInput, InvalidLimit
from limen.server.auth.tokens import admit
from limen.server.envoy.answer import is_allowed
from limen.server.envoy.schema import SHOULD_RATE_LIMIT, envoy_schema
from limen.server.grpc.calls import Call, Code, Failed, Methods, Unary
from limen.server.grpc.services import Health, Reflection
from limen.server.http.exchange import Rejected
from limen.server.worker.container import Service

_CODES = {
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    503: Code.UNAVAILABLE,
}
_PEER = "ratelimit"
"""The name under which envoyproxy/ratelimit reports its health, and its probes ask for it."""
_MARGIN_S = 0.002
"""What is kept of a client's patience for the way there and back."""


def methods_of(service: Service) -> Methods:
    """Return what a worker answers by gRPC."""
    schema = envoy_schema()
    health = Health(schema, lambda: service.has_rules, [_PEER])
    needs_token = not service.settings.checks_are_open
    sampled = SampledLog(60.0)

    def failed(code: Code, detail: str) -> Failed:
        # Envoy may be told to let pass then, and says nothing of it.
        sampled.warn(code.name, f"a question of Envoy's is not answered, by {code.name}: {detail}")
        return Failed(code, detail)

    async def should_rate_limit(raw: bytes, call: Call) -> bytes:
        try:
            if needs_token:
                token = call.authorization
                caller = None if token is None else service.access.bearer(token)
                admit(caller, "'authorization: Bearer ...' in the metadata")
            service.require_rules()
            left = call.timeout
            within = None if left is None else max(left - _MARGIN_S, _MARGIN_S)
            return await service.envoy.should_limit(raw, within)
        except Rejected as error:
            raise failed(_CODES[error.status], error.detail) from None
        except (InvalidInput, InvalidLimit) as error:
            raise failed(Code.INVALID_ARGUMENT, str(error)) from None

    def see_undelivered(response: bytes) -> None:
        service.watch.see_undelivered("envoy", allowed=is_allowed(response))

    return {
        SHOULD_RATE_LIMIT: Unary(should_rate_limit, undelivered=see_undelivered),
        **health.methods,
        **Reflection(schema).methods,
    }
