"""What nobody should send: the right status, a sentence that names the place, nothing consumed."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from limen.rules.stores.tokens import Role
from tests.server.admin.driving import ADMIN, CHECK, Answer
from tests.server.asking import Asker, asking, granted, verdict

RULES = """
rules:
  - name: per-user
    key: [user]
    limits: 1000/hour
  - name: per-api-key
    key: [api_key]
    cost: tokens
    limits: 1000/hour
  - name: at-once
    match: {path: /export}
    key: [user]
    concurrency: {slots: 3, lease: 60s}
"""
CANARY = "canary-of-a-caller-0123456789"
SIGNED_BY = "canary-signing-secret-0123456789abcdef"
SECRETS = (ADMIN, CHECK, CANARY, SIGNED_BY)
ATTRIBUTES = {"user": "42", "api_key": CANARY, "path": "/export"}
OWN: dict[str, Any] = {"key": CANARY, "limits": "1000/hour"}
PLACES = {"slots": 3, "lease": 60}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    folder = tmp_path_factory.mktemp("service")
    with asking(folder, RULES, {"auth.secret": SIGNED_BY}) as [started]:
        yield started


@pytest.fixture(autouse=True)
def harmless(service: Asker, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Hold each test to it that nothing is counted, and nobody stumbles."""
    before = consumed(service)
    with caplog.at_level(logging.DEBUG):
        yield
    assert consumed(service) == before
    assert not [record for record in caplog.records if record.exc_info]
    assert not any(secret in caplog.text for secret in SECRETS)


def consumed(service: Asker) -> Any:
    counts = service.service.watch
    rules = service.check(ATTRIBUTES, peek=True)
    own = service.check(peek=True, **OWN)
    left = [part.remaining for part in (*rules.parts, *own.parts)]
    return left, counts.allowed, counts.refused


def refused(answer: Answer, status: int, *words: str) -> str:
    """Hold an answer to what every refusal of bad input is; return its sentence."""
    assert answer.status == status, answer
    detail = answer.detail
    assert [word for word in words if word not in detail] == [], detail
    assert len(detail) < 600
    whole = answer.body.decode() + str(answer.headers)
    assert not any(secret in whole for secret in SECRETS)
    assert "Traceback" not in whole
    assert answer.json["title"]
    return detail


def rules(**more: Any) -> dict[str, Any]:
    return {"attributes": ATTRIBUTES, **more}


def attributes(**more: Any) -> dict[str, Any]:
    return {"attributes": {**ATTRIBUTES, **more}}


def own(**more: Any) -> dict[str, Any]:
    return {**OWN, **more}


def raw(text: str) -> bytes:
    """Return a question by the rules with some text behind it."""
    return json.dumps(rules()).encode()[:-1] + text.encode("utf-8", "surrogateescape")


DEEP = "[" * 100_000
HUGE = json.dumps(attributes(more="x" * 2**20)).encode()

