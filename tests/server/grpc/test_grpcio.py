"""Google's own client: what it calls is answered as its own server would."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from msgspec import structs

from limen.server.process.listen import Tls
from tests.server.grpc.serving import HOST, PATIENT, Served

PAIRS = Path(__file__).parent.parent / "tls"
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


@pytest.fixture
def channel(served: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"{HOST}:{served.port}", options=OPTIONS) as channel:
        yield channel


def unary(channel: grpc.Channel, path: str) -> Any:
    return channel.unary_unary(path, request_serializer=None, response_deserializer=None)


def failure(call: Any, *given: Any, **more: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(*given, **more)
    return caught.value


def code(error: Any) -> grpc.StatusCode:
    found: grpc.StatusCode = error.code()
    return found


def test_messages_of_every_size(channel: grpc.Channel) -> None:
    echo = unary(channel, "/t/Echo")
    for size in (0, 1, 16_384, 65_536, 1_048_576):
        assert echo(b"x" * size, timeout=10) == b"x" * size
    big = unary(channel, "/t/Big")
    assert len(big(b"3000000", timeout=10)) > 3_000_000


@pytest.mark.parametrize("size", [1_048_577, 4 * 2**20])
def test_a_message_that_is_too_long(channel: grpc.Channel, size: int) -> None:
    error: Any = failure(unary(channel, "/t/Echo"), b"x" * size, timeout=10)
    assert code(error) == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "a message is longer than 1,048,576 bytes"
    assert unary(channel, "/t/Echo")(b"x", timeout=10) == b"x"


def test_failures(channel: grpc.Channel) -> None:
    error: Any = failure(unary(channel, "/t/Fail"), "é %\n!".encode(), timeout=10)
    assert (code(error), error.details()) == (grpc.StatusCode.NOT_FOUND, "é %\n!")
    error = failure(unary(channel, "/t/Nothing"), b"", timeout=10)
    assert code(error) == grpc.StatusCode.UNIMPLEMENTED
    compressed = unary(channel, "/t/Echo")
    error = failure(compressed, b"x" * 10_000, timeout=10, compression=grpc.Compression.Gzip)
    assert code(error) == grpc.StatusCode.UNIMPLEMENTED


def test_a_mistake_is_unavailable_and_logged(
    channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    error: Any = failure(unary(channel, "/t/Mistake"), b"", timeout=10)
    assert code(error) == grpc.StatusCode.UNAVAILABLE
    assert "hidden" not in error.details()
    assert "a mistake in the service" in caplog.text
    caplog.clear()


def test_metadata_may_be_large_and_not_endless(channel: grpc.Channel) -> None:
    told = unary(channel, "/t/Told")
    metadata = [("x-much", "y" * 8_000), ("authorization", "Bearer z")]
    for _ in range(3):
        assert told(b"", timeout=10, metadata=metadata).decode().endswith("Bearer z")
    failure(told, b"", timeout=3, metadata=[("x-much", "y" * 20_000)])
    assert told(b"", timeout=10, wait_for_ready=True)


def test_without_a_table_of_headers(served: Served) -> None:
    options = [("grpc.http2.hpack_table_size.decoder", 0)]
    with grpc.insecure_channel(f"{HOST}:{served.port}", options=options) as channel:
        for _ in range(3):
            assert unary(channel, "/t/Echo")(b"x", timeout=10) == b"x"


def test_deadlines_and_cancellations(served: Served, channel: grpc.Channel) -> None:
    served.call(served.methods.go_on.clear)
    wait = unary(channel, "/t/Wait")
    assert code(failure(wait, b"", timeout=0.1)) == grpc.StatusCode.DEADLINE_EXCEEDED
    future = wait.future(b"", timeout=10)
    time.sleep(0.05)
    future.cancel()
    assert future.cancelled()
    timeout = float(unary(channel, "/t/Told")(b"", timeout=5).split()[0])
    assert 4 < timeout < 5.2
    served.call(served.methods.go_on.set)
    assert wait(b"x", timeout=10) == b"x"


def test_many_calls_at_once(channel: grpc.Channel) -> None:
    echo = unary(channel, "/t/Echo")
    futures = [echo.future(b"%d" % number, timeout=30) for number in range(3_000)]
    assert [each.result() for each in futures] == [b"%d" % number for number in range(3_000)]


def test_streams(channel: grpc.Channel) -> None:
    each: Any = channel.stream_stream(
        "/t/Each", request_serializer=None, response_deserializer=None
    )
    messages = [b"%d" % number * 1_000 for number in range(300)]
    assert list(each(iter(messages), timeout=20)) == messages
    assert code(failure(list, each(iter([b"a", b"fail"]), timeout=10))) == (
        grpc.StatusCode.NOT_FOUND
    )
    assert list(each(iter([b"a", b"end", b"b"]), timeout=10)) == [b"a"]


# Health


def test_health_is_checked(served: Served, channel: grpc.Channel) -> None:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    for name in ("", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"):
        found = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
        assert found.status == health_pb2.HealthCheckResponse.SERVING
    error = failure(stub.Check, health_pb2.HealthCheckRequest(service="no.such"), timeout=10)
    assert code(error) == grpc.StatusCode.NOT_FOUND
    bad = unary(channel, "/grpc.health.v1.Health/Check")
    assert code(failure(bad, b"\xff", timeout=10)) == grpc.StatusCode.INVALID_ARGUMENT
    served.methods.is_ready = False
    found = stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
    served.methods.is_ready = True
    assert found.status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_health_is_watched(served: Served, channel: grpc.Channel) -> None:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    watched = stub.Watch(health_pb2.HealthCheckRequest(), timeout=20)
    assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
    served.methods.is_ready = False
    assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
    served.methods.is_ready = True
    assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
    watched.cancel()
    unknown = stub.Watch(health_pb2.HealthCheckRequest(service="no.such"), timeout=20)
    assert next(unknown).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    unknown.cancel()


# Reflection


def reflect(channel: grpc.Channel, *asked: Any) -> list[Any]:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = [reflection_pb2.ServerReflectionRequest(**each) for each in asked]
    return list(stub.ServerReflectionInfo(iter(requests), timeout=10))


def test_services_are_listed(channel: grpc.Channel) -> None:
    [answer] = reflect(channel, {"list_services": "*"})
    assert [each.name for each in answer.list_services_response.service] == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ]


def test_files_are_given_with_all_that_they_need(channel: grpc.Channel) -> None:
    asked = [
        {"file_containing_symbol": "grpc.health.v1.Health"},
        {"file_containing_symbol": "grpc.health.v1.HealthCheckResponse"},
        {"file_by_filename": "grpc/health/v1/health.proto"},
        {"file_containing_symbol": "grpc.health.v1.Health.Check"},
    ]
    for answer in reflect(channel, *asked):
        files = [
            FileDescriptorProto.FromString(each)
            for each in answer.file_descriptor_response.file_descriptor_proto
        ]
        assert files[-1].name == "grpc/health/v1/health.proto", answer
        assert [method.name for method in files[-1].service[0].method] == ["Check", "Watch"]


@pytest.mark.parametrize(
    "asked",
    [
        {"file_containing_symbol": "no.such.Thing"},
        {"file_containing_symbol": "grpc.health.v1.Health.Nothing"},
        {"file_by_filename": "no/such.proto"},
        {"file_by_filename": "\0"},
        {"all_extension_numbers_of_type": "no.such.Thing"},
        {
            "file_containing_extension": reflection_pb2.ExtensionRequest(
                containing_type="grpc.health.v1.HealthCheckRequest", extension_number=1
            )
        },
    ],
)
def test_what_is_not_there_is_not_found(channel: grpc.Channel, asked: dict[str, Any]) -> None:
    [answer] = reflect(channel, asked)
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert answer.original_request == reflection_pb2.ServerReflectionRequest(**asked)


def test_bad_questions_are_invalid(channel: grpc.Channel) -> None:
    path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    call: Any = channel.stream_stream(path, request_serializer=None, response_deserializer=None)
    error = failure(list, call(iter([b"\xff"]), timeout=10))
    assert code(error) == grpc.StatusCode.INVALID_ARGUMENT


# Connections


def test_over_tls() -> None:
    tls = Tls(PAIRS / "one.crt", PAIRS / "one.key", "h2")
    trust = grpc.ssl_channel_credentials((PAIRS / "one.crt").read_bytes())
    with (
        Served(PATIENT, context=tls.context) as served,
        grpc.secure_channel(f"localhost:{served.port}", trust) as channel,
    ):
        assert unary(channel, "/t/Echo")(b"x" * 100_000, timeout=10) == b"x" * 100_000


def test_plain_clients_on_a_port_with_tls_and_the_other_way_round(served: Served) -> None:
    tls = Tls(PAIRS / "one.crt", PAIRS / "one.key", "h2")
    trust = grpc.ssl_channel_credentials((PAIRS / "one.crt").read_bytes())
    with (
        Served(PATIENT, context=tls.context) as secret,
        grpc.insecure_channel(f"{HOST}:{secret.port}") as plain,
        grpc.secure_channel(f"localhost:{served.port}", trust) as secure,
    ):
        for channel in (plain, secure):
            error = failure(unary(channel, "/t/Echo"), b"", timeout=3)
            assert code(error) == grpc.StatusCode.UNAVAILABLE


def test_no_call_fails_however_often_connections_end() -> None:
    """Connections end after a while; those who call do not notice."""
    limits = structs.replace(PATIENT, max_age=0.2, grace=0.1)
    stop = threading.Event()

    def ask(number: int) -> int:
        count = 0
        with grpc.insecure_channel(
            f"{HOST}:{served.port}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            echo = unary(channel, "/t/Echo")
            while not stop.is_set():
                assert echo(b"%d" % number, timeout=10) == b"%d" % number
                count += 1
        return count

    with Served(limits) as served, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, number) for number in range(4)]
        time.sleep(1.5)
        stop.set()
        assert sum(each.result() for each in asked) == len(served.methods.seen)
