"""Who is refused reads why, and when to come back; and nobody reads a key."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from limen import Limiter
from limen.engine import Engine
from limen.http import (
    Answer,
    Problem,
    Quota,
    Refusal,
    answer_of,
    answer_of_verdict,
    headers,
    refusal,
    shedding,
)
from limen.model import Check, Concurrency, Decision, Limit
from limen.rules import parse_text
from limen.testing import ManualClock
from tests.http.histories import History

SECRET = "sk-live-4eC39HqLyjWDarjtT1zdp7dc"


def said(refused: Refusal) -> dict[str, Any]:
    """Return the document, after what holds for every refusal was seen."""
    sent = dict(refused.headers)
    assert len(sent) == len(refused.headers)
    assert sent["Content-Type"] == "application/problem+json"
    assert sent["Cache-Control"] == "no-store"
    document: dict[str, Any] = msgspec.json.decode(refused.body)
    assert document["status"] == refused.status
    assert document.get("retry-after") == (
        int(sent["Retry-After"]) if "Retry-After" in sent else None
    )
    assert isinstance(document["title"], str)
    assert all(isinstance(name, str) for name in document["violated-policies"])
    return document


def refused_by(*limits: Limit | str, cost: int = 1, wait: float = 0.0) -> Decision:
    clock = ManualClock(1_000.0)
    limiter = Limiter(clock=clock)
    while (decision := limiter.check(SECRET, *limits, cost=cost)).allowed:
        clock.advance(wait)
    return decision


def test_the_document_is_as_the_draft_has_it() -> None:
    refused = refusal(answer_of(refused_by("2/minute", "9/hour")), instance="urn:uuid:1")
    assert refused.status == 429
    assert said(refused) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota Exceeded",
        "status": 429,
        "detail": "2 requests a minute are allowed; come back in 60 s.",
        "instance": "urn:uuid:1",
        "violated-policies": ["2/minute"],
        "retry-after": 60,
    }
    assert refused.headers[2:] == headers(answer_of(refused_by("2/minute", "9/hour")))


@pytest.mark.parametrize(
    ("decision", "detail"),
    [
        (refused_by("1/s"), "1 request a second is allowed; come back in 1 s."),
        (refused_by("2/hour"), "2 requests an hour are allowed; come back in 60 minutes."),
        (refused_by("2/2m"), "2 requests every 2 minutes are allowed; come back in 120 s."),
        (refused_by("2/121s"), "2 requests every 121 seconds are allowed; come back in 3 minutes."),
        (refused_by("2/day"), "2 requests a day are allowed; come back in 24 hours."),
        (refused_by("2/week"), "2 requests a week are allowed; come back in 7 days."),
        (refused_by("2/250ms"), "2 requests every 250ms are allowed; come back in 1 s."),
        (refused_by("1/month"), "1 request a month is allowed; come back in 31 days."),
        (
            refused_by("1/calendar day"),
            "1 request a calendar day is allowed; come back in 24 hours.",
        ),
        (
            refused_by("1/s burst 3"),
            "1 request a second is allowed, 3 at once; come back in 1 s.",
        ),
        (
            refused_by("9/m min_interval 5s"),
            "9 requests a minute are allowed, 5 seconds apart; come back in 5 s.",
        ),
        (refused_by("2000/m", cost=1500), "2,000 units a minute are allowed; come back in 60 s."),
        (
            refused_by("2/m", cost=3),
            "2 units a minute are allowed; this one counts 3, which never fits.",
        ),
        (
            refused_by(Limit(9, 9, algorithm="leaky_bucket", max_delay=1), cost=5),
            "9 units every 9 seconds are allowed; come back in 4 s.",
        ),
    ],
    ids=lambda value: str(value.limit) if isinstance(value, Decision) else "",
)
def test_a_person_understands_the_detail(decision: Decision, detail: str) -> None:
    assert said(refusal(answer_of(decision)))["detail"] == detail


def test_slots_are_told_as_what_runs_at_a_time() -> None:
    limiter = Limiter(clock=ManualClock())
    concurrency = Concurrency(1, lease=30)
    limiter.slot("key", concurrency).acquire()
    document = said(refusal(answer_of(limiter.slot("key", concurrency).acquire())))
    assert document["violated-policies"] == ["1 at once"]
    assert document["detail"] == (
        "1 request at a time is allowed; come back when one of them is done, or in 30 s."
    )


RULES = """\
rules:
  - {name: per-user, key: [user], limits: 2/minute}
  - {name: per-key, key: [api_key, ip], limits: [2/minute, 100/day]}
  - {name: watched, key: [user], limits: 1/day, mode: shadow}
  - {name: evil, match: {path: /evil}, mode: block}
  - {name: spam, match: {path: /spam}, mode: block, ends: 1970-01-01T00:10:00Z}
  - {name: named, match: {path: /named}, key: [tenant], missing: deny, limits: 1/day}
