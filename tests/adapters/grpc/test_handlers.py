"""What handlers and clients do besides: their own metadata, errors, retries, other interceptors."""

from __future__ import annotations

import json
import threading
from contextvars import ContextVar
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from limen import AsyncLimiter, Concurrency, ConfigurationError, Limiter
from limen.adapters import RateLimit
from limen.adapters.grpc import (
    AsyncRateLimitInterceptor,
    CallResponse,
    RateLimitInterceptor,
    visit_of,
)
from limen.testing import ManualClock
from tests.adapters.grpc.conftest import Serve, Sources
from tests.adapters.grpc.serving import Kind, RetryInfo, Shopper, serving
from tests.adapters.grpc.shop import PLACE, Shop
from tests.waiting import wait_until

OK, REFUSED = "OK", "RESOURCE_EXHAUSTED"
HEALTH = "/grpc.health.v1.Health/Check"


def test_a_handler_may_send_metadata_of_its_own(serve: Serve) -> None:
    client = serve("10/hour")
    for answer in (client.place(b"metadata"), client.watch(b"metadata"), client.chat(b"metadata")):
        assert answer.code.name == OK
        assert answer.initial["own"] == "1"
        assert answer.initial["ratelimit"].startswith('"10/hour";r=')
        assert answer.trailing == {"own": "1"}


@pytest.mark.parametrize("how", [b"abort", b"abort with status", b"code"])
def test_a_failure_is_told_as_the_handler_tells_it(serve: Serve, how: bytes) -> None:
    answer = serve("10/hour").place(how)
    assert (answer.code.name, answer.detail) == ("NOT_FOUND", "no such order")
    assert answer.initial == {}
    assert answer.trailing["own"] == "1"
    assert answer.trailing["ratelimit"] == '"10/hour";r=9;t=3600'


def test_a_handler_that_raises_is_told_of_too(serve: Serve) -> None:
    client = serve("10/hour")
    for answer in (client.place(b"fail"), client.watch(b"fail"), client.chat(b"fail")):
        assert answer.code.name == "UNKNOWN"
        assert "on purpose" in answer.detail
        assert answer.trailing["ratelimit"].startswith('"10/hour";r=')


def test_a_stream_that_fails_later_is_told_once(serve: Serve) -> None:
    answer = serve("10/hour").watch(b"tea abort")
    assert (answer.messages, answer.code.name) == ([b"tea"], "NOT_FOUND")
    assert "ratelimit" in answer.initial
    assert answer.trailing == {"own": "1"}


def retrying(*codes: str) -> list[tuple[str, Any]]:
    policy = {
        "maxAttempts": 3,
        "initialBackoff": "0.01s",
        "maxBackoff": "0.01s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": codes,
    }
    config = {"methodConfig": [{"name": [{"service": "shop.Orders"}], "retryPolicy": policy}]}
    return [("grpc.service_config", json.dumps(config))]


def test_a_client_still_tries_again_by_itself_when_a_handler_fails(serve: Serve) -> None:
    client = serve("10/hour", channel_options=retrying("NOT_FOUND"))
    assert client.place(b"abort").trailing["ratelimit"].startswith('"10/hour";r=7;')
    assert client.shop.seen == [b"abort"] * 3


def test_a_client_that_tries_again_by_itself_comes_when_it_may(serve: Serve) -> None:
    client = serve("1/second", channel_options=retrying("RESOURCE_EXHAUSTED"))
    assert client.codes(2) == [OK, OK]
    assert client.shop.seen == [b"tea"] * 2


def test_a_client_does_not_try_again_by_itself_where_no_wait_helps(serve: Serve) -> None:
    client = serve(RateLimit("5/hour", cost=6), channel_options=retrying("RESOURCE_EXHAUSTED"))
    refused = client.place()
    assert refused.trailing["grpc-retry-pushback-ms"] == "-1"
    assert "which never fits" in refused.detail
    assert refused.detail_of(RetryInfo) is None


def test_health_and_reflection_are_never_limited(serve: Serve) -> None:
    client = serve("1/hour", register=with_infrastructure)
    assert client.codes(2) == [OK, REFUSED]
    assert client.codes(5, b"", HEALTH) == [OK] * 5
    assert [reflected(client) for _ in range(3)] == [["shop.Orders"]] * 3


def test_health_and_reflection_are_limited_if_asked_for(serve: Serve) -> None:
    client = serve("2/hour", register=with_infrastructure, limit_infrastructure=True)
    assert client.codes(3, b"", HEALTH) == [OK, OK, REFUSED]


def with_infrastructure(server: Any) -> None:
    """Add what servers commonly have. Both are written for threads, which asyncio runs as well."""
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection(["shop.Orders"], server)


def reflected(client: Shopper) -> list[str]:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    (answer,) = stub.ServerReflectionInfo(asked)
    return [service.name for service in answer.list_services_response.service]