# What is sent to /v1/check, the status, and words of the sentence.
CHECKS: dict[str, tuple[Any, int, tuple[str, ...]]] = {
    "nothing": (b"", 400, ("the body is empty",)),
    "white space": (b" \r\n\t", 400, ("the body is empty",)),
    "no json": (b"user=42", 400, ("not JSON", "byte 0")),
    "half an object": (raw(""), 400, ("not JSON",)),
    "half a text": (b'{"key": "4', 400, ("not JSON",)),
    "a comma too many": (raw(",}"), 400, ("not JSON",)),
    "two objects": (raw("}{}"), 400, ("not JSON", "trailing")),
    "a comment": (b"/* */ {}", 400, ("not JSON",)),
    "single quotes": (b"{'key': 'k'}", 400, ("not JSON",)),
    "a byte order mark": (b"\xef\xbb\xbf{}", 400, ("not JSON",)),
    "utf-16": (json.dumps(rules()).encode("utf-16"), 400, ("not JSON",)),
    "not utf-8": (raw(', "key": "\udcff"}'), 400, ("UTF-8",)),
    "an encoded surrogate": (raw(', "key": "\udced\udca0\udc80"}'), 400, ("UTF-8",)),
    "half a surrogate pair": (raw(', "key": "\\ud800"}'), 400, ("not JSON",)),
    "the other half": (raw(', "key": "\\udc00"}'), 400, ("not JSON",)),
    "a raw newline in a text": (b'{"key": "a\nb"}', 400, ("not JSON",)),
    "a nul byte": (b"\x00", 400, ("not JSON",)),
    "null": (None, 422, ("object", "null")),
    "a number": (1, 422, ("object", "int")),
    "a text": ("user", 422, ("object", "str")),
    "a list of lists": ([[]], 422, ("[0]: ", "object", "array")),
    "a list of nulls": ([None], 422, ("[0]: ", "object", "null")),
    "deep": (f'{{"attributes": {DEEP}'.encode(), 422, ("attributes: ", "array")),
    "a deep list": (DEEP.encode(), 422, ("[0]: ", "array")),
    "deep in an attribute": (f'{{"attributes": {{"user": {DEEP}'.encode(), 422, ("attributes: ",)),
    "deep in an unknown field": (f'{{"x": {DEEP}'.encode(), 422, ("'x'",)),
    "a wrong attribute in half an object": (b'{"attributes": {"user": 1', 422, ("attributes: ",)),
    "a wrong attribute, then another": (
        b'{"attributes": {"user": 1}, "attributes": [1]}',
        422,
        ("attributes: ",),
    ),
    "a wrong attribute, then none": (
        b'[{"attributes": {"user": 1}, "attributes": null}]',
        422,
        ("[0].attributes: ",),
    ),
    "too large": (HUGE, 413, ("longer than 1,048,576 bytes",)),
    "too many": ([own()] * 1_001, 422, ("length <= 1000",)),
    "nothing to decide": ({}, 422, ("attributes are missing",)),
    "only a cost": ({"cost": 1}, 422, ("attributes are missing",)),
    "an unknown field": (rules(kost=1), 422, ("unknown field 'kost'",)),
    "a field of a verdict": (rules(allowed=True), 422, ("unknown field 'allowed'",)),
    "a field in capitals": (rules(Cost=1), 422, ("unknown field 'Cost'",)),
    "a field without a name": (rules(**{"": 1}), 422, ("unknown field ''",)),
    "a field with a long name": (rules(**{"x" * 100_000: 1}), 422, ("unknown field 'xxx",)),
    "an unknown field in a list": ([own(), rules(kost=1)], 422, ("[1]", "unknown field 'kost'")),
    "cost NaN": (raw(', "cost": NaN}'), 400, ("not JSON",)),
    "cost infinite": (raw(', "cost": 1e400}'), 422, ("cost: ",)),
    "cost negative": (rules(cost=-1), 422, ("cost: ", ">= 0")),
    "cost minus zero as a float": (raw(', "cost": -0.0}'), 422, ("cost: ", "float")),
    "cost 2^53": (rules(cost=2**53), 422, ("cost: ", "<= 1000000000")),
    "cost 2^64": (rules(cost=2**64), 422, ("cost: ", "<= 1000000000")),
    "cost of a thousand digits": (raw(f', "cost": {"9" * 1_000}}}'), 422, ("cost: ",)),
    "cost just too large": (rules(cost=10**9 + 1), 422, ("cost: ", "<= 1000000000")),
    "cost true": (rules(cost=True), 422, ("cost: ", "bool")),
    "cost 1.5": (rules(cost=1.5), 422, ("cost: ", "float")),
    "cost null": (rules(cost=None), 422, ("cost: ", "null")),
    "cost as text": (rules(cost="1"), 422, ("cost: ", "str")),
    "peek as a number": (rules(peek=1), 422, ("peek: ", "bool")),
    "attributes null": ({"attributes": None}, 422, ("attributes are missing",)),
    "attributes as a list": ({"attributes": ["user"]}, 422, ("attributes: ", "array")),
    "attributes as text": ({"attributes": "user=42"}, 422, ("attributes: ", "str")),
    "an attribute is a number": (attributes(user=42), 422, ("attributes.user: ", "int")),
    "an attribute is null": (attributes(plan=None), 422, ("attributes.plan: ", "null")),
    "an attribute is a list": (attributes(plan=["x"]), 422, ("attributes.plan: ", "array")),
    "an attribute is true": (attributes(plan=True), 422, ("attributes.plan: ", "bool")),
    "an attribute in a list": ([own(), attributes(x=1)], 422, ("[1].attributes.x: ", "int")),
    "an attribute without a name": (attributes(**{"": "x"}), 422, ("attributes: ", "name", ">= 1")),
    "an attribute with a long name": (
        attributes(**{"x" * 101: "x"}),
        422,
        ("attributes: ", "name", "<= 100"),
    ),
    "a huge attribute": (attributes(plan="x" * 4_097), 422, ("attributes.plan: ", "<= 4096")),
    "too many attributes": (
        {"attributes": {f"a{n}": "x" for n in range(101)}},
        422,
        ("attributes: ", "<= 100"),
    ),
    "a cost attribute that is no number": (attributes(tokens="many"), 422, ("'tokens'", "'many'")),
    "a cost attribute that is negative": (attributes(tokens="-1"), 422, ("'tokens'",)),
    "a cost attribute in other digits": (attributes(tokens="٣"), 422, ("'tokens'",)),
    "a cost attribute that is too large": (attributes(tokens="9" * 4_000), 422, ("'tokens'",)),
    "attributes and a key": (rules(**OWN), 422, ("attributes", "key and limits")),
    "attributes and limits": (rules(limits="1/s"), 422, ("attributes", "key and limits")),
    "a key without limits": ({"key": CANARY}, 422, ("both key and limits",)),
    "limits without a key": ({"limits": "1/s"}, 422, ("both key and limits",)),
    "an empty key": (own(key=""), 422, ("key: ", ">= 1")),
    "a long key": (own(key="k" * 4_097), 422, ("key: ", "<= 4096")),
    "a key that is a number": (own(key=42), 422, ("key: ", "int")),
    "a limit that is no limit": (own(limits="lots"), 422, ("lots",)),
    "a limit with more behind it": (own(limits="5/minute please"), 422, ("please",)),
    "a limit of nothing": (own(limits="0/minute"), 422, ("0/minute",)),
    "a limit of less": (own(limits="-5/minute"), 422, ("-5/minute",)),
    "a limit of too much": (own(limits=f"{2**60}/minute"), 422, (str(2**60),)),
    "a window that is too large": (own(limits="10001/minute"), 422, ("10001",)),
    "burst with a window": (own(limits="5/s rolling_window burst 9"), 422, ("burst",)),
    "a limit with a nul": (own(limits="5/minute\x00"), 422, ("limit",)),
    "empty limits": (own(limits=""), 422, ("limits: ", ">= 1")),
    "no limits": (own(limits=[]), 422, ("limits: ", ">= 1")),
    "a limit that is a number": (own(limits=[5]), 422, ("limits[0]: ", "int")),
    "a limit that is an object": (own(limits={"quota": 5}), 422, ("limits: ", "object")),
    "a long limit": (own(limits="5/minute" + " " * 1_000), 422, ("limits: ", "<= 1000")),
    "the same limit twice": (own(limits="5/hour; 6/hour"), 422, ("5/hour", "6/hour", "share")),
    "the same limit in two texts": (own(limits=["5/hour", "5/hour"]), 422, ("5/hour", "share")),
    "101 limits": (own(limits=[f"9/{n}s" for n in range(1, 102)]), 422, ("limits: ", "<= 100")),
    "101 limits in few texts": (
        own(limits=["; ".join(f"9/{n}s" for n in range(n, n + 51)) for n in (1, 61)]),
        422,
        ("at most 100 limits",),
    ),
    "concurrency in a check": (own(concurrency=PLACES), 422, ("unknown field 'concurrency'",)),
}


