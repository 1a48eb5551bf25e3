"""Requests whose `Host` or `Authorization` header is missing, repeated or invalid are rejected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from limen.server.envoy.schema import SHOULD_RATE_LIMIT
from tests.server.admin.driving import ADMIN, CHECK
from tests.server.envoy.describing import request as envoy_request
from tests.server.product import Product, product
from tests.server.raw import Raw, Response, request

BODY = b'{"attributes":{"user":"1"}}'
VALID, INVALID = f"Authorization: Bearer {CHECK}", "Authorization: Bearer a-guess"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(tmp_path_factory.mktemp("open")) as started:
        yield started


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A service that asks for a token everywhere."""
    settings = {
        "auth__admin_token": ADMIN,
        "auth__check_token": CHECK,
        "auth__checks": "token",
        "auth__metrics": "token",
    }
    with product(tmp_path_factory.mktemp("guarded"), **settings) as started:
        yield started


def check(service: Product, *lines: str, version: str = "1.1") -> Response:
    """Ask for a decision with these headers alone."""
    first = f"POST /v1/check HTTP/{version}"
    head = "\r\n".join([first, *lines, f"Content-Length: {len(BODY)}", "", ""])
    with Raw(service.port) as raw:
        raw.send(head.encode("latin-1") + BODY)
        return raw.response()


# Request id


def test_first_of_repeated_request_ids_is_used(service: Product) -> None:
    response = check(service, "Host: limen", "X-Request-Id: first", "X-Request-Id: second")
    assert (response.status, response.headers["x-request-id"]) == (200, "first")


def test_wrong_token_is_rejected_where_no_token_is_needed(service: Product) -> None:
    assert check(service, "Host: limen", "Authorization: Bearer wrong").status == 401


# Host


@pytest.mark.parametrize(
    ("lines", "detail"),
    [
        ((), "The Host header is missing"),
        (("Host: limen", "Host: limen"), "The Host header is repeated"),
        (("Host: limen", "host: other"), "The Host header is repeated"),
        (("Host: two names",), "The Host header is not a host"),
        (("Host: limen/path",), "The Host header is not a host"),
        (("Host: http://limen",), "The Host header is not a host"),
        (("Host: user@limen",), "The Host header is not a host"),
        (("Host: limen:port",), "The Host header is not a host"),
        (("Host: limen:80:80",), "The Host header is not a host"),
        (("Host: [::1",), "The Host header is not a host"),
        (("Host: [:::1]",), "The Host header is not a host"),
        (("Host: ::1",), "The Host header is not a host"),
        (("Host: li%men",), "The Host header is not a host"),
        (("Host: lim\xe9n",), "The Host header is not a host"),
    ],
)
def test_missing_repeated_or_invalid_host_is_rejected(
    service: Product, lines: tuple[str, ...], detail: str
) -> None:
    # Several times: a request head that is known takes another way through the service.
    for _ in range(4):
        response = check(service, *lines)
        assert response.status == 400
        assert detail in response.problem["detail"]
        assert response.closes


@pytest.mark.parametrize(
    "host",
    [
        *("limen", "LIMEN.example.", "limen.example:8080", "127.0.0.1", "127.0.0.1:8080", "[::1]"),
        *(
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
            "a_b",
            "xn--bcher-kva.example",
            "a%20b",
            "limen:",
            "",
            "limen ",
            "limen\t",
        ),
    ],
)
def test_valid_host_is_accepted(service: Product, host: str) -> None:
    for _ in range(4):
        assert check(service, f"Host: {host}").status == 200


def test_http_1_0_needs_no_host(service: Product) -> None:
    assert check(service, version="1.0").status == 200
    assert check(service, "Host: limen", version="1.0").status == 200
    assert check(service, "Host: limen", "Host: limen", version="1.0").status == 400
    assert check(service, "Host: two names", version="1.0").status == 400


def test_host_is_checked_on_every_path(service: Product) -> None:
    for path in ("/", "/healthz", "/docs", "/admin/v1/rules", "/v1/auth", "/nothing"):
        with Raw(service.port) as raw:
            raw.send(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            assert raw.response().status == 400


@pytest.mark.parametrize("lines", ["", "Host: limen\r\nHost: limen\r\n"])
def test_missing_or_repeated_host_is_rejected_by_the_control_plane(
    service: Product, lines: str
) -> None:
    for path in ("/", "/healthz", "/docs", "/admin/v1/rules", "/session", "/nothing"):
        with Raw(service.admin_port) as raw:
            raw.send(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
            # uvicorn ends this response by closing the connection.
            response = b"".join(iter(lambda: raw.socket.recv(65_536), b""))
            assert response.startswith(b"HTTP/1.1 400 ")


# Authorization


@pytest.mark.parametrize("lines", [(VALID, INVALID), (INVALID, VALID), (VALID, VALID)])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/check"),
        ("GET", "/v1/usage"),
        ("POST", "/v1/refund"),
        ("POST", "/v1/settle"),
        ("POST", "/v1/slots"),
        ("DELETE", "/v1/slots/x"),
        ("POST", "/json"),
        ("GET", "/admin/v1/rules"),
        ("GET", "/session"),
        ("GET", "/metrics"),
    ],
)
def test_repeated_authorization_is_rejected(
    guarded: Product, method: str, path: str, lines: tuple[str, str]
) -> None:
    with Raw(guarded.port_of(path)) as raw:
        for _ in range(4):
            raw.send(request(path, *lines, method=method, body=BODY))
            response = raw.response()
            assert response.status == 400
            assert "the header authorization is repeated" in response.problem["detail"]


def test_repeated_authorization_is_rejected_where_no_token_is_needed(service: Product) -> None:
    for _ in range(4):
        assert check(service, "Host: limen", VALID, VALID).status == 400


def test_repeated_authorization_of_a_forwarded_request_is_not_the_gateways(
    guarded: Product,
) -> None:
    forwarded = (
        "X-Forwarded-Method: GET",
        "X-Forwarded-Uri: /",
        "X-Forwarded-For: 203.0.113.5",
        "Authorization: Basic one",
        "Authorization: Basic two",
    )
    token = f"X-Limen-Token: {CHECK}"
    assert guarded.ask("/v1/auth", token, *forwarded).status == 200
    twice = guarded.ask("/v1/auth", token, token, *forwarded)
    assert twice.status == 400
    assert "X-Limen-Token header is repeated" in twice.problem["detail"]


@pytest.mark.parametrize("secrets", [(CHECK, "a-guess"), ("a-guess", CHECK), (CHECK, CHECK)])
def test_repeated_authorization_is_rejected_over_grpc(
    guarded: Product, service: Product, secrets: tuple[str, str]
) -> None:
    raw = envoy_request({"user": "1"}).SerializeToString()
    metadata = [("authorization", f"Bearer {secret}") for secret in secrets]
    for started in (guarded, service):
        with grpc.insecure_channel(f"127.0.0.1:{started.grpc_port}") as channel:
            call: Any = channel.unary_unary(SHOULD_RATE_LIMIT.decode())
            for _ in range(2):
                with pytest.raises(grpc.RpcError) as caught:
                    call(raw, timeout=10, metadata=metadata)
                error: Any = caught.value
                assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
                assert "the header authorization is repeated" in error.details()
