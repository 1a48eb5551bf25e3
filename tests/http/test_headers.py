"""Headers say what is so: a parser of others reads them, and who believes them is admitted."""

from __future__ import annotations

import string
from typing import Any, get_args

import http_sf
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limen import Limiter
from limen.engine import Engine
from limen.errors import InvalidInput
from limen.http import (
    Answer,
    HeaderStyle,
    Quota,
    answer_of,
    answer_of_verdict,
    headers,
    raw_headers,
    retry_after_s,
)
from limen.http.headers import MAX_POLICIES
from limen.model import Check, Concurrency, Decision, Limit
from limen.rules import parse_text
from limen.testing import ManualClock
from tests.http.histories import BUCKETS, History, slots

SEEDS = range(400)
REQUESTS = 15

Items = dict[str, dict[str, Any]]


def items(value: str) -> Items:
    """Read a field as others do, and see that each item is a string with parameters."""
    found: Any = http_sf.parse(value.encode(), tltype="list")
    assert isinstance(found, list)
    names = [name for name, _ in found]
    assert all(type(name) is str for name in names)
    assert len(set(names)) == len(names)
    return dict(found)


def read(answer: Answer) -> tuple[Items, Items, int | None]:
    """Return policies, limits and `Retry-After`, after what holds for every answer was seen."""
    sent = dict(headers(answer))
    assert len(sent) == len(headers(answer))
    policies = items(sent.pop("RateLimit-Policy")) if "RateLimit-Policy" in sent else {}
    limits = items(sent.pop("RateLimit")) if "RateLimit" in sent else {}
    text = sent.pop("Retry-After", None)
    assert not sent
    retry_after = None if text is None else int(text)
    assert text is None or (text.isdigit() and text.isascii() and int(text) >= 1)
    for policy in policies.values():
        assert set(policy) <= {"q", "w", "qu"}
        assert type(policy["q"]) is int
        assert policy["q"] >= 1
        assert type(policy.get("w", 1)) is int
        assert policy.get("w", 1) >= 1
        assert policy.get("qu", "concurrent-requests") == "concurrent-requests"
    for name, limit in limits.items():
        assert set(limit) <= {"r", "t"}
        assert type(limit["r"]) is int
        assert 0 <= limit["r"] <= policies[name]["q"]
        assert type(limit.get("t", 0)) is int
        assert limit.get("t", 0) >= 0
        # The draft: Retry-After should not come before the end of the effective window.
        assert retry_after is None or limit["t"] <= retry_after
    assert (retry_after is None) == (answer.allowed or answer.retry_after is None)
    return policies, limits, retry_after


@pytest.mark.parametrize("first", range(0, len(SEEDS), 100))
def test_others_read_what_is_meant_for_thousands_of_decisions(first: int) -> None:
    refused = 0
    for seed in SEEDS[first : first + 100]:
        history = History(seed)
        for _ in range(REQUESTS):
            history.pause()
            decision = history.ask()
            answer = answer_of(decision)
            policies, limits, retry_after = read(answer)
            assert len(policies) == len(history.limits)
            told = [part for part in decision.parts if part.allowed == decision.allowed]
            assert [limit["r"] for limit in limits.values()] == [part.remaining for part in told]
            refused += not decision.allowed
            if not decision.allowed and decision.retry_after is not None:
                assert retry_after == max(1, *[limit["t"] for limit in limits.values()])
                assert retry_after is not None
                assert retry_after - 1 < max(decision.retry_after, 1)
    assert refused > 200


@pytest.mark.parametrize("first", range(0, len(SEEDS), 100))
def test_who_waits_exactly_retry_after_is_admitted(first: int) -> None:
    waits = never = 0
    for seed in SEEDS[first : first + 100]:
        history = History(seed)
        for _ in range(REQUESTS):
            history.pause()
            decision = history.ask()
            if decision.allowed:
                continue
            _, _, retry_after = read(answer_of(decision))
            if retry_after is None:
                history.clock.advance(decision.reset_after)
                assert not history.again().allowed
                never += 1
            else:
                history.clock.advance(retry_after)
                assert history.again().allowed, (seed, decision)
                waits += 1
    assert waits > 100
    assert never > 10