@pytest.mark.parametrize("name", CHECKS)
def test_check(service: Asker, name: str) -> None:
    sent, status, words = CHECKS[name]
    body = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    refused(service.ask("POST", "/v1/check", body), status, *words)


SLOTS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "nothing to hold": ({}, ("attributes are missing",)),
    "a key without places": (OWN, ("both key and concurrency",)),
    "only a key": ({"key": "k"}, ("both key and concurrency",)),
    "places without a key": ({"concurrency": PLACES}, ("both key and concurrency",)),
    "both": (rules(key="k", concurrency=PLACES), ("attributes", "key")),
    "no slots": (own(concurrency={"slots": 0, "lease": 1}), ("concurrency.slots: ", ">= 1")),
    "half a slot": (own(concurrency={"slots": 1.5, "lease": 1}), ("concurrency.slots: ", "float")),
    "too many slots": (
        own(concurrency={"slots": 10**7, "lease": 1}),
        ("concurrency.slots: ", "<= 1000000"),
    ),
    "no lease": (own(concurrency={"slots": 1}), ("concurrency: ", "'lease' is missing")),
    "a lease of nothing": (
        own(concurrency={"slots": 1, "lease": 0}),
        ("concurrency.lease: ", "> 0"),
    ),
    "a lease too short": (own(concurrency={"slots": 1, "lease": 1e-9}), ("lease",)),
    "a lease without end": (
        own(concurrency={"slots": 1, "lease": 1e9}),
        ("concurrency.lease: ", "<= 86400"),
    ),
    "a lease as text": (
        own(concurrency={"slots": 1, "lease": "60s"}),
        ("concurrency.lease: ", "str"),
    ),
    "more in it": (own(concurrency={**PLACES, "x": 1}), ("concurrency: ", "unknown field 'x'")),
    "peek": (rules(peek=True), ("unknown field 'peek'",)),
    "a list": ([rules()], ("object", "array")),
    "a bad cost": (attributes(tokens="x"), ("'tokens'",)),
    "a bad limit": (own(concurrency=PLACES, limits="lots"), ("lots",)),
}


