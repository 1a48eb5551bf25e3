"""Answers that are written down at once say what is said by way of decision and message."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from limen import AsyncLimiter, wire
from limen.engine import Asked
from limen.engine.asked import ask
from limen.limiter.plan import combine
from limen.model import Reading
from limen.rules import parse
from limen.server import answers
from limen.server.faces import faces_of
from limen.server.passed import Passed, passed_of
from limen.server.receipts import Receipts, written_charge, written_charges

RECEIPTS = Receipts("secret", "here")
LIMITER = AsyncLimiter()
LIMITS = (
    "10/minute",
    "1000/hour token_bucket burst 50",
    "9/second leaky_bucket",
    "5/day fixed_window",
    "3/hour sliding_counter",
    "7/hour rolling_window",
)
FREE = {"by": "user", "limits": {"ann": "unlimited"}, "default": "5/minute"}
MORE: tuple[dict[str, Any], ...] = (
    {},
    {"key": ["user", "path"]},
    {"key": ["path"]},
    {"cost": 3},
    {"cost": "tokens"},
)
microseconds = st.integers(0, 10**12)
readings = st.tuples(
    st.just(True),
    st.integers(0, 2_000),
    st.just(0),
    microseconds,
    microseconds,
    microseconds,
)


def rule(number: int, limit: str, **more: Any) -> dict[str, Any]:
    return {"name": f"rule-{number}", "key": ["user"], "limits": limit, **more}


def asked_of(*rules: dict[str, Any], cost: int = 1, **attributes: str) -> Asked:
    rule_set = parse({"rules": list(rules)})
    facts = {"user": "ann", **attributes}
    return ask(rule_set, facts, cost, time.time_ns(), slots=False)


def prepared(asked: Asked) -> Passed | None:
    return passed_of(asked, faces_of(asked.found.applied), LIMITER.prepare)


@given(
    limits=st.lists(
        st.tuples(st.sampled_from(LIMITS), st.sampled_from(MORE)), min_size=1, max_size=4
    ),
    user=st.text(min_size=1, max_size=20),
    cost=st.integers(1, 10**9),
    said=st.lists(readings, min_size=4, max_size=4),
    number=st.integers(0, 2**63),
)
def test_the_short_form_says_what_the_long_one_says(
    limits: list[tuple[str, dict[str, Any]]],
    user: str,
    cost: int,
    said: list[Reading],
    number: int,
) -> None:
    rules = [rule(n, limit, **more) for n, (limit, more) in enumerate(limits)]
    asked = asked_of(*rules, cost=cost, user=user, path=f"/%d/{user}", tokens="9")
    faces = faces_of(asked.found.applied)
    passed = passed_of(asked, faces, LIMITER.prepare)
    assert passed is not None
    told = said[: len(limits)]
    verdict = asked.verdict(combine(asked.checks, told, number))
    message, standings = answers.of_verdict(verdict, faces, "some-id", RECEIPTS)
    receipt = passed.receipt(told, number, RECEIPTS)
    standing, body = passed.told(told, "some-id", receipt)
    assert message.receipt is not None
    bill = RECEIPTS.bill(msgspec.json.decode(receipt))
    assert bill == RECEIPTS.bill(message.receipt)
    message = structs.replace(message, receipt=msgspec.json.decode(receipt))
    assert msgspec.json.decode(body, type=wire.Verdict) == message
    # Each field as often, and in the same order.
    assert list(msgspec.json.decode(body)) == list(msgspec.to_builtins(message))
    usual = answers.headers_of(verdict, faces, standings, answers.QUICK_STYLES, 0.0)
    assert usual == [(b"ratelimit-policy", passed.faces.policy), (b"ratelimit", standing)]


@pytest.mark.parametrize("number", [1, 15, 16, 36, 37, 300])
def test_a_number_is_no_part_of_a_format(number: int) -> None:
    """37 is one: in msgpack, as the length of a list or of a text."""
    limit, name, attribute = number * "l", number * "n", number * "a"
    charges = written_charges(number * [(limit, name, attribute, True)])
    said = charges % (number * (written_charge("%k", number, None), bytes(8)))
    charge = [limit, name, "%k", number, None, 0, attribute, True]
    assert msgspec.msgpack.decode(said) == number * [charge]


def test_names_are_no_part_of_a_format() -> None:
    tiers = {"by": "plan", "limits": {"100%d": "7/minute"}, "default": "9/minute"}
    rules = {"name": "one", "key": ["user"], "tiers": tiers}
    passed = prepared(asked_of(rules, plan="100%d", user="50%% of %d"))
    assert passed is not None
    reading = (True, 6, 0, 60, 0, 1)
    said = msgspec.json.decode(passed.told([reading], "%s", b'"%d"')[1])
    assert (said["id"], said["receipt"]) == ("%s", "%d")
    [part] = said["parts"]
    assert (part["tier"], part["key"]) == ("100%d", "user=50%25%25 of %25d")
    bill = RECEIPTS.bill(msgspec.json.decode(passed.receipt([reading], 7, RECEIPTS)))
    assert bill is not None
    assert [charge.check.key for charge in bill.charges] == [part["key"]]


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [rule(1, "5/minute", mode="shadow")],
        [rule(1, "5/minute"), rule(2, "5/minute", mode="shadow")],
        [{"name": "two", "key": ["user"], "limits": ["5/minute", "9/hour"]}],
        [{"name": "block", "mode": "block"}],
        [{"name": "free", "key": ["user"], "tiers": FREE}],
        [rule(1, "5/minute"), {"name": "free", "key": ["user"], "tiers": FREE}],
        [
            {"name": "two", "key": ["user"], "limits": ["5/minute", "9/hour"]},
            {"name": "free", "key": ["user"], "tiers": FREE},
        ],
        [rule(1, "5/minute"), rule(2, "5/hour", concurrency={"slots": 2, "lease": "60s"})],
    ],
)
def test_what_takes_a_closer_look_is_not_prepared(rules: list[dict[str, Any]]) -> None:
    assert prepared(asked_of(*rules)) is None


def test_what_charges_nothing_is_not_prepared() -> None:
    assert prepared(asked_of(rule(1, "5/minute"), cost=0)) is None
    assert prepared(asked_of(rule(1, "5/minute"), cost=1)) is not None
