"""`/v1/check` and `/v1/usage`: the verdict field by field, the headers, the list, the id."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from limen import wire
from limen.errors import LimenError
from tests.server.asking import Asker, asking, granted, verdict
from tests.servers import HOST, Server, binaries, process

RULES = """
rules:
  - name: search
    match: {path: /search}
    key: [user]
    limits: [3/hour, 100/day]
  - name: per-path
    match: {path: /search}
    key: [user, path]
    limits: 50/hour
  - name: watched
    match: {path: /search}
    key: [user]
    limits: 1/day
    mode: shadow
  - name: no-robots
    match: {path: /blocked}
    mode: block
  - name: counted-beside
    match: {path: /blocked}
    key: [user]
    limits: 5/hour
  - name: tenants
    match: {path: /tenant}
    key: [tenant]
    missing: deny
    limits: 5/hour
  - name: plans
    match: {path: /plan}
    key: [user]
    tiers:
      by: plan
      limits: {free: 2/hour, pro: [20/hour, 90/day], gold: unlimited}
      default: 1/hour
  - name: tried
    match: {path: /tried}
    key: [user]
    limits: 9/hour
    variants: [{name: smooth, percent: 100, algorithm: token_bucket}]
  - name: smooth
    match: {path: /smooth}
    key: [user]
    limits: 2/minute leaky_bucket burst 3
  - name: brief
    match: {path: /brief}
    key: [user]
    limits: 1/300ms
  - name: tokens
    match: {path: /llm}
    key: [user]
    cost: tokens
    limits: 1000/hour
  - name: at-once
    match: {path: /export}
    key: [user]
    concurrency: {slots: 2, lease: 60s}
  - name: exports
    match: {path: /export}
    key: [user]
    limits: 7/hour
  - name: closed
    match: {path: /closed}
    key: [user]
    limits: 5/hour
    on_error: closed
  - name: open
    match: {path: /open}
    key: [user]
    limits: 5/hour
    on_error: open
exemptions:
  - name: our-own
    match: {user: staff}