@pytest.mark.parametrize("name", SLOTS)
def test_slots(service: Asker, name: str) -> None:
    sent, words = SLOTS[name]
    refused(service.post("/v1/slots", sent), 422, *words)


# Paths and methods

ELSEWHERE = [
    *("", "/v1", "/v1/", "/v1/check/", "//v1/check", "/v1//check", "/V1/CHECK", "/v1/checks"),
    *("/v1/check\x00", "/v1/check%00", "/v1/check;x=1", "/v1/check/../check", "/../v1/check"),
    *("/v1/slots/", "/v2/check", "/v1/check\n", "/v1/\ufffd", "/v1/" + "x" * 10_000, "/metrics/x"),
    *("/healthz/", "/.env", "http://other/v1/check", "/v1\\check", "/v1/check ", " /v1/check"),
]


@pytest.mark.parametrize("path", ELSEWHERE)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_unknown_paths(service: Asker, path: str, method: str) -> None:
    body = json.dumps(rules()).encode() if method == "POST" else b""
    refused(service.ask(method, path, body), 404, "there is nothing at")


@pytest.mark.parametrize(
    "path", ["/adminv1", "/admin/v1/../../v1/check", "/docsx", "/openapi.jsonx"]
)
def test_unknown_paths_beside_administration(service: Asker, path: str) -> None:
    refused(service.post(path, rules()), 404)


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/v1/check", "POST"),
        ("/v1/refund", "POST"),
        ("/v1/settle", "POST"),
        ("/v1/slots", "POST"),
        ("/v1/slots/x", "POST, DELETE"),
        ("/v1/usage", "GET"),
        ("/healthz", "GET, HEAD"),
        ("/readyz", "GET, HEAD"),
    ],
)
@pytest.mark.parametrize(
    "method", ["GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "X"]
)
def test_wrong_methods(service: Asker, path: str, allow: str, method: str) -> None:
    if method in allow.split(", "):
        return
    answer = service.ask(method, path, json.dumps(rules()).encode())
    refused(answer, 405, path, allow, method)
    assert answer.headers["allow"] == allow


# Receipts and slots


@pytest.fixture(scope="module")
def receipt(service: Asker) -> str:
    found = service.check(attributes(tokens="5")["attributes"]).receipt
    assert found
    return found


@pytest.fixture(scope="module")
def slot(service: Asker) -> str:
    found = service.acquire(attributes=ATTRIBUTES).slot
    assert found
    return found


def test_a_receipt_with_one_letter_changed(service: Asker, receipt: str) -> None:
    for at, letter in enumerate(receipt):
        for other in {"A", "B", "z", "-", "+", "/", "=", "é", "\x00"} - {letter}:
            forged = receipt[:at] + other + receipt[at + 1 :]
            answer = service.post("/v1/refund", {"receipt": forged})
            refused(answer, 422, "this receipt was not written here")


def test_a_receipt_with_one_bit_changed(service: Asker, receipt: str) -> None:
    for at, letter in enumerate(receipt):
        for bit in range(7):
            other = chr(ord(letter) ^ 1 << bit)
            forged = receipt[:at] + other + receipt[at + 1 :]
            answer = service.post("/v1/settle", {"receipt": forged, "actual": 0})
            refused(answer, 422, "this receipt was not written here")


def test_a_receipt_that_is_cut_or_longer(service: Asker, receipt: str) -> None:
    forged = [receipt[:at] for at in range(1, len(receipt))]
    forged += [receipt + more for more in ("=", "==", "A", "AAAA", " ", "\n", "=AAA", receipt)]
    forged += [f" {receipt}", "null", "0", "\ud7ff", "x" * 65_536]
    for each in forged:
        answer = service.post("/v1/refund", {"receipt": each})
        refused(answer, 422, "this receipt was not written here")


def test_a_slot_with_one_letter_changed(service: Asker, slot: str) -> None:
    for at, letter in enumerate(slot):
        for other in {"A", "z", "_", "+", "/", "é"} - {letter}:
            forged = slot[:at] + other + slot[at + 1 :]
            for method in ("POST", "DELETE"):
                answer = service.ask(method, f"/v1/slots/{forged}")
                refused(answer, 422, "this slot was not written here")
    for forged in (slot[:-1], f"{slot}=", f"{slot}/", f"{slot}/{slot}", slot.lower(), "..", "\x00"):
        refused(service.ask("DELETE", f"/v1/slots/{forged}"), 422, "this slot")
    assert service.renew(slot)


def test_a_receipt_is_no_slot_and_a_slot_no_receipt(
    service: Asker, receipt: str, slot: str
) -> None:
    refused(service.ask("POST", f"/v1/slots/{receipt}"), 422, "this slot was not written here")
    refused(service.ask("DELETE", f"/v1/slots/{receipt}"), 422, "this slot was not written here")
    refused(service.post("/v1/refund", {"receipt": slot}), 422, "this receipt was not")
    refused(service.post("/v1/settle", {"receipt": slot, "actual": 1}), 422, "this receipt was not")


def test_a_receipt_of_somebody_with_another_secret(service: Asker, tmp_path: Path) -> None:
    with asking(tmp_path, RULES) as [other]:
        foreign = other.check(ATTRIBUTES).receipt
        held = other.acquire(attributes=ATTRIBUTES).slot
    answer = service.post("/v1/refund", {"receipt": foreign})
    refused(answer, 422, "this receipt was not written here", "LIMEN_AUTH__SECRET")
    answer = service.ask("DELETE", f"/v1/slots/{held}")
    refused(answer, 422, "this slot was not written here", "LIMEN_AUTH__SECRET")


CORRECTIONS: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "no receipt": ("refund", {}, ("'receipt' is missing",)),
    "an empty receipt": ("refund", {"receipt": ""}, ("receipt: ", ">= 1")),
    "a receipt that is null": ("refund", {"receipt": None}, ("receipt: ", "null")),
    "a receipt that is a number": ("refund", {"receipt": 1}, ("receipt: ", "int")),
    "more than a receipt": ("refund", {"receipt": "x", "actual": 1}, ("unknown field 'actual'",)),
    "a list of receipts": ("refund", [{"receipt": "x"}], ("object", "array")),
    "no actual cost": ("settle", {"receipt": "x"}, ("'actual' is missing",)),
    "a negative one": ("settle", {"receipt": "x", "actual": -1}, ("actual: ", ">= 0")),
    "one that is null": ("settle", {"receipt": "x", "actual": None}, ("actual: ", "null")),
    "one that is true": ("settle", {"receipt": "x", "actual": True}, ("actual: ", "bool")),
    "one of 2^53": ("settle", {"receipt": "x", "actual": 2**53}, ("actual: ", "<= 1000000000")),
    "half a one": ("settle", {"receipt": "x", "actual": 0.5}, ("actual: ", "float")),
    "one as text": ("settle", {"receipt": "x", "actual": "7"}, ("actual: ", "str")),
    "a list of them": ("settle", {"receipt": "x", "actual": [1]}, ("actual: ", "array")),
    "none of them": ("settle", {"receipt": "x", "actual": {}}, ("actual: ", ">= 1")),
    "a negative attribute": (
        "settle",
        {"receipt": "x", "actual": {"a": 1, "tokens": -1}},
        ("actual.tokens: ", ">= 0"),
    ),
    "a null attribute": (
        "settle",
        {"receipt": "x", "actual": {"tokens": None}},
        ("actual.tokens: ", "null"),
    ),
    "too many attributes": (
        "settle",
        {"receipt": "x", "actual": {f"a{n}": 1 for n in range(101)}},
        ("actual: ", "<= 100"),
    ),
}


