"""What is wrong with the settings of gateways is told before anything starts, in one line each."""

from __future__ import annotations

import pytest

from limen.errors import ConfigurationError
from limen.server.settings import load


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ATTRIBUTES", "user", "expected attribute=Header, such as 'user=X-User-Id'"),
        ("ATTRIBUTES", "user=X-User:", "expected attribute=Header"),
        ("ATTRIBUTES", "ip=X-Real-IP", "'ip' is told by the request itself, and by no header"),
        ("ATTRIBUTES", "a=X-A,a=X-B", "'a' is given twice"),
        ("ATTRIBUTES", "t=X-Limen-Token", "X-Limen-Token is for limen itself"),
        ("ATTRIBUTES", "s=Sec-Fetch-Site", "Sec-Fetch-Site is for limen itself"),
        ("LIST_HEADERS", "Via,not a name", "expected the name of a header, such as 'User-Agent'"),
        ("NORMALIZE_PATH", "parameter", "did you mean 'parameters'?"),
        ("NORMALIZE_PATH", "parameters,parameters", "'parameters' is given twice"),
        ("TRUSTED_PROXIES", "*", "cannot be '*': whoever connects could then choose an address"),
        ("TRUSTED_PROXIES", "10.0.0.1/8", "did you mean '10.0.0.0/8'?"),
        ("TRUSTED_PROXIES", "", "expected a list of networks, such as ['10.0.0.0/8']"),
        ("ADDRESS_HEADER", "x-forwarded-fro", "did you mean 'x-forwarded-for'?"),
        ("IPV6_PREFIX", "63", "ipv6_prefix must be 48, 56, 64 or 128"),
        ("DEADLINE", "0", "must be greater than 0"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(variable: str, value: str, said: str) -> None:
    name = f"LIMEN_GATEWAY__{variable}"
    with pytest.raises(ConfigurationError) as caught:
        load({}, {name: value})
    line = str(caught.value)
    assert line.startswith(f"{name}: ")
    assert said in line
    assert "\n" not in line
    assert "trusted_hops" not in line


def test_grpc_and_http_cannot_listen_in_the_same_place() -> None:
    with pytest.raises(ConfigurationError, match=":8080 is already used by bind"):
        load({"grpc.bind": "127.0.0.1:8080"}, {})
    assert load({"bind": "127.0.0.1:0", "grpc.bind": "127.0.0.1:0"}, {}).grpc.bind is not None
    assert load({"grpc.bind": ""}, {}).grpc.bind is None


def test_a_gateway_waits_no_longer_than_the_store_is_waited_for() -> None:
    assert load({"store.deadline": 0.005}, {}).gateway_deadline == 0.005
    assert load({}, {}).gateway_deadline == 0.015


def test_decisions_need_a_token_when_either_can_be_reached_from_elsewhere() -> None:
    assert load({}, {}).checks_are_open
    assert not load({"grpc.bind": ":8081"}, {}).checks_are_open
    assert not load({"bind": ":8080"}, {}).checks_are_open
    assert load({"bind": ":8080", "auth.checks": "open"}, {}).checks_are_open
