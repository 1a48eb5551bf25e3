"""The service as a whole: by gRPC with tokens, as JSON, and when the store is away."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_args

import pytest
import redis
from msgspec import structs

from limen.model import AlgorithmName
from limen.server.envoy.schema import SHOULD_RATE_LIMIT, RateLimitResponse
from limen.server.grpc.calls import Call, Code, Failed, Unary
from limen.server.grpc.connection import GrpcLimits
from limen.server.http import Request
from limen.server.http.exchange import Rejected
from limen.server.process.grpc_methods import methods_of
from limen.server.process.main import _grpc as grpc_of
from tests.server.admin.driving import ADMIN, CHECK, StubPeer
from tests.server.asking import Asker, asking
from tests.server.envoy.conftest import Alone, Make
from tests.server.envoy.describing import (
    OK,
    OVER_LIMIT,
    asked,
    codes,
    described,
    headers,
    remaining,
    request,
)
from tests.servers import HOST, Server

USER = {"user": "1"}


# By gRPC


def call(
    asker: Asker, raw: bytes, authorization: str | None = None, timeout: float | None = None
) -> Any:
    """Call as gRPC does; return the response, or the code and the detail of the failure."""
    method = methods_of(asker.service)[SHOULD_RATE_LIMIT]
    assert isinstance(method, Unary)

    async def answer() -> bytes:
        return await method.answer(raw, Call(method, timeout, authorization, b""))

    try:
        return RateLimitResponse.FromString(asker.run(answer()))
    except Failed as error:
        return error.code, str(error)


RAW = request(USER).SerializeToString()


def test_tokens_are_asked_for_where_others_can_connect(make: Make) -> None:
    asker = make(grpc__bind="0.0.0.0:0")
    for authorization in (None, "", "Bearer ", "Bearer wrong", f"Basic {CHECK}", "é", "\x00"):
        code, detail = call(asker, RAW, authorization)
        assert code == Code.UNAUTHENTICATED
        assert "token" in detail
        assert CHECK not in detail
    for token in (CHECK, ADMIN):
        assert codes(call(asker, RAW, f"Bearer {token}")) == [OK, OK]
        assert codes(call(asker, RAW, f"bearer  {token} ")) == [OK, OK]
    # Nobody without one was charged.
    assert remaining(call(asker, RAW, f"Bearer {CHECK}")) == [0]


def test_connections_are_bounded_as_the_settings_say(make: Make) -> None:
    asker = make(grpc__max_connection_age=7.0, http__max_body=2_048, http__read_timeout=3.0)

    async def limits() -> GrpcLimits:
        connections = grpc_of(asker.service)
        connections.close()
        return connections.limits

    found = asker.run(limits())
    # No client may make a question too long by its headers, whatever HTTP takes.
    assert (found.max_age, found.max_message, found.read_timeout) == (7.0, 2**20, 3.0)


def test_a_token_that_may_not_ask_is_denied(make: Make) -> None:
    asker = make(auth__checks="token")
    made = asker.ask(
        "POST",
        "/admin/v1/tokens",
        b'{"name": "r", "role": "viewer"}',
        headers=[(b"authorization", f"Bearer {ADMIN}".encode())],
    )
    assert made.status == 201, made
    code, _ = call(asker, RAW, f"Bearer {made.json['secret']}")
    assert code == Code.PERMISSION_DENIED


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    rules = "rules: [{name: user, key: [user], limits: 1000/day}]"
    with asking(tmp_path_factory.mktemp("whole"), rules) as [started]:
        yield started


def test_no_token_is_asked_for_on_this_host_alone(asker: Asker) -> None:
    assert codes(call(asker, RAW)) == [OK, OK]
    assert codes(call(asker, RAW, "Bearer of the end client")) == [OK, OK]


@pytest.mark.parametrize("raw", [b"\xff", b"", request(domain="d").SerializeToString()])
def test_what_makes_no_sense_is_an_invalid_argument(asker: Asker, raw: bytes) -> None:
    code, detail = call(asker, raw)
    assert code == Code.INVALID_ARGUMENT
    assert detail


@pytest.mark.parametrize("timeout", [None, 0.0, 1e-9, 0.001, 3_600.0 * 10**8])
def test_any_patience_will_do(asker: Asker, timeout: float | None) -> None:
    assert codes(call(asker, RAW, timeout=timeout)) == [OK, OK]


# What the client of Envoy is told


def test_headers_tell_where_a_client_stands(alone: Alone) -> None:
    response = asked(alone, USER)
    assert headers(response)["ratelimit-policy"] == '"user#1";q=5;w=86400'
    assert headers(response)["ratelimit"].startswith('"user#1";r=4;t=')
    assert response.raw_body == b""
    response = asked(alone, described(USER, 5))
    assert codes(response) == [OVER_LIMIT, OVER_LIMIT]
    told = headers(response)
    assert told["content-type"] == "application/problem+json"
    assert told["retry-after"] == "86400"
    problem = json.loads(response.raw_body)
    assert (problem["status"], problem["violated-policies"]) == (429, ["user#1"])
    assert [each for each in told if each != each.lower()] == []


def test_what_was_decided_is_counted(alone: Alone) -> None:
    asked(alone, USER)
    asked(alone, described(USER, 5))
    asked(alone, {"agent": "robot"})
    counts = alone.service.watch
    assert (counts.allowed, counts.refused) == (1, 2)
    assert counts.refused_by == {"user": 1, "never": 1}


# As JSON


def post(alone: Alone, body: bytes) -> tuple[int, dict[str, str], Any]:
    peer: Any = StubPeer()
    sent = Request("POST", b"/json", "/json", b"", [], peer)
    sent.body = body
    reply = alone.run(alone.service.envoy.should_limit_json(sent))
    found = {name.decode(): value.decode() for name, value in reply.headers}
    assert len(found) == len(reply.headers), "a header stands twice"
    return reply.status, found, json.loads(reply.body)


def test_json_says_the_same(alone: Alone) -> None:
    body = json.dumps(
        {"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "1"}]}]}
    ).encode()
    status, told, found = post(alone, body)
    assert status == 200
    assert found["overallCode"] == "OK"
    assert found["statuses"][0]["limitRemaining"] == 4
    assert found["statuses"][0]["currentLimit"] == {"requestsPerUnit": 5, "unit": "DAY"}
    assert told["ratelimit-policy"] == '"user#1";q=5;w=86400'
    assert remaining(asked(alone, USER)) == [3]
    more = json.loads(body) | {"hitsAddend": 4}
    status, told, found = post(alone, json.dumps(more).encode())
    assert (status, found["overallCode"]) == (429, "OVER_LIMIT")
    assert "retry-after" in told
    assert "rawBody" not in found
    assert (told["content-type"], told["cache-control"]) == ("application/json", "no-store")


def test_json_has_every_field_of_the_message(alone: Alone) -> None:
    body = b"""{"domain": "d", "hits_addend": 1, "descriptors": [{
        "entries": [{"key": "user", "value": "1"}],
        "limit": {"requests_per_unit": 7, "unit": "HOUR"}, "hits_addend": "2"}]}"""
    status, _, found = post(alone, body)
    assert (status, found["statuses"][0]["limitRemaining"]) == (200, 5)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"1",
        b"[]",
        b'"x"',
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"domain": 1}',
        b'{"nonsense": 1}',
        b'{"domain": "d", "domain": "e"}',
        b'{"descriptors": {}}',
        b'{"domain": "\\ud800"}',
        b'{"hits_addend": -1}',
        b'{"hits_addend": 1e400}',
        b'{"hits_addend": NaN}',
        b'{"hits_addend": ' + b"9" * 5_000 + b"}",
        b'{"descriptors": ' + b"[" * 10_000,
        b'{"descriptors": [{"limit": {"unit": "CENTURY"}}]}',
        b'{"descriptors": [{"entries": [{"key": "\\udcff"}]}]}',
    ],
)
def test_what_is_not_the_message_in_json_is_a_bad_request(alone: Alone, body: bytes) -> None:
    with pytest.raises(Rejected) as caught:
        post(alone, body)
    assert caught.value.status == 400
    assert len(caught.value.detail) < 300


@pytest.mark.parametrize("body", [b"{}", b'{"domain": "d"}', b'{"domain": "d", "descriptors": []}'])
def test_a_request_without_domain_or_descriptors_is_a_bad_request_in_json(
    asker: Asker, body: bytes
) -> None:
    answer = asker.ask("POST", "/json", body)
    assert (answer.status, answer.json["status"]) == (400, 400)
    assert "domain is empty" in answer.json["detail"] or "descriptors" in answer.json["detail"]


# Probes of envoyproxy/ratelimit


def test_healthcheck_answers_as_envoyproxy_ratelimit_does(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = asker.ask("GET", "/healthcheck")
    assert (answer.status, answer.body) == (200, b"OK")
    assert asker.ask("POST", "/healthcheck").status == 405
    starting = structs.replace(asker.service.health, status="starting")
    monkeypatch.setattr(type(asker.service), "health", property(lambda _: starting))
    answer = asker.ask("GET", "/healthcheck")
    assert (answer.status, answer.body) == (500, b"")


# When the store is away

AWAY = """
rules:
  - {name: open, match: {descriptor: open}, key: [open], limits: 3/day, on_error: open}
  - {name: closed, match: {descriptor: closed}, key: [closed], limits: 3/day, on_error: closed}
  - {name: local, match: {descriptor: local}, key: [local], limits: 3/day, on_error: local}
  - {name: never, match: {descriptor: never}, mode: block}