@pytest.mark.parametrize("name", CORRECTIONS)
def test_refund_and_settle(service: Asker, name: str) -> None:
    path, sent, words = CORRECTIONS[name]
    refused(service.post(f"/v1/{path}", sent), 422, *words)


def test_to_settle_what_no_rule_charged_by_changes_nothing(service: Asker, receipt: str) -> None:
    for actual in ({"bytes": 0}, {"": 0}, {"user": 0}, {"Tokens": 0}, {"x" * 10_000: 0}):
        assert not service.changed("settle", receipt=receipt, actual=actual)


# The query of /v1/usage

QUERIES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "twice": (b"user=1&user=2", ("twice",)),
    "twice, once escaped": (b"user=1&%75ser=1", ("twice",)),
    "no value": (b"user", ("query",)),
    "an empty pair": (b"user=1&&path=/", ("query",)),
    "not utf-8": (b"user=%ff", ("query",)),
    "a name that is not utf-8": (b"%ff=1", ("query",)),
    "an encoded surrogate": (b"user=%ed%a0%80", ("query",)),
    "not ascii": ("user=é".encode(), ("query",)),
    "too many": (b"&".join(b"a%d=1" % n for n in range(101)), ("at most 100",)),
    "no name": (b"=1", ("name",)),
    "a long name": (b"x" * 101 + b"=1", ("name", "100")),
    "a long value": (b"user=" + b"x" * 4_097, ("user", "4096")),
    "a bad cost": (b"user=42&api_key=1&tokens=x", ("'tokens'",)),
}