def test_who_waits_exactly_until_the_x_ratelimit_reset_is_admitted() -> None:
    for seed in SEEDS[:100]:
        history = History(seed)
        for _ in range(REQUESTS):
            decision = history.ask()
            if decision.allowed or decision.retry_after is None:
                continue
            now = history.clock.time_ns() / 1e9
            reset = int(
                dict(headers(answer_of(decision), ["x-ratelimit"], now))["X-RateLimit-Reset"]
            )
            delta = dict(headers(answer_of(decision), ["x-ratelimit-delta"]))["X-RateLimit-Reset"]
            assert now + int(delta) <= reset < now + int(delta) + 1
            history.clock.advance(reset - now)
            assert history.again().allowed


def test_who_waits_exactly_retry_after_for_a_slot_gets_one() -> None:
    refused = 0
    for seed in range(40):
        for decision, clock, limiter, concurrency in slots(seed, 12):
            policies, limits, retry_after = read(answer_of(decision))
            ((policy, limit),) = [(policies[name], limits[name]) for name in limits]
            assert policy == {"q": concurrency.slots, "qu": "concurrent-requests"}
            assert limit["r"] == decision.remaining
            assert ("t" in limit) == (not decision.allowed)
            if retry_after is not None:
                refused += 1
                clock.advance(retry_after)
                assert limiter.slot("key", concurrency).acquire().allowed
    assert refused > 50


def test_after_the_effective_window_the_whole_quota_is_there() -> None:
    for seed in SEEDS:
        history = History(seed)
        history.ask()
        history.pause()
        decision = history.ask()
        if not decision.allowed:
            continue
        policies, limits, _ = read(answer_of(decision))
        history.clock.advance(max(limit.get("t", 32 * 86_400) for limit in limits.values()))
        seen = history.limiter.decide(
            *[Check(limit, "key", 0) for limit in history.limits], charge=False
        )
        assert [part.remaining for part in seen.parts] == [item["q"] for item in policies.values()]


@pytest.mark.parametrize(
    "text",
    [
        "7/s burst 3",
        "7/s burst 30",
        "97/minute token_bucket",
        "3/1.5s",
        "5/2s fixed_window",
        "5/2s rolling_window",
        "7/s leaky_bucket burst 9",
    ],
)
def test_who_sends_q_at_once_every_w_seconds_is_never_refused(text: str) -> None:
    clock = ManualClock(1_000.3)
    limiter = Limiter(clock=clock)
    ((_, policy),) = items(
        dict(headers(answer_of(limiter.peek("key", text))))["RateLimit-Policy"]
    ).items()
    for _ in range(20):
        assert limiter.check("key", text, cost=policy["q"]).allowed
        clock.advance(policy["w"])


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("100/minute", '"100/minute";q=100;w=60'),
        ("10/s burst 20", '"10/s burst 20";q=20;w=2'),
        ("100/minute burst 10", '"100/minute burst 10";q=10;w=6'),
        ("97/s burst 7", '"97/s burst 7";q=7;w=1'),
        ("5/1.5s", '"5/1.5s";q=5;w=2'),
        ("5/50ms", '"5/50ms";q=5;w=1'),
        ("1000/month", '"1000/month";q=1000'),
        ("1000/calendar day", '"1000/calendar day";q=1000;w=86400'),
        (Limit(5, 60, name='say "hi" \\o/'), r'"say \"hi\" \\o/";q=5;w=60'),
        (Limit(5, 60, name="größe"), '"gr%C3%B6%C3%9Fe";q=5;w=60'),
        (Limit(5, 60, name="50%"), '"50%25";q=5;w=60'),
        (Limit(5, 60, name="a\r\nSet-Cookie: b"), '"a%0D%0ASet-Cookie: b";q=5;w=60'),
        (Limit(5, 60, name="\ud800"), '"%ED%A0%80";q=5;w=60'),
    ],
)
def test_a_policy_is_written(limit: Limit | str, said: str) -> None:
    sent = dict(headers(answer_of(Limiter().check("key", limit))))
    assert sent["RateLimit-Policy"] == said


def test_a_long_name_is_cut_and_stays_itself() -> None:
    limits = [Limit(5, 60, name="é" * 190 + end) for end in "ab"]
    policies = items(dict(headers(answer_of(Limiter().check("key", *limits))))["RateLimit-Policy"])
    assert len(policies) == 2
    assert all(len(name) == 80 and name.startswith("%C3%A9%C3") for name in policies)
    assert not any(name.endswith("#2") for name in policies)


def test_slots_are_concurrent_requests() -> None:
    decision = Limiter().slot("key", Concurrency(3, lease=30)).acquire()
    assert headers(answer_of(decision)) == [
        ("RateLimit-Policy", '"3 at once";q=3;qu="concurrent-requests"'),
        ("RateLimit", '"3 at once";r=2'),
    ]


