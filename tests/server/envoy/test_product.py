"""`limen serve` by gRPC, as Envoy would ask it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from limen.server.envoy.schema import SHOULD_RATE_LIMIT, RateLimitResponse
from tests.server.admin.driving import CHECK
from tests.server.envoy.describing import OK, OVER_LIMIT, request
from tests.server.product import product

PAIRS = Path(__file__).parent.parent / "tls"
RULES = "rules: [{name: user, match: {domain: d}, key: [user], limits: 2/day}]"


def test_it_is_served_over_tls_to_those_with_a_token(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    settings = {
        "rules": "rules.yaml",
        "tls__certificate": str(PAIRS / "one.crt"),
        "tls__key": str(PAIRS / "one.key"),
        "auth__checks": "token",
        "auth__check_token": CHECK,
        "gateway__deadline": "5.0",
    }
    trust = grpc.ssl_channel_credentials((PAIRS / "one.crt").read_bytes())
    with (
        product(tmp_path, **settings) as served,
        grpc.secure_channel(f"localhost:{served.grpc_port}", trust) as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        name = "envoy.service.ratelimit.v3.RateLimitService"
        found = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
        assert found.status == health_pb2.HealthCheckResponse.SERVING
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="*")
        [listed] = reflection.ServerReflectionInfo(iter([asked]), timeout=10)
        assert name in [each.name for each in listed.list_services_response.service]
        raw = request({"user": "1"}).SerializeToString()
        call: Any = channel.unary_unary(
            SHOULD_RATE_LIMIT.decode(), request_serializer=None, response_deserializer=None
        )
        with pytest.raises(grpc.RpcError) as caught:
            call(raw, timeout=10)
        refused: Any = caught.value
        assert refused.code() == grpc.StatusCode.UNAUTHENTICATED
        token = [("authorization", f"Bearer {CHECK}")]
        answers = [
            RateLimitResponse.FromString(call(raw, timeout=10, metadata=token)) for _ in range(3)
        ]
        assert [each.overall_code for each in answers] == [OK, OK, OVER_LIMIT]
        served.signal(signal.SIGTERM)
        assert served.code() == 0
        assert not [line for line in served.complained if '"error"' in line]


def test_health_is_told_under_the_names_of_envoyproxy_ratelimit(tmp_path: Path) -> None:
    with (
        product(tmp_path) as served,
        grpc.insecure_channel(f"localhost:{served.grpc_port}") as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service="ratelimit")
        found = health.Check(asked, timeout=10)
        assert found.status == health_pb2.HealthCheckResponse.SERVING
        watched = health.Watch(asked, timeout=10)
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        watched.cancel()
        answer = served.ask("/healthcheck")
        assert (answer.status, answer.body) == (200, b"OK")


def test_grpc_may_be_open_to_others_without_a_token_if_somebody_says_so(tmp_path: Path) -> None:
    with product(tmp_path / "open", "--grpc-bind", ":0", "--checks", "open") as opened:
        assert opened.ask("/readyz").status == 200
        assert "any client that can connect may use up quotas" in "".join(opened.said)
    with product(tmp_path / "closed", "--grpc-bind", ":0") as closed:
        assert closed.code() == 2
        assert ":0 can be reached from other machines" in "".join(closed.complained)