@pytest.mark.parametrize("name", QUERIES)
def test_usage(service: Asker, name: str) -> None:
    query, words = QUERIES[name]
    refused(service.ask("GET", "/v1/usage", query=query), 422, *words)


# Whatever is odd, and yet fine


@pytest.mark.parametrize(
    "sent",
    [
        attributes(user="\x00"),
        attributes(user="a\x00b\r\n\x1b[31m"),
        attributes(user="\ud83d\ude00" * 2_048),
        attributes(user=" "),
        attributes(**{"x" * 100: "x" * 4_096}),
        attributes(**{"\x00": "\x00"}),
        own(key="\x00", limits="9/hour"),
        own(key="{}" * 2_048, limits=[f"9/{n}s" for n in range(1, 101)]),
    ],
)
def test_odd_but_fine(service: Asker, sent: dict[str, Any]) -> None:
    answer = service.post("/v1/check", {**sent, "peek": True})
    assert verdict(answer).allowed


# Who asks


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    with asking(tmp_path_factory.mktemp("guarded"), RULES, {"auth.checks": "token"}) as [started]:
        yield started


def token(service: Asker, role: Role, expires_at: datetime | None = None) -> tuple[str, str]:
    """Create a token; return its id and its secret."""
    books = service.service.books
    made, secret = service.run(books.create_token(role, f"a {role}", "tests", expires_at))
    service.run(service.service.access.refresh(books))
    return made.id, secret