"""


@pytest.fixture
def engine() -> Engine:
    clock = ManualClock(100.0)
    return Engine(parse_text(RULES), Limiter(clock=clock), clock=clock)


def test_a_verdict_says_whom_the_limit_is_for(engine: Engine) -> None:
    request = {"user": "42"}
    while (verdict := engine.decide(request)).allowed:
        pass
    document = said(refusal(answer_of_verdict(verdict)))
    assert document["detail"] == (
        "2 requests a minute are allowed for this user; come back in 60 s."
    )
    assert document["violated-policies"] == ["per-user#1"]


def test_no_key_is_in_a_refusal(engine: Engine) -> None:
    request = {"user": SECRET, "api_key": SECRET, "ip": "203.0.113.9"}
    while (verdict := engine.decide(request)).allowed:
        pass
    refused = refusal(answer_of_verdict(verdict), ["draft-11", "x-ratelimit"], now=0.0)
    told = str(refused.headers) + refused.body.decode()
    assert SECRET not in told
    assert "203.0.113.9" not in told
    assert said(refused)["violated-policies"] == ["per-user#1", "per-key#1"]
    limiter = Limiter()
    checks = [Check(Limit(1, 60, name=name), SECRET) for name in ("a", "b")]
    limiter.decide(*checks)
    alone = refusal(answer_of(limiter.decide(*checks)))
    assert SECRET not in str(alone)


@pytest.mark.parametrize(
    ("path", "detail", "retry_after"),
    [
        ("/evil", "Requests like this are blocked.", None),
        ("/spam", "Requests like this are blocked for another 9 minutes.", 500),
        ("/named", "This request has to say what it is counted by: tenant.", None),
    ],
)
def test_who_is_refused_without_counting_gets_403(
    engine: Engine, path: str, detail: str, retry_after: int | None
) -> None:
    document = said(refusal(answer_of_verdict(engine.decide({"path": path}))))
    assert (document["status"], document["title"]) == (403, "Forbidden")
    assert "type" not in document
    assert document["violated-policies"] == [path[1:]]
    assert (document["detail"], document.get("retry-after")) == (detail, retry_after)


@pytest.mark.parametrize(
    ("status", "title"),
    [
        (429, "Too Many Requests"),
        (401, "Unauthorized"),
        (422, "Unprocessable Content"),  # and Entity for Pythons before 3.13
        (499, "Refused"),
    ],
)
def test_another_status_may_be_asked_for(engine: Engine, status: int, title: str) -> None:
    answer = answer_of_verdict(engine.decide({"path": "/evil"}))
    document = said(refusal(answer, status=status))
    assert (document["status"], document["title"]) == (status, title)
    assert refusal(answer_of(refused_by("1/s")), status=403).status == 403


def test_a_closed_limit_is_no_fault_of_the_client() -> None:
    with Limiter("redis://127.0.0.1:1", on_error="closed") as limiter:
        document = said(refusal(answer_of(limiter.check("key", "9/day"))))
    assert (document["status"], document["violated-policies"]) == (503, [])
    assert document["type"].endswith("#temporary-reduced-capacity")
    assert document["detail"] == (
        "Requests cannot be counted now, and none is let through uncounted; come back in 1 s."
    )


def test_shedding_is_503() -> None:
    refused = shedding(2.5, instance="urn:uuid:1")
    assert said(refused) == {
        "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        "title": "Temporary Reduced Capacity",
        "status": 503,
        "detail": "The server has too much to do at the moment; come back in 3 s.",
        "instance": "urn:uuid:1",
        "violated-policies": [],
        "retry-after": 3,
    }


def test_a_problem_leaves_out_what_is_not_said() -> None:
    problem = Problem(title="Bad Request", status=400, detail="cost must be a number")
    assert msgspec.json.decode(problem.encode()) == {
        "title": "Bad Request",
        "status": 400,
        "detail": "cost must be a number",
    }


def test_problems_and_headers_call_policies_the_same() -> None:
    seen = 0
    for seed in range(200):
        history = History(seed)
        for _ in range(10):
            decision = history.ask()
            if decision.allowed:
                continue
            refused = refusal(answer_of(decision))
            policies = dict(refused.headers)["RateLimit-Policy"]
            for name in said(refused)["violated-policies"]:
                escaped = name.replace("\\", "\\\\").replace('"', '\\"')
                assert f'"{escaped}";q=' in policies
                seen += 1
    assert seen > 500


def test_violated_policies_are_those_of_the_header_when_many_limits_refuse() -> None:
    quotas = [
        Quota(f"n{number}", Limit(10, 60), number == 0, 0, float(number), 60.0)
        for number in range(40)
    ]
    refused = refusal(Answer(False, tuple(quotas), 39.0))
    sent = dict(refused.headers)["RateLimit-Policy"]
    # The longest wait is the one that the detail speaks of.
    names = [f"n{number}" for number in range(24, 40)]
    assert said(refused)["violated-policies"] == names
    assert [each.split(";")[0] for each in sent.split(", ")] == [f'"{name}"' for name in names]
