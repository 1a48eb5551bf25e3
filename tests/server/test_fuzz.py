"""Whatever is sent, the answer is one that is described: never a 5xx, never an exception.

Short in `make test`; `make fuzz` tries ten times as many, and others each time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen import wire
from tests.server.admin.driving import Answer
from tests.server.asking import Asker, asking

RULES = """
rules:
  - name: per-user
    match: {path: /a/*}
    key: [user]
    limits: [20/second, 1000/hour token_bucket]
  - name: tokens
    key: [user, ip]
    cost: tokens
    limits: 500/minute sliding_counter
  - name: plans
    match: {method: [GET, POST]}
    key: [ip]
    missing: deny
    tiers: {by: plan, limits: {free: 3/second, gold: unlimited}, default: 9/minute}
  - name: watched
    limits: 5/minute leaky_bucket
    mode: shadow
  - name: nobody
    match: {path: /b}
    mode: block
  - name: at-once
    match: {path: /a/*}
    key: [user]
    concurrency: {slots: 2, lease: 1s}
exemptions:
  - name: friends
    match: {user: friend}
"""
READERS = {
    "/v1/check": (
        msgspec.json.Decoder(wire.Verdict).decode,
        msgspec.json.Decoder(list[wire.Verdict]).decode,
    ),
    "/v1/refund": (msgspec.json.Decoder(wire.Done).decode,),
    "/v1/settle": (msgspec.json.Decoder(wire.Done).decode,),
    "/v1/slots": (msgspec.json.Decoder(wire.SlotVerdict).decode,),
    "/v1/slots/": (msgspec.json.Decoder(wire.Done).decode,),
    "/v1/usage": (msgspec.json.Decoder(wire.Verdict).decode,),
}
POSTS = ["/v1/check", "/v1/refund", "/v1/settle", "/v1/slots"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    with asking(tmp_path_factory.mktemp("fuzzed"), RULES) as [started]:
        yield started


@pytest.fixture(scope="module")
def valid(service: Asker) -> list[tuple[str, Any]]:
    """What is understood, to begin with."""
    receipt = service.check({"path": "/a/x", "user": "1", "ip": "::1", "tokens": "7"}).receipt
    by_rules = {"attributes": {"path": "/a/x", "user": "1", "ip": "::1", "plan": "free"}}
    own = {"key": "k", "limits": ["9/second; 90/hour token_bucket", "5/s burst 9"]}
    return [
        ("/v1/check", by_rules | {"cost": 2, "peek": False}),
        ("/v1/check", {"attributes": {"user": "2", "tokens": "12"}}),
        ("/v1/check", own | {"cost": 3, "peek": True}),
        ("/v1/check", [by_rules, own, by_rules | {"cost": 0}]),
        ("/v1/slots", by_rules),
        ("/v1/slots", own | {"concurrency": {"slots": 2, "lease": 0.5}}),
        ("/v1/refund", {"receipt": receipt}),
        ("/v1/settle", {"receipt": receipt, "actual": 4}),
        ("/v1/settle", {"receipt": receipt, "actual": {"tokens": 9, "bytes": 1}}),
    ]


def judge(path: str, answer: Answer) -> None:
    """Hold an answer to what is described."""
    if answer.status != 200:
        assert answer.status in (400, 404, 405, 413, 422), answer
        assert answer.detail
        return
    assert answer.headers["content-type"] == "application/json"
    said = _read(path, answer.body)
    for verdict in said if isinstance(said, list) else [said]:
        verdict = verdict.verdict if isinstance(verdict, wire.SlotVerdict) else verdict
        if isinstance(verdict, wire.Verdict):
            consistent(verdict)


def _read(path: str, body: bytes) -> Any:
    one, *many = READERS[path]
    return many[0](body) if many and body.startswith(b"[") else one(body)


def consistent(verdict: wire.Verdict) -> None:
    enforced = [part for part in verdict.parts if part.mode != "shadow"]
    assert verdict.allowed == all(part.allowed for part in enforced)
    assert verdict.degraded == (verdict.source != "store")
    assert verdict.remaining is None or verdict.remaining >= 0
    assert verdict.reset_after >= 0
    assert verdict.delay >= 0
    if verdict.allowed:
        assert verdict.retry_after == 0.0
    else:
        assert verdict.retry_after is None or verdict.retry_after > 0
        assert verdict.receipt is None


# Bytes


@given(path=st.sampled_from(POSTS), body=st.binary(max_size=200))
def test_any_bytes(service: Asker, path: str, body: bytes) -> None:
    judge(path, service.ask("POST", path, body))


PIECES = st.sampled_from(
    [
        *(b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\", b"\\u", b"\\ud800", b"null", b"true"),
        *(b"1", b"-", b"1e999", b"1.5", b" ", b"\n", b"\x00", b"\xff", b"\xf0\x9f\x98\x80"),
        *(b'"attributes":', b'"cost":', b'"key":', b'"limits":', b'"peek":', b'"receipt":'),
        *(b'"actual":', b'"concurrency":', b'"slots":', b'"lease":', b'"user"', b'"9/s"'),
        *(b'{"attributes":{', b'{"attributes":{"a":', b'{"actual":{"a":', b"[" * 2_000),
    ]
)


@given(path=st.sampled_from(POSTS), pieces=st.lists(PIECES, max_size=20))
def test_pieces_of_json(service: Asker, path: str, pieces: list[bytes]) -> None:
    judge(path, service.ask("POST", path, b"".join(pieces)))


@given(data=st.data())
def test_bytes_of_valid_requests_changed(
    service: Asker, valid: list[tuple[str, Any]], data: st.DataObject
) -> None:
    path, value = data.draw(st.sampled_from(valid))
    body = bytearray(json.dumps(value).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        end = data.draw(st.integers(at, min(len(body), at + 8)))
        body[at:end] = data.draw(PIECES | st.binary(max_size=4))
        if not body:
            break
    judge(path, service.ask("POST", path, bytes(body)))


# Values

texts = st.text(max_size=20) | st.sampled_from(["user", "ip", "path", "/a/x", "/b", "9/s", "::1"])
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
)
fields = st.sampled_from(
    [
        *("attributes", "cost", "peek", "key", "limits", "receipt", "actual", "concurrency"),
        *("slots", "lease", "allowed", ""),
    ]
)


@given(path=st.sampled_from(POSTS), value=values | st.dictionaries(fields, values, max_size=5))
def test_any_json(service: Asker, path: str, value: Any) -> None:
    judge(path, service.post(path, value))


@given(data=st.data())
def test_values_of_valid_requests_changed(
    service: Asker, valid: list[tuple[str, Any]], data: st.DataObject
) -> None:
    path, value = data.draw(st.sampled_from(valid))
    for _ in range(data.draw(st.integers(1, 3))):
        value = changed(value, data)
    judge(path, service.post(path, value))


def changed(value: Any, data: st.DataObject) -> Any:
    """Return a value with something else somewhere in it."""
    if isinstance(value, dict) and value and data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(value)))
        new = data.draw(st.just(name) | fields | texts)
        rest = {each: value[each] for each in value if each != name}
        return rest | {new: changed(value[name], data)} if data.draw(st.booleans()) else rest
    if isinstance(value, list) and value and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(value) - 1))
        return [*value[:at], changed(value[at], data), *value[at + 1 :]]
    return data.draw(st.just(value) | values)


# Requests that make sense


attributes = st.dictionaries(
    st.sampled_from(["user", "ip", "path", "method", "plan", "tokens"]) | st.text(min_size=1),
    st.sampled_from(["", "1", "friend", "/a/x", "/b", "GET", "free", "gold", "::1", "1.2.3.4"])
    | st.text(max_size=30),
    max_size=8,
)
limits = st.builds(
    lambda quota, period, rest: f"{quota}/{period}{rest}",
    st.integers(1, 10_000),
    st.sampled_from(["s", "10ms", "minute", "day", "month", "calendar day", "7 weeks"]),
    st.sampled_from(["", " token_bucket", " leaky_bucket", " burst 3", " count_denied"]),
)
costs = st.integers(0, 10) | st.integers(0, 10**9)
questions = st.one_of(
    st.fixed_dictionaries({"attributes": attributes}, optional={"cost": costs}),
    st.fixed_dictionaries(
        {"key": st.text(min_size=1), "limits": limits | st.lists(limits, min_size=1, max_size=3)},
        optional={"cost": costs, "peek": st.booleans()},
    ),
)


@given(asked=questions | st.lists(questions, max_size=5))
def test_what_makes_sense(service: Asker, asked: Any) -> None:
    answer = service.post("/v1/check", asked)
    judge("/v1/check", answer)
    if answer.status == 200 and isinstance(asked, list):
        assert len(answer.json) == len(asked)


@given(asked=questions, actual=costs | st.dictionaries(texts, costs, min_size=1, max_size=3))
def test_every_receipt_is_good_once(service: Asker, asked: Any, actual: Any) -> None:
    answer = service.post("/v1/check", asked)
    judge("/v1/check", answer)
    receipt = answer.json.get("receipt")
    if receipt is None:
        return
    told = {"receipt": receipt, "actual": actual}
    first, second = (service.post("/v1/settle", told) for _ in range(2))
    judge("/v1/settle", first)
    judge("/v1/settle", second)
    assert second.json == {"changed": False}


@given(
    asked=st.fixed_dictionaries({"attributes": attributes})
    | st.fixed_dictionaries(
        {
            "key": st.text(min_size=1),
            "concurrency": st.fixed_dictionaries(
                {"slots": st.integers(1, 5), "lease": st.floats(0.001, 86_400)}
            ),
        },
        optional={"limits": limits},
    )
)
def test_every_slot_can_be_renewed_and_released(service: Asker, asked: Any) -> None:
    answer = service.post("/v1/slots", asked)
    judge("/v1/slots", answer)
    slot = answer.json.get("slot")
    if slot is not None:
        judge("/v1/slots/", service.ask("POST", f"/v1/slots/{slot}"))
        judge("/v1/slots/", service.ask("DELETE", f"/v1/slots/{slot}"))
        assert service.ask("DELETE", f"/v1/slots/{slot}").json == {"changed": False}


# Around the body


@given(slot=st.text(max_size=100), method=st.sampled_from(["POST", "DELETE"]))
def test_any_slot(service: Asker, slot: str, method: str) -> None:
    answer = service.ask(method, f"/v1/slots/{slot}")
    assert answer.status in (404, 422)
    assert answer.detail


@given(query=st.binary(max_size=60) | st.text("ab=&%+;1f/", max_size=60).map(str.encode))
def test_any_query(service: Asker, query: bytes) -> None:
    judge("/v1/usage", service.ask("GET", "/v1/usage", query=query))


@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "HEAD", "OPTIONS"]) | st.text(max_size=8),
    path=st.text(max_size=40) | st.text("/v1checkslots.%", max_size=20).map("/v1/".__add__),
)
def test_any_path(service: Asker, method: str, path: str) -> None:
    answer = service.ask(method, path, b"{}")
    assert answer.status in (200, 401, 404, 405, 422), answer
    if answer.status != 200:
        assert answer.json["status"] == answer.status


@given(
    headers=st.lists(
        st.tuples(
            st.sampled_from([b"authorization", b"x-request-id", b"content-length", b"content-type"])
            | st.binary(max_size=10),
            st.binary(max_size=80)
            | st.sampled_from([b"Bearer ", b"Bearer x", b"0", b"-1", b"9" * 30, b"chunked"]),
        ),
        max_size=5,
    ),
)
def test_any_headers(service: Asker, headers: list[tuple[bytes, bytes]]) -> None:
    answer = service.ask("POST", "/v1/check", b'{"attributes": {}}', headers=headers)
    is_repeated = [name for name, _ in headers].count(b"authorization") > 1
    assert answer.status in ((400,) if is_repeated else (200, 401))
    assert answer.json