ENDPOINTS = [
    ("POST", "/v1/check"),
    ("POST", "/v1/refund"),
    ("POST", "/v1/settle"),
    ("POST", "/v1/slots"),
    ("POST", "/v1/slots/x"),
    ("DELETE", "/v1/slots/x"),
    ("GET", "/v1/usage"),
]


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (None, "a token is needed"),
        (b"", "unknown, revoked or expired"),
        (b"Bearer", "unknown, revoked or expired"),
        (b"Bearer ", "unknown, revoked or expired"),
        (b"Basic " + CHECK.encode(), "unknown, revoked or expired"),
        (b"Token " + CHECK.encode(), "unknown, revoked or expired"),
        (CHECK.encode(), "unknown, revoked or expired"),
        (b"Bearer" + CHECK.encode(), "unknown, revoked or expired"),
        (b"Bearer " + CHECK.encode() + b"x", "unknown, revoked or expired"),
        (b"Bearer " + CHECK.encode()[:-1], "unknown, revoked or expired"),
        (b"Bearer " + CHECK.encode().upper(), "unknown, revoked or expired"),
        (b"Bearer " + CHECK.encode() + b", Bearer x", "unknown, revoked or expired"),
        (b"Bearer \xff\xfe\x00", "unknown, revoked or expired"),
        (b"Bearer " + b"x" * 100_000, "unknown, revoked or expired"),
        (b"Bearer limen_00000000_" + b"A" * 43, "unknown, revoked or expired"),
    ],
)
def test_without_a_good_token(
    guarded: Asker, method: str, path: str, sent: bytes | None, says: str
) -> None:
    before = consumed_by_check(guarded)
    headers = [] if sent is None else [(b"authorization", sent)]
    answer = guarded.ask(method, path, json.dumps(rules()).encode(), headers=headers)
    refused(answer, 401, says)
    assert answer.headers["www-authenticate"] == 'Bearer realm="limen"'
    assert consumed_by_check(guarded) == before


def consumed_by_check(service: Asker) -> Any:
    counts = service.service.watch
    headers = [(b"authorization", b"Bearer " + CHECK.encode())]
    looked = verdict(service.post("/v1/check", rules(peek=True), headers=headers))
    return [part.remaining for part in looked.parts], counts.allowed, counts.refused


def test_a_bad_token_is_refused_where_none_is_needed(service: Asker) -> None:
    headers = [(b"authorization", b"Bearer wrong")]
    refused(service.post("/v1/check", rules(), headers=headers), 401, "this token is unknown")


def test_tokens_that_ended(guarded: Asker, caplog: pytest.LogCaptureFixture) -> None:
    _, expired = token(guarded, "check", datetime.now(UTC) + timedelta(seconds=0.2))
    id_, revoked = token(guarded, "check")
    headers = [(b"authorization", b"Bearer " + revoked.encode())]
    assert verdict(guarded.post("/v1/check", rules(peek=True), headers=headers))
    guarded.run(guarded.service.books.revoke_token(id_, "tests"))
    guarded.run(guarded.service.access.refresh(guarded.service.books))
    answer = guarded.post("/v1/check", rules(), headers=headers)
    refused(answer, 401, "unknown, revoked or expired")
    assert revoked not in str(answer)
    headers = [(b"authorization", b"Bearer " + expired.encode())]
    while (answer := guarded.post("/v1/check", rules(peek=True), headers=headers)).status == 200:
        pass
    refused(answer, 401, "unknown, revoked or expired")
    assert expired not in str(answer)
    assert expired not in caplog.text