def test_a_stream_that_holds_no_thread_holds_its_slot() -> None:
    ended: list[CallResponse] = []
    limit = RateLimit(Concurrency(1, lease=600), deduct_when=ended.append)
    with (
        serving(
            "threads",
            Limiter(),
            limit,
            limit_infrastructure=True,
            register=with_infrastructure,
        ) as (where, shop),
        grpc.insecure_channel(where) as channel,
    ):
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
        serving_now = health_pb2.HealthCheckResponse(status=1).SerializeToString()
        watching = watch(b"")
        assert next(watching) == serving_now
        assert "ratelimit-policy" in dict(watching.initial_metadata())
        with pytest.raises(grpc.RpcError, match="1 request at a time"):
            next(watch(b""))
        watching.cancel()
        wait_until(lambda: bool(ended))
        assert [(each.code.name, each.messages_sent) for each in ended] == [("CANCELLED", 1)]
        wait_until(lambda: Shopper(channel, shop).place().code.name == OK)
        again = watch(b"")
        assert next(again) == serving_now
        again.cancel()


def test_handlers_that_asyncio_runs_in_threads_are_limited_too() -> None:
    limits = ("6/hour", Concurrency(1, lease=600))
    shop = Shop(is_in_threads=False)
    with (
        serving("asyncio", AsyncLimiter(), *limits, shop=shop) as (where, _),
        grpc.insecure_channel(where) as channel,
    ):
        client = Shopper(channel, shop)
        assert client.place(b"cost 2").initial["ratelimit"].startswith('"6/hour";r=5;')
        assert client.watch(b"a b").messages == [b"a", b"b"]
        assert client.place(b"metadata").initial["own"] == "1"
        failed = client.place(b"abort")
        assert (failed.code.name, failed.trailing["own"]) == ("NOT_FOUND", "1")
        assert failed.trailing["ratelimit"].startswith('"6/hour";r=1;')
        assert client.upload(b"a", b"b").messages == [b"a b"]
        for refused in (client.place(), client.watch(b"a"), client.chat(b"a")):
            assert (refused.code.name, refused.messages) == (REFUSED, [])
            assert refused.detail_of(RetryInfo) is not None


def interceptor(kind: Kind, *arguments: Any, **options: Any) -> Any:
    made: Any = RateLimitInterceptor if kind == "threads" else AsyncRateLimitInterceptor
    return made(*arguments, **options)


def test_who_is_refused_by_the_second_interceptor_is_charged_by_none(
    serve: Serve, kind: Kind, sources: Sources
) -> None:
    clock = ManualClock()
    limiter = sources.limiter(clock=clock)
    asked: list[CallResponse] = []

    def settle(response: CallResponse) -> int:
        asked.append(response)
        return 3 * response.messages_sent

    outer = interceptor(
        kind, limiter, RateLimit("10/hour", settle=settle), Concurrency(1, lease=600)
    )
    client = serve("2/minute", source=limiter, around=[outer])
    for call in (client.place, client.watch):
        assert call(b"tea").initial["ratelimit"].count(";r=") == 3
    for call in (client.place, client.watch, client.chat, client.upload):
        refused = call(b"tea")
        assert refused.code.name == REFUSED
        assert refused.detail.startswith("2 requests a minute")
    assert (len(client.shop.seen), len(asked)) == (2, 2)
    clock.advance(60)
    assert '"10/hour";r=3;' in client.place().initial["ratelimit"]


tenant: ContextVar[str] = ContextVar("tenant")


class Authenticating(grpc.ServerInterceptor):
    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        tenant.set(dict(handler_call_details.invocation_metadata)["token"].split(".")[0])
        return continuation(handler_call_details)


class AsyncAuthenticating(grpc.aio.ServerInterceptor):
    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        tenant.set(dict(handler_call_details.invocation_metadata)["token"].split(".")[0])
        return await continuation(handler_call_details)


def test_a_key_may_be_what_an_interceptor_further_out_found_out(serve: Serve, kind: Kind) -> None:
    outer = Authenticating() if kind == "threads" else AsyncAuthenticating()
    client = serve(RateLimit("1/hour", key=lambda call: tenant.get()), around=[outer])
    for name in ("one", "two"):
        assert client.codes(2, metadata=[("token", f"{name}.secret")]) == [OK, REFUSED]
        assert client.watch(b"a", metadata=[("token", f"{name}.secret")]).code.name == REFUSED


def test_a_handler_without_limits_is_told_so() -> None:
    with pytest.raises(ConfigurationError, match="no limit looked at this call"):
        visit_of(object())


def test_calls_at_once_get_no_more_than_there_is(serve: Serve) -> None:
    client = serve("20/hour")
    codes: list[str] = []
    crowd = [threading.Thread(target=lambda: codes.extend(client.codes(10))) for _ in range(4)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert (codes.count(OK), codes.count(REFUSED)) == (20, 20)


def test_functions_of_a_user_see_the_call_and_nothing_secret_shows(serve: Serve) -> None:
    seen: list[Any] = []
    client = serve(RateLimit("1/hour", exempt_when=lambda call: seen.append(call)))
    client.place(metadata=[("token", "secret"), ("raw-bin", b"\x00\x01")])
    (call,) = seen
    assert call.method == PLACE
    assert (call.metadata["token"], call.metadata["raw-bin"]) == ("secret", b"\x00\x01")
    assert repr(call) == f"<Call {PLACE}>"