def test_a_refusal_names_who_refuses_and_all_policies() -> None:
    limiter = Limiter(clock=ManualClock(100.0))
    limiter.check("key", "1/s", "9/hour")
    assert headers(answer_of(limiter.check("key", "1/s", "9/hour"))) == [
        ("RateLimit-Policy", '"1/s";q=1;w=1, "9/hour";q=9;w=3600'),
        ("RateLimit", '"1/s";r=0;t=1'),
        ("Retry-After", "1"),
    ]


def test_a_request_that_never_fits_has_no_retry_after() -> None:
    decision = Limiter().check("key", "5/minute", cost=6)
    assert headers(answer_of(decision), ["draft-11", "x-ratelimit-delta"]) == [
        ("RateLimit-Policy", '"5/minute";q=5;w=60'),
        ("RateLimit", '"5/minute";r=5;t=60'),
        ("X-RateLimit-Limit", "5"),
        ("X-RateLimit-Remaining", "5"),
        ("X-RateLimit-Reset", "60"),
    ]


def test_an_untouched_quota_is_good_for_a_whole_window() -> None:
    assert ("RateLimit", '"5/minute";r=5;t=60') in headers(
        answer_of(Limiter().peek("k", "5/minute"))
    )
    assert ("RateLimit", '"5/month";r=5') in headers(answer_of(Limiter().peek("k", "5/month")))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, 1),
        (1e-6, 1),
        (1.0, 1),
        (1.000001, 2),
        (59.9, 60),
        (-3.0, 1),
        (1e30, 999_999_999_999_999),
    ],
)
def test_retry_after_is_rounded_up_and_at_least_1(seconds: float, said: int) -> None:
    assert retry_after_s(seconds) == said


def test_shadows_never_appear() -> None:
    limiter = Limiter()
    shadow = Check(Limit(1, 60, name="watched"), "key", enforce=False)
    for _ in range(3):
        alone = limiter.decide(shadow)
        assert headers(answer_of(alone), get_args(HeaderStyle), 0.0) == []
        both = limiter.decide(shadow, Check(Limit(9, 60, name="felt"), "key"))
        assert "watched" not in str(headers(answer_of(both)))
        assert "felt" in str(headers(answer_of(both)))


RULES = """\
rules:
  - {name: free, match: {path: /free}, key: [user], limits: 2/day}
  - {name: two, key: [user], limits: [3/minute, 9/day]}
  - {name: watched, key: [user], limits: 1/day, mode: shadow}
  - {name: evil, match: {path: /evil}, mode: block}
  - {name: named, match: {path: /named}, key: [api_key], missing: deny, limits: 1/day}
  - name: any
    match: {path: /free}
    key: [user]
    tiers: {by: plan, limits: {pro: unlimited}, default: unlimited}
"""


def test_a_verdict_is_told_like_a_decision() -> None:
    engine = Engine(parse_text(RULES), Limiter(clock=ManualClock(100.0)))
    request = {"user": "42", "path": "/free", "plan": "pro"}
    assert headers(answer_of_verdict(engine.decide(request))) == [
        ("RateLimit-Policy", '"free#1";q=2;w=86400, "two#1";q=3;w=60, "two#2";q=9;w=86400'),
        ("RateLimit", '"free#1";r=1;t=86400, "two#1";r=2;t=60, "two#2";r=8;t=86400'),
    ]
    engine.decide(request)
    answer = answer_of_verdict(engine.decide(request))
    assert headers(answer)[1:] == [("RateLimit", '"free#1";r=0;t=86400'), ("Retry-After", "86400")]
    assert [quota.per for quota in answer.quotas] == [("user",)] * 3
    read(answer)


def test_a_verdict_without_limits_has_no_headers() -> None:
    engine = Engine(parse_text(RULES), Limiter())
    for path in ("/evil", "/named"):
        answer = answer_of_verdict(engine.decide({"path": path, "user": "42"}))
        assert not answer.allowed
        assert headers(answer, get_args(HeaderStyle), 0.0) == []
    assert headers(Answer(True), get_args(HeaderStyle), 0.0) == []