"""


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_each_rule_says_what_holds_when_the_store_is_away(
    make: Make, valkey: Server, how: str
) -> None:
    url = f"redis://{HOST}:{valkey.port}"
    asker = make(AWAY, store__url=url, gateway__deadline=0.05, store__deadline=0.05)
    assert codes(asked(asker, {"open": "1"}, {"closed": "1"}, {"local": "1"})) == [OK] * 4
    if how == "killed":
        valkey.kill()
    else:
        valkey.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(5):
            found = call(asker, request({"open": "1"}).SerializeToString())
            assert codes(found) == [OK, OK]
            assert not found.statuses[0].HasField("current_limit")
            found = call(asker, request({"closed": "1"}, {"never": "1"}).SerializeToString())
            assert found.overall_code == OVER_LIMIT
            found = call(asker, request({"closed": "1"}).SerializeToString())
            assert codes(found) == [OVER_LIMIT, OVER_LIMIT]
        lefts = [codes(call(asker, request({"local": "2"}).SerializeToString())) for _ in range(4)]
        assert lefts == [[OK, OK]] * 3 + [[OVER_LIMIT, OVER_LIMIT]]
        both = request({"open": "1"}, {"closed": "1"}, {"local": "3"}).SerializeToString()
        assert codes(call(asker, both)) == [OVER_LIMIT, OK, OVER_LIMIT, OK]
    finally:
        if how == "frozen":
            valkey.process.send_signal(signal.SIGCONT)


def test_a_question_that_is_not_answered_is_told_of_in_the_log(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    asker = make(auth__checks="token")
    method = methods_of(asker.service)[SHOULD_RATE_LIMIT]
    assert isinstance(method, Unary)

    async def answer(authorization: str | None) -> None:
        with pytest.raises(Failed):
            await method.answer(b"", Call(method, None, authorization, b""))

    with caplog.at_level(logging.WARNING, "limen"):
        for authorization in (None, "Bearer nobody-knows-this-one") * 3:
            asker.run(answer(authorization))
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("a question of Envoy's is not answered, by UNAUTHENTICATED: a token is")
    assert "nobody-knows" not in caplog.text


def test_all_descriptors_of_a_request_are_one_call_of_the_store(make: Make, valkey: Server) -> None:
    asker = make(store__url=f"redis://{HOST}:{valkey.port}")
    asked(asker, USER)
    ten = [{"user": str(number)} for number in range(10)]
    calls = []
    with redis.Redis(port=valkey.port) as admin:
        for _ in range(4):
            found: Any = admin.info("commandstats")
            calls.append(found["cmdstat_evalsha"]["calls"])
            assert codes(asked(asker, *ten)) == [OK] * 11
    # Now and then the service looks after its store in between.
    assert min([after - before for before, after in pairwise(calls)]) == 1


@pytest.mark.parametrize("algorithm", get_args(AlgorithmName))
def test_any_algorithm_may_stand_behind_a_descriptor(make: Make, algorithm: str) -> None:
    asker = make(f"rules: [{{name: a, key: [user], limits: 3/90s, algorithm: {algorithm}}}]")
    found = [asked(asker, USER) for _ in range(4)]
    assert [each.overall_code for each in found] == [OK, OK, OK, OVER_LIMIT]
    assert all(each.statuses[0].current_limit.requests_per_unit == 3 for each in found)
    assert int(headers(found[-1])["retry-after"]) > 0
