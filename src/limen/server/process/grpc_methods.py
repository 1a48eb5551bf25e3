"""The methods of the gRPC listener, and their access control."""

from __future__ import annotations

from limen.backends.sampled import SampledLog
from limen.errors import InvalidInput, InvalidLimit
from limen.server.auth.tokens import admit
from limen.server.envoy.answer import is_allowed
from limen.server.envoy.schema import SHOULD_RATE_LIMIT, envoy_schema
from limen.server.grpc import Call, Code, Failed, Methods, Unary
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

    def see_undelivered(response: bytes) -> None:
        service.watch.see_undelivered("envoy", allowed=is_allowed(response))

    return {
        SHOULD_RATE_LIMIT: Unary(_Door(service).should_rate_limit, undelivered=see_undelivered),
        **health.methods,
        **Reflection(schema).methods,
    }


class _Door:
    """Lets those in who may ask."""

    def __init__(self, service: Service) -> None:
        self._limits = service.envoy
        self._require_rules = service.require_rules
        self._access = None if service.settings.checks_are_open else service.access
        """None where no token is needed."""
        self._log = SampledLog(60.0)

    async def should_rate_limit(self, raw: bytes, call: Call) -> bytes:
        try:
            if self._access is not None:
                token = call.authorization
                caller = None if token is None else self._access.bearer(token)
                admit(caller, "'authorization: Bearer ...' in the metadata")
            self._require_rules()
            left = call.timeout
            within = None if left is None else max(left - _MARGIN_S, _MARGIN_S)
            return await self._limits.should_limit(raw, within)
        except Rejected as error:
            raise self._failed(_CODES[error.status], error.detail) from None
        except (InvalidInput, InvalidLimit) as error:
            raise self._failed(Code.INVALID_ARGUMENT, str(error)) from None

    def _failed(self, code: Code, detail: str) -> Failed:
        # Envoy may be told to let pass then, and says nothing of it.
        self._log.warn(
            code.name, f"a question of Envoy's is not answered, by {code.name}: {detail}"
        )
        return Failed(code, detail)