@pytest.mark.parametrize("on_error", ["open", "closed"])
def test_what_nobody_counted_is_not_promised(on_error: Any) -> None:
    with Limiter("redis://127.0.0.1:1", on_error=on_error) as limiter:
        answer = answer_of(limiter.check("key", "9/day"))
    wait = [] if on_error == "open" else [("Retry-After", "1")]
    assert headers(answer, ["draft-11", "x-ratelimit-delta"]) == [
        ("RateLimit-Policy", '"9/day";q=9;w=86400'),
        *wait,
    ]


def test_what_this_process_counts_in_the_stores_place_is_told() -> None:
    with Limiter("redis://127.0.0.1:1", instances=3) as limiter:
        sent = dict(headers(answer_of(limiter.check("key", "9/day"))))
    assert items(sent["RateLimit"])["9/day"]["r"] == 2


def quotas() -> st.SearchStrategy[Quota]:
    limit = st.sampled_from(
        [Limit(10, 60), Limit(7, 0.5), Limit(3, "month"), Limit(9, 1, burst=20), Concurrency(4, 30)]
    )
    seconds = st.floats(-1, 1e17)
    return st.builds(
        Quota,
        st.text(max_size=30) | st.text(string.printable, max_size=200),
        limit,
        st.booleans(),
        st.integers(-5, 10**9),
        st.none() | seconds,
        seconds,
        source=st.sampled_from(["store", "local", "open", "closed"]),
    )


@given(st.lists(quotas(), max_size=30))
@example([Quota("a", Limit(1, 60), True, 1, 0.0, 0.0)] * 3)
@example(
    [Quota("a", Limit(1, 60), True, 1, 0.0, 0.0), Quota("a#2", Limit(1, 60), True, 1, 0.0, 0.0)] * 2
)
def test_whatever_the_answer_the_fields_can_be_read_and_stay_small(found: list[Quota]) -> None:
    refusing = [quota for quota in found if not quota.allowed]
    waits = [quota.retry_after for quota in refusing]
    retry_after = None if None in waits else max([wait for wait in waits if wait], default=0.0)
    answer = Answer(not refusing, tuple(found), retry_after)
    policies, _, _ = read(answer)
    assert len(policies) == min(len(found), MAX_POLICIES)
    for _, value in headers(answer, get_args(HeaderStyle), 1.0):
        assert value.isascii()
        assert value.isprintable()
        assert len(value) <= 2_600


def test_what_refuses_comes_before_what_is_near_when_there_are_too_many() -> None:
    def quota(number: int) -> Quota:
        allowed = number != 50
        return Quota(f"n{number}", Limit(1_000, 60), allowed, number, 0.0 if allowed else 5.0, 9.0)

    answer = Answer(False, tuple(map(quota, range(99, -1, -1))), 5.0)
    policies, limits, _ = read(answer)
    assert list(policies) == ["n50", *[f"n{number}" for number in range(14, -1, -1)]]
    assert list(limits) == ["n50"]


def test_x_ratelimit_tells_of_the_binding_limit() -> None:
    limiter = Limiter(clock=ManualClock(1_000.5))
    decision = limiter.check("key", "9/hour", "3/minute", "10/s burst 20")
    assert headers(answer_of(decision), ["x-ratelimit"], 1_000.5) == [
        ("X-RateLimit-Limit", "3"),
        ("X-RateLimit-Remaining", "2"),
        ("X-RateLimit-Reset", "1061"),
    ]


def test_x_ratelimit_agrees_with_the_decision_on_what_binds() -> None:
    for seed in SEEDS[:100]:
        history = History(seed)
        for _ in range(REQUESTS):
            decision = history.ask()
            binding = answer_of(decision).binding
            assert binding is not None
            assert (binding.limit, binding.remaining) == (decision.limit, decision.remaining)


def test_raw_headers_are_the_same_in_bytes_and_lower_case() -> None:
    decision: Decision = Limiter().check("key", "3/minute", cost=9)
    styles: list[HeaderStyle] = ["draft-11", "x-ratelimit"]
    assert raw_headers(answer_of(decision), styles, 5.0) == [
        (name.lower().encode(), value.encode())
        for name, value in headers(answer_of(decision), styles, 5.0)
    ]


def test_x_ratelimit_needs_the_time() -> None:
    with pytest.raises(InvalidInput, match="needs now="):
        headers(answer_of(Limiter().check("key", "3/minute")), ["x-ratelimit"])


def test_buckets_are_among_the_random_decisions() -> None:
    seen = {limit.algorithm for seed in SEEDS for limit in History(seed).limits}
    assert seen >= {*BUCKETS, "fixed_window", "sliding_counter", "rolling_window", "packed_window"}
