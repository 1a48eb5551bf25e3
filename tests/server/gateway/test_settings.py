"""The settings of gateways: what they take, and what is said of what they do not."""

from __future__ import annotations

from typing import Any

import pytest

from limen.errors import ConfigurationError
from limen.server.settings import Forwarded, load


def test_headers_become_attributes() -> None:
    texts = ["user=X-User-Id", "plan=X-Jwt:https://a.example/plan=1:2", "a.b-c_1=X_y!"]
    expected = (
        Forwarded("user", b"x-user-id"),
        Forwarded("plan", b"x-jwt", "https://a.example/plan=1:2"),
        Forwarded("a.b-c_1", b"x_y!"),
    )
    variables = {"LIMEN_GATEWAY__ATTRIBUTES": " , ".join(texts)}
    for settings in (load({"gateway.attributes": texts}, {}), load({}, variables)):
        assert settings.gateway.attributes == expected
    assert [str(each) for each in expected[:2]] == [
        "user=x-user-id",
        "plan=x-jwt:https://a.example/plan=1:2",
    ]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("attributes", ["user"], "expected attribute=Header, such as 'user=X-User-Id'"),
        ("attributes", ["user=X Y"], "got 'user=X Y'"),
        ("attributes", ["=X"], "expected attribute=Header"),
        ("attributes", ["user=X:"], "expected attribute=Header"),
        ("attributes", [7], "expected attribute=Header"),
        ("attributes", ["user=X", "user=Y"], "the attribute 'user' is given twice"),
        ("attributes", ["ip=X"], "'ip' is told by the request itself, and by no header"),
        ("trusted_proxies", [], "expected a list of networks, such as ['10.0.0.0/8'], got []"),
        ("trusted_proxies", ["*"], "cannot be '*': whoever connects could then choose an address"),
        ("trusted_proxies", ["0.0.0.0/0"], "whoever connects could then choose an address"),
        ("trusted_proxies", ["10.0.0.1/8"], "did you mean '10.0.0.0/8'?"),
        ("address_header", "x-client", "expected x-forwarded-for, forwarded"),
        ("ipv6_prefix", 65, "expected 48, 56, 64 or 128, got 65"),
        ("deadline", 0, "expected seconds above 0"),
    ],
)
def test_what_makes_no_sense_is_said(name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load({f"gateway.{name}": value}, {})
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"--gateway-{name.replace('_', '-')}: ")


def test_there_may_be_no_grpc() -> None:
    assert str(load({}, {}).grpc.bind) == "127.0.0.1:8081"
    assert load({}, {"LIMEN_GRPC__BIND": ""}).grpc.bind is None
    assert load({"grpc.bind": ""}, {}).is_loopback
    assert not load({"grpc.bind": ":8081"}, {}).is_loopback