@pytest.mark.parametrize("role", ["viewer", "editor"])
@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_the_wrong_role(guarded: Asker, role: Role, method: str, path: str) -> None:
    before = consumed_by_check(guarded)
    _, secret = token(guarded, role)
    headers = [(b"authorization", b"Bearer " + secret.encode())]
    answer = guarded.ask(method, path, json.dumps(rules()).encode(), headers=headers)
    refused(answer, 403, "check or admin", role)
    assert secret not in str(answer)
    assert consumed_by_check(guarded) == before


@pytest.mark.parametrize("role", ["check", "admin"])
def test_the_right_role(guarded: Asker, role: Role) -> None:
    _, secret = token(guarded, role)
    fixed = {"check": CHECK, "admin": ADMIN}[role]
    for sent in (f"Bearer {secret}", f"bearer {secret}", f"BEARER   {secret} ", f"Bearer {fixed}"):
        headers = [(b"authorization", sent.encode())]
        assert verdict(guarded.post("/v1/check", rules(peek=True), headers=headers))


def test_who_may_not_ask_is_not_told_what_was_wrong(guarded: Asker) -> None:
    refused(guarded.ask("POST", "/v1/check", b"{"), 401, "a token is needed")
    refused(guarded.ask("POST", "/v1/check", HUGE), 401, "a token is needed")


def test_health_needs_no_token(guarded: Asker) -> None:
    assert guarded.ask("GET", "/healthz").status == 200
    assert guarded.ask("GET", "/readyz").json["status"] == "ok"


# How much


def test_body_above_the_limit_is_refused(service: Asker) -> None:
    refused(service.ask("POST", "/v1/check", HUGE), 413, "longer than 1,048,576 bytes")


def test_every_receipt_that_is_given_can_be_given_back(service: Asker) -> None:
    limits = [f"1000/{n}m sliding_counter" for n in range(1, 101)]
    for key in ("k" * 4_096, "\U0001f600" * 4_096, random_text(4_096)):
        answer = service.post("/v1/check", {"key": key, "limits": limits, "cost": 7})
        receipt = verdict(answer).receipt
        assert receipt is not None
        # Not a hundred times the key.
        assert len(receipt) < 3 * len(key.encode())
        assert service.changed("refund", receipt=receipt)
        looked = service.check(key=key, limits=limits, peek=True)
        assert {part.remaining for part in looked.parts} == {1_000}
        service.service.watch.allowed -= 1


def test_every_slot_that_is_given_can_be_released(service: Asker) -> None:
    for key in ("k" * 4_096, "\U0001f600" * 4_096, random_text(1_000)):
        answer = service.post("/v1/slots", {"key": key, "concurrency": PLACES})
        slot = granted(answer).slot
        assert slot is not None
        # It has to fit into the first line of a request.
        assert len(slot) < service.service.settings.http.max_header // 2
        assert service.renew(slot)
        assert service.release(slot)
        service.service.watch.allowed -= 1
    answer = service.post("/v1/slots", {"key": random_text(4_096), "concurrency": PLACES})
    refused(answer, 422, "the key", "too long")
    answer = service.post("/v1/slots", attributes(user=random_text(4_096)))
    refused(answer, 422, "attributes", "too long")


def random_text(length: int) -> str:
    """Return a text that cannot be said any shorter."""
    found = random.Random(1)
    return "".join(chr(found.randrange(0x10000, 0x110000)) for _ in range(length))


def test_a_list_whose_answer_would_be_a_flood(service: Asker) -> None:
    limits = [f"{number}/{number} minutes" for number in range(2, 102)]
    questions = [{"key": f"{n:04}".rjust(4_000, "x"), "limits": limits} for n in range(12)]
    refused(service.post("/v1/check", questions), 422, "ask in shorter lists")
    peeks = [{**question, "peek": True} for question in questions[:5]]
    assert service.post("/v1/check", peeks).status == 200