"""
FIELDS = [
    *("allowed", "rule", "limit", "remaining", "retry_after", "reset_after", "delay", "source"),
    *("degraded", "version", "id", "receipt", "parts", "exempt", "not_applicable"),
]
PART_FIELDS = [
    *("rule", "name", "limit", "key", "mode", "allowed", "cost", "remaining", "retry_after"),
    *("reset_after", "tier", "variant", "reason"),
]


@pytest.fixture(scope="module", params=["memory", "valkey"])
def service(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Asker]:
    """Each test has users of its own."""
    url = "memory://"
    if request.param == "valkey":
        url = f"redis://{HOST}:{request.getfixturevalue('module_valkey').port}"
    # Long enough for a machine that has much else to do.
    flags: dict[str, Any] = {"store.url": url, "store.deadline": 5.0}
    with asking(tmp_path_factory.mktemp(request.param), RULES, flags) as [started]:
        yield started


# One verdict


def test_the_verdict_has_the_fields_of_the_design(service: Asker) -> None:
    answer = service.post("/v1/check", {"attributes": {"path": "/search", "user": "fields"}})
    said = answer.json
    assert list(said) == FIELDS
    assert all(list(part) == PART_FIELDS for part in said["parts"])
    version = service.service.engine.rules.version
    assert {name: said[name] for name in FIELDS[:11] if name != "reset_after"} == {
        "allowed": True,
        "rule": "search",
        "limit": "3/hour",
        "remaining": 2,
        "retry_after": 0.0,
        "delay": 0.0,
        "source": "store",
        "degraded": False,
        "version": version,
        "id": answer.headers["x-request-id"],
    }
    assert said["reset_after"] == pytest.approx(3600)
    assert said["receipt"]
    assert (said["exempt"], said["not_applicable"]) == ([], [])


def test_each_limit_of_each_rule_has_its_part(service: Asker) -> None:
    said = service.check({"path": "/search", "user": "parts"})
    user, both = "user=parts", "user=parts|path=/search"
    assert [(p.rule, p.name, p.limit, p.key, p.mode, p.remaining) for p in said.parts] == [
        ("search", "search#1", "3/hour", user, "enforce", 2),
        ("search", "search#2", "100/day", user, "enforce", 99),
        ("per-path", "per-path#1", "50/hour", both, "enforce", 49),
        ("watched", "watched#1", "1/day", user, "shadow", 0),
    ]
    assert {
        (p.allowed, p.cost, p.retry_after, p.tier, p.variant, p.reason) for p in said.parts
    } == {(True, 1, 0.0, None, None, None)}


def test_a_shadow_tells_that_it_would_refuse_and_does_not(service: Asker) -> None:
    asked = {"path": "/search", "user": "shadow"}
    service.check(asked)
    said = service.check(asked)
    watched = said.parts[3]
    assert (said.allowed, said.rule) == (True, "search")
    assert (watched.mode, watched.allowed, watched.remaining) == ("shadow", False, 0)
    assert watched.retry_after == pytest.approx(86_400, abs=60)


def test_a_refusal_names_the_binding_rule_and_charges_nothing(service: Asker) -> None:
    asked = {"path": "/search", "user": "refused"}
    for _ in range(3):
        assert service.check(asked)
    answer = service.post("/v1/check", {"attributes": asked})
    said = verdict(answer)
    assert not said
    assert (said.rule, said.limit, said.remaining, said.receipt) == ("search", "3/hour", 0, None)
    assert said.retry_after == pytest.approx(3600, abs=60)
    assert said.retry_after == said.parts[0].retry_after
    assert [part.remaining for part in said.parts] == [0, 97, 47, 0]
    assert service.check(asked).parts[1].remaining == 97
    assert answer.headers["retry-after"] == str(math.ceil(said.retry_after or 0))


def test_a_block_refuses_without_counting(service: Asker) -> None:
    answer = service.post("/v1/check", {"attributes": {"path": "/blocked", "user": "robot"}})
    said = verdict(answer)
    assert (said.allowed, said.rule, said.limit, said.remaining) == (False, "no-robots", None, None)
    assert (said.retry_after, said.reset_after, said.receipt) == (None, 0.0, None)
    [part] = said.parts
    assert (part.rule, part.name, part.mode, part.reason) == (
        *("no-robots", "no-robots", "block"),
        "blocked",
    )
    assert (part.allowed, part.limit, part.key, part.remaining) == (False, None, None, None)
    assert "retry-after" not in answer.headers
    # The rule beside it was not charged.
    with_slots = service.check({"path": "/blocked", "user": "robot"}, peek=True)
    assert [part.rule for part in with_slots.parts] == ["no-robots"]


def test_a_missing_key_is_refused_where_the_rule_says_so(service: Asker) -> None:
    for attributes in ({"path": "/tenant"}, {"path": "/tenant", "tenant": ""}):
        said = service.check(attributes)
        assert (said.allowed, said.rule, said.retry_after) == (False, "tenants", None)
        assert [(p.reason, p.mode, p.allowed) for p in said.parts] == [
            ("missing", "enforce", False)
        ]
    assert service.check({"path": "/tenant", "tenant": "acme"})


@pytest.mark.parametrize(
    ("plan", "tier", "limits"),
    [
        ("free", "free", [("plans#1", "2/hour", 1)]),
        ("pro", "pro", [("plans#1", "20/hour", 19), ("plans#2", "90/day", 89)]),
        ("gold", "gold", [("plans", None, None)]),
        ("unheard-of", None, [("plans#1", "1/hour", 0)]),
        (None, None, [("plans#1", "1/hour", 0)]),
    ],
)
def test_tiers(service: Asker, plan: str | None, tier: str | None, limits: list[Any]) -> None:
    attributes = {"path": "/plan", "user": f"tier {plan}"} | ({"plan": plan} if plan else {})
    said = service.check(attributes)
    assert said.allowed
    assert [(part.name, part.limit, part.remaining) for part in said.parts] == limits
    if tier is not None:
        assert {part.tier for part in said.parts} == {tier}
    assert (said.receipt is None) == (plan == "gold")


def test_a_variant_is_named(service: Asker) -> None:
    [part] = service.check({"path": "/tried", "user": "variant"}).parts
    assert (part.variant, part.limit) == ("smooth", "9/hour token_bucket")


def test_an_exemption_is_named_and_nothing_counted(service: Asker) -> None:
    said = service.check({"path": "/search", "user": "staff"})
    assert (said.allowed, said.exempt, said.parts, said.receipt) == (True, ("our-own",), (), None)
    assert (said.rule, said.limit, said.remaining) == (None, None, None)


def test_no_rule_is_no_limit(service: Asker) -> None:
    answer = service.post("/v1/check", {"attributes": {}})
    said = verdict(answer)
    assert (said.allowed, said.rule, said.parts, said.receipt) == (True, None, (), None)
    assert not [name for name in answer.headers if "ratelimit" in name]


def test_a_rule_that_needs_a_slot_is_not_applicable(service: Asker) -> None:
    said = service.check({"path": "/export", "user": "slotless"})
    assert said.not_applicable == ("at-once",)
    assert [part.rule for part in said.parts] == ["exports"]


def test_a_leaky_bucket_tells_its_delay(service: Asker) -> None:
    asked = {"path": "/smooth", "user": "leaky"}
    assert service.check(asked).delay == 0.0
    assert service.check(asked).delay == pytest.approx(30, abs=1)
    assert service.check(asked).delay == pytest.approx(60, abs=1)
    said = service.check(asked)
    assert (said.allowed, said.delay) == (False, 0.0)
    assert said.retry_after == pytest.approx(30, abs=1)


def test_cost_by_an_attribute(service: Asker) -> None:
    said = service.check({"path": "/llm", "user": "cost", "tokens": "250"}, cost=3)
    assert (said.parts[0].cost, said.remaining) == (250, 750)
    said = service.check({"path": "/llm", "user": "cost"}, cost=3)
    assert (said.parts[0].cost, said.remaining) == (3, 747)


def test_what_never_fits_has_no_wait(service: Asker) -> None:
    answer = service.post("/v1/check", {"key": "never", "limits": "3/hour", "cost": 4})
    said = verdict(answer)
    assert (said.allowed, said.retry_after, said.receipt) == (False, None, None)
    assert "retry-after" not in answer.headers


def test_cost_zero_reports_and_charges_nothing(service: Asker) -> None:
    service.check(key="zero", limits="2/hour", cost=2)
    said = service.check(key="zero", limits="2/hour", cost=0)
    assert (said.allowed, said.remaining, said.receipt) == (True, 0, None)


# Limits of one's own


def test_limits_of_ones_own(service: Asker) -> None:
    for limits in ("5/hour; 9/day", ["5/hour", "9/day"], ["5/hour; 9/day"]):
        said = service.check(key=f"own {limits}", limits=limits, cost=2)
        assert (said.rule, said.limit, said.remaining) == (None, "5/hour", 3)
        assert said.version == service.service.engine.rules.version
        assert [(p.rule, p.name, p.limit, p.key, p.cost, p.remaining) for p in said.parts] == [
            (None, "5/hour", "5/hour", f"own {limits}", 2, 3),
            (None, "9/day", "9/day", f"own {limits}", 2, 7),
        ]


def test_a_key_of_ones_own_is_no_key_of_a_rule(service: Asker) -> None:
    asked = {"path": "/search", "user": "apart"}
    for _ in range(3):
        service.check(asked)
    assert service.check(key="user=apart", limits="3/hour").remaining == 2


# Looking


def test_a_peek_charges_nothing(service: Asker) -> None:
    asked = {"path": "/search", "user": "peeked"}
    for _ in range(3):
        said = service.check(asked, peek=True)
        assert (said.allowed, said.remaining, said.receipt) == (True, 3, None)
    assert service.check(asked).remaining == 2
    assert service.check(key="peeked", limits="1/hour", peek=True).remaining == 1
    assert service.check(key="peeked", limits="1/hour").remaining == 0
    said = service.check(key="peeked", limits="1/hour", peek=True)
    assert (said.allowed, said.remaining) == (False, 0)
    assert said.retry_after == pytest.approx(3600, abs=60)


def test_usage_tells_where_somebody_stands(service: Asker) -> None:
    service.check({"path": "/export", "user": "Zoë & co"})
    query = b"path=%2Fexport&user=Zo%C3%AB+%26%20co"
    for _ in range(2):
        said = verdict(service.ask("GET", "/v1/usage", query=query))
        # With the slots, which only need asking.
        assert [(part.name, part.remaining, part.key) for part in said.parts] == [
            ("at-once#1", 2, "user=Zoë & co"),
            ("exports#1", 6, "user=Zoë & co"),
        ]
        assert said.receipt is None
    assert verdict(service.ask("GET", "/v1/usage")).parts == ()


def test_looking_is_not_counted_as_a_decision(service: Asker) -> None:
    counts = service.service.watch
    before = counts.allowed + counts.refused
    service.usage(user="42", path="/search")
    service.check({"path": "/search", "user": "42"}, peek=True)
    assert counts.allowed + counts.refused == before
    service.check({"path": "/blocked"})
    assert counts.allowed + counts.refused == before + 1


# Many


def test_a_thousand_are_decided_and_answered_in_order(service: Asker) -> None:
    asked = [{"key": f"list {n % 250}", "limits": "3/hour"} for n in range(1_000)]
    answer = service.post("/v1/check", asked, headers=[(b"x-request-id", b"the-list")])
    assert answer.status == 200
    said = [wire_of(each) for each in answer.json]
    assert [each.id for each in said] == [f"the-list-{n}" for n in range(1_000)]
    assert [each.parts[0].key for each in said] == [f"list {n % 250}" for n in range(1_000)]
    assert [each.allowed for each in said] == [True] * 750 + [False] * 250
    assert [each.remaining for each in said] == [
        2 - n // 250 if n < 750 else 0 for n in range(1_000)
    ]
    assert not [name for name in answer.headers if "ratelimit" in name or name == "retry-after"]


def test_a_list_may_mix_rules_limits_and_looks(service: Asker) -> None:
    asked = [
        {"attributes": {"path": "/brief", "user": "mixed"}},
        {"key": "mixed", "limits": "1/hour", "peek": True},
        {"attributes": {"path": "/blocked"}},
        {"key": "mixed", "limits": "1/hour"},
        {"attributes": {}},
    ]
    said = [wire_of(each) for each in service.post("/v1/check", asked).json]
    assert [each.allowed for each in said] == [True, True, False, True, True]
    assert [each.rule for each in said] == ["brief", None, "no-robots", None, None]
    assert [bool(each.receipt) for each in said] == [True, False, False, True, False]


def test_an_empty_list_gets_an_empty_one(service: Asker) -> None:
    assert service.ask("POST", "/v1/check", b" [ ] ").json == []


@pytest.mark.parametrize("bad", [0, 1, 999])
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"key": "x"}, "your own limits need both key and limits"),
        ({"key": "x", "limits": "lots"}, "lots"),
        ({"attributes": {"path": "/llm", "user": "x", "tokens": "-1"}}, "'tokens'"),
        ({"attributes": {"path": 1}}, ".attributes.path"),
        ({"cost": -1}, ".cost"),
    ],
)
def test_one_bad_question_refuses_the_list_and_charges_nobody(
    service: Asker, bad: int, wrong: dict[str, Any], says: str
) -> None:
    asked: list[Any] = [{"key": "atomic", "limits": "1000/hour"}] * 1_000
    asked[bad] = wrong
    answer = service.post("/v1/check", asked)
    assert answer.status == 422
    assert answer.detail.startswith(f"[{bad}]")
    assert says in answer.detail
    assert service.check(key="atomic", limits="1000/hour", peek=True).remaining == 1_000


def test_a_thousand_and_one_are_too_many(service: Asker) -> None:
    answer = service.post("/v1/check", [{"key": "crowd", "limits": "5/hour"}] * 1_001)
    assert (answer.status, answer.detail) == (422, "expected array of length <= 1000")
    assert service.check(key="crowd", limits="5/hour", peek=True).remaining == 5


# Headers


def test_headers_tell_what_the_verdict_tells(service: Asker) -> None:
    answer = service.post("/v1/check", {"attributes": {"path": "/search", "user": "headers"}})
    assert answer.headers["ratelimit-policy"] == (
        '"search#1";q=3;w=3600, "search#2";q=100;w=86400, "per-path#1";q=50;w=3600'
    )
    assert re.sub(r"t=\d+", "t=", answer.headers["ratelimit"]) == (
        '"search#1";r=2;t=, "search#2";r=99;t=, "per-path#1";r=49;t='
    )
    assert answer.headers["cache-control"] == "no-store"
    assert "retry-after" not in answer.headers


def test_headers_call_limits_as_the_parts_do(service: Asker) -> None:
    for path, value in (
        ("/v1/check", {"key": "named", "limits": "5/hour; 7/day"}),
        ("/v1/check", {"attributes": {"path": "/search", "user": "named"}}),
        ("/v1/slots", {"key": "named", "concurrency": {"slots": 2, "lease": 5}, "limits": "9/h"}),
        ("/v1/slots", {"attributes": {"path": "/export", "user": "named"}}),
    ):
        answer = service.post(path, value)
        said = granted(answer).verdict if path == "/v1/slots" else verdict(answer)
        named = re.findall(r'"([^"]+)";q=', answer.headers["ratelimit-policy"])
        assert named == [part.name for part in said.parts if part.mode == "enforce"]


def test_waiting_as_long_as_told_is_enough(service: Asker) -> None:
    asked = {"path": "/brief", "user": "patient"}
    allowed = 0
    for _ in range(3):
        said = service.check(asked)
        if not said.allowed:
            assert said.retry_after is not None
            assert 0 < said.retry_after <= 0.3
            time.sleep(said.retry_after)
            said = service.check(asked)
        assert said.allowed
        allowed += 1
    assert allowed == 3


def test_waiting_for_retry_after_is_enough(service: Asker) -> None:
    asked = {"attributes": {"path": "/brief", "user": "very patient"}}
    assert verdict(service.post("/v1/check", asked))
    answer = service.post("/v1/check", asked)
    assert not verdict(answer)
    assert answer.headers["retry-after"] == "1"
    time.sleep(int(answer.headers["retry-after"]))
    assert verdict(service.post("/v1/check", asked))


def test_a_refusal_is_200(service: Asker) -> None:
    for value in (
        {"attributes": {"path": "/blocked"}},
        {"attributes": {"path": "/tenant"}},
        {"key": "full", "limits": "1/hour", "cost": 2},
    ):
        answer = service.post("/v1/check", value)
        assert (answer.status, answer.json["allowed"]) == (200, False)


# Which request it was


@pytest.mark.parametrize("given", [b"a", b"req-0123456789", b"!~\"'<>{}", b"x" * 64])
def test_a_good_id_is_kept(service: Asker, given: bytes) -> None:
    headers = [(b"x-request-id", given)]
    answer = service.post("/v1/check", {"attributes": {}}, headers=headers)
    assert answer.headers["x-request-id"] == answer.json["id"] == given.decode()
    wrong = service.post("/v1/check", {"attributes": 1}, headers=headers)
    assert wrong.json["instance"] == f"urn:limen:{given.decode()}"


@pytest.mark.parametrize(
    "given",
    [
        *(b"", b" ", b"a b", b"x" * 65, b"x" * 10_000, b"\xc3\xa9", b"\xff", b"a\x00b"),
        *(b"a\r\nset-cookie: x=1", b"a\nb", b"a\n", b"\x7f", b"\x1b[31m"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/check", "/nowhere", "/healthz", "/admin/v1/nowhere"])
def test_a_bad_id_is_replaced(service: Asker, given: bytes, path: str) -> None:
    answer = service.ask("POST", path, b"{}", headers=[(b"x-request-id", given)])
    made = answer.headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]+-[0-9a-f]+", made)
    assert answer.json["instance"] == f"urn:limen:{made}"


def test_ids_are_not_made_twice(service: Asker) -> None:
    made = {service.check({}).id for _ in range(200)}
    assert len(made) == 200


def test_list_is_decided_in_order_with_peeks_between_charges(service: Asker) -> None:
    charge = {"key": "a list in order", "limits": "4/hour"}
    peek = {**charge, "peek": True}
    questions = [peek, charge, peek, charge, charge, charge, charge, peek]
    verdicts = service.post("/v1/check", questions).json
    assert [each["allowed"] for each in verdicts] == [True] * 6 + [False] * 2
    assert [each["remaining"] for each in verdicts] == [4, 3, 3, 2, 1, 0, 0, 0]


# Without the store


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[tuple[Asker, Server]]:
    with process(binaries()["valkey"]) as server:
        flags: dict[str, Any] = {
            "store.url": f"redis://{HOST}:{server.port}",
            "store.deadline": 0.2,
        }
        with asking(tmp_path, RULES, flags) as [started]:
            yield started, server


def test_without_the_store_the_answer_says_who_decided(fragile: tuple[Asker, Server]) -> None:
    service, server = fragile
    before = service.check({"path": "/search", "user": "7"})
    server.kill()
    said = service.check({"path": "/search", "user": "7"})
    assert (said.allowed, said.source, said.degraded) == (True, "local", True)
    # Counted on from the store's last answer, and can be given back here.
    assert [part.remaining for part in said.parts] == [1, 98, 48, 0]
    assert service.changed("refund", receipt=said.receipt)
    assert service.usage(path="/search", user="7").parts[0].remaining == 2
    assert not service.changed("refund", receipt=before.receipt)

    answer = service.post("/v1/check", {"attributes": {"path": "/closed", "user": "7"}})
    said = verdict(answer)
    assert (said.allowed, said.source, said.degraded, said.rule) == (
        *(False, "closed", True),
        "closed",
    )
    assert (said.receipt, answer.headers["retry-after"]) == (None, "1")
    assert answer.headers["ratelimit-policy"] == '"closed#1";q=5;w=3600'
    assert "ratelimit" not in answer.headers  # nobody counted

    said = service.check({"path": "/open", "user": "7"})
    assert (said.allowed, said.source, said.receipt) == (True, "open", None)
    assert service.service.watch.degraded == 3

    health = service.ask("GET", "/readyz")
    assert health.status == 200


def test_a_slot_that_cannot_be_renewed_says_so(fragile: tuple[Asker, Server]) -> None:
    service, server = fragile
    held = service.acquire(attributes={"path": "/export", "user": "8"})
    assert held.slot is not None
    assert held.lease == 60.0
    server.kill()
    answer = service.ask("POST", f"/v1/slots/{held.slot}")
    assert answer.status == 503
    assert answer.detail
    assert answer.headers["retry-after"] == "1"
    assert not service.release(held.slot)
    # Here nobody knows of it; and what was given here is held here.
    local = service.acquire(attributes={"path": "/export", "user": "8"})
    assert (local.verdict.source, local.verdict.allowed) == ("local", True)
    assert local.slot is not None
    assert service.renew(local.slot)
    assert service.release(local.slot)


def test_it_comes_back_by_itself(fragile: tuple[Asker, Server]) -> None:
    service, server = fragile
    server.kill()
    assert service.check(key="back", limits="9/hour").source == "local"
    server.restart()
    end = time.monotonic() + 20
    while service.check(key="back", limits="9/hour", cost=0).degraded:
        assert time.monotonic() < end
        service.run(_ping(service))
    assert service.check(key="back", limits="9/hour").remaining == 8


async def _ping(service: Asker) -> None:
    with contextlib.suppress(LimenError):
        await service.service.limiter.ping()


def wire_of(value: Any) -> wire.Verdict:
    return msgspec.convert(value, wire.Verdict)
