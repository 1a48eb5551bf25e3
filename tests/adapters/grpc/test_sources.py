"""Who is asked: a store on Valkey, a service elsewhere, rules; and what happens without them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from limen import Concurrency
from limen.adapters import RateLimit, header
from limen.rules import parse_text
from tests.adapters.grpc.conftest import Serve, Sources
from tests.adapters.grpc.serving import QuotaFailure, RetryInfo
from tests.adapters.grpc.shop import PLACE
from tests.client.services import Served
from tests.waiting import wait_until

OK, REFUSED = "OK", "RESOURCE_EXHAUSTED"
RULES = """
rules:
  - name: orders-per-key
    match: {path: /shop.Orders/Place, method: POST}
    key: [api_key]
    missing: deny
    limits: 2/minute
  - name: streams-at-once
    match: {route: [/shop.Orders/Watch, /shop.Orders/Chat]}
    key: [ip]
    concurrency: {slots: 1, lease: 60s}
  - name: nobody
    match: {path: /shop.Other/Place}
    mode: block
"""


def test_counts_on_valkey_and_recovers_after_the_wait(
    serve: Serve, sources: Sources, store: str
) -> None:
    scope = f"{sources.kind}-{time.monotonic_ns()}"
    client = serve(
        RateLimit("2/second", "50/hour", Concurrency(2, lease=60), scope=scope),
        source=sources.limiter(store, deadline=5),
    )
    assert client.codes(3) == [OK, OK, REFUSED]
    assert client.watch(b"a").code.name == REFUSED
    time.sleep(1)
    assert client.watch(b"a b").messages == [b"a", b"b"]
    assert '"50/hour";r=46' in client.place().initial["ratelimit"]


def test_counts_by_limits_in_a_service_elsewhere(
    serve: Serve, sources: Sources, remote: Served
) -> None:
    scope = f"{sources.kind}-{time.monotonic_ns()}"
    client = serve(
        RateLimit("2/minute", scope=scope),
        RateLimit(Concurrency(1, lease=60), scope=scope),
        source=sources.client(remote.url, timeout=5),
    )
    assert [client.place().code.name, client.watch(b"a").code.name] == [OK, OK]
    refused = client.place()
    assert refused.code.name == REFUSED
    assert refused.detail_of(RetryInfo).retry_delay.ToTimedelta().total_seconds() > 30


def test_asks_the_rules_of_a_service_elsewhere(
    serve: Serve, sources: Sources, remote: Served
) -> None:
    def attributes(call: Any) -> dict[str, str | None]:
        user = f"{sources.kind}-{call.metadata['user']}"
        return {"path": call.metadata["path"], "user": user}

    def asking(path: str) -> dict[str, Any]:
        return {"metadata": [("path", path), ("user", "42")]}

    client = serve(RateLimit(attributes=attributes), source=sources.client(remote.url, timeout=5))
    assert client.codes(11, **asking("/search")) == [OK] * 10 + [REFUSED]
    refused = client.place(**asking("/search"))
    assert [each.subject for each in refused.detail_of(QuotaFailure).violations] == [
        "search-per-user#1"
    ]
    assert client.codes(1, **asking("/blocked")) == ["PERMISSION_DENIED"]
    assert client.codes(3, **asking("/export")) == [OK, OK, OK]


def test_asks_rules(serve: Serve, sources: Sources) -> None:
    key_of = RateLimit(attributes=lambda call: {"api_key": call.metadata.get("x-api-key")})
    client = serve(key_of, source=sources.engine(parse_text(RULES), sources.limiter()))
    key: dict[str, Any] = {"metadata": [("x-api-key", "one-secret")]}
    assert client.codes(3, **key) == [OK, OK, REFUSED]
    refused = client.place(**key)
    assert [each.subject for each in refused.detail_of(QuotaFailure).violations] == [
        "orders-per-key#1"
    ]
    assert "one-secret" not in f"{refused.detail}{refused.trailing}"
    nobody = client.place()
    assert (nobody.code.name, nobody.detail) == (
        "UNAUTHENTICATED",
        "This request has to say what it is counted by: API key.",
    )
    blocked = client.place(method="/shop.Other/Place")
    assert (blocked.code.name, blocked.detail) == (
        "PERMISSION_DENIED",
        "Requests like this are blocked.",
    )
    assert blocked.trailing["grpc-retry-pushback-ms"] == "-1"


def test_rules_grant_slots(serve: Serve, sources: Sources) -> None:
    client = serve(RateLimit(), source=sources.engine(parse_text(RULES), sources.limiter()))
    stream = client.watching(b"a wait")
    assert next(stream) == b"a"
    assert client.chat(b"a").code.name == REFUSED
    client.shop.go_on.set()
    assert list(stream) == []
    wait_until(lambda: client.chat(b"a").code.name == OK)


def test_calls_go_on_when_the_store_is_down(
    serve: Serve, sources: Sources, dead_store: str
) -> None:
    client = serve(
        RateLimit("2/hour", Concurrency(5, lease=60), settle=lambda response: 1),
        source=sources.limiter(dead_store),
    )
    began = time.monotonic()
    assert client.codes(3) == [OK, OK, REFUSED]
    assert client.watch(b"a").code.name == REFUSED
    assert time.monotonic() - began < 10


def test_a_closed_limit_is_unavailable_while_the_store_is_down(
    serve: Serve, sources: Sources, dead_store: str
) -> None:
    client = serve(RateLimit("2/hour", on_error="closed"), source=sources.limiter(dead_store))
    refused = client.place()
    assert refused.code.name == "UNAVAILABLE"
    assert refused.detail.startswith("Requests cannot be counted now")
    assert refused.detail_of(QuotaFailure) is None
    assert int(refused.trailing["grpc-retry-pushback-ms"]) > 0
    assert client.shop.seen == []


def test_an_open_limit_lets_pass_while_the_store_is_down(
    serve: Serve, sources: Sources, dead_store: str
) -> None:
    client = serve(RateLimit("1/hour", on_error="open"), source=sources.limiter(dead_store))
    assert client.codes(3) == [OK, OK, OK]


def test_calls_go_on_when_the_service_is_down(
    serve: Serve, sources: Sources, dead_store: str
) -> None:
    url = dead_store.replace("redis:", "http:")
    client = serve("2/hour", source=sources.client(url))
    assert client.codes(3) == [OK, OK, REFUSED]


@pytest.mark.parametrize("status", [401, 403, 429, 503])
def test_refusals_may_have_another_code(serve: Serve, status: int) -> None:
    client = serve(RateLimit("1/hour", key=header("x-api-key")), status=status)
    expected = {
        401: "UNAUTHENTICATED",
        403: "PERMISSION_DENIED",
        429: REFUSED,
        503: "UNAVAILABLE",
    }[status]
    assert client.codes(1, b"tea", PLACE) == [expected]
    assert client.codes(2, metadata=[("x-api-key", "k")]) == [OK, expected]
