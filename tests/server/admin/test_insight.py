"""What was decided, for whom and why: counted right, shown as keys may be shown, never misread."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from limen.backends.histogram import TRIP_S
from limen.connect import target_of
from limen.observe import recent
from limen.observe.board import Board
from limen.observe.hiding import MOST
from limen.observe.packed import encode
from limen.observe.recent import DecisionRecord
from limen.observe.ring import SHORT_S, start_of
from limen.observe.slices import RuleSlice, Slice
from limen.server.admin.insight_responses import latencies_of
from tests import servers
from tests.server.admin.driving import RULES, Driven, driven, settings_of

NONE = (0,) * (len(TRIP_S) + 1)
STRANGE = [
    "user:\r\nevent: end\x00\x1b[31m",
    "Ω≈ç√ 用户 \u202e\u2028\U0001f512",
    '"}],"x":[{"',
    "k" * 500,
]


def check(service: Driven, user: str, times: int = 1, path: str = "/search/x") -> None:
    one = {"attributes": {"user": user, "path": path}}
    asked = one if times == 1 else [one] * times
    assert service.ask("POST", "//v1/check", asked, role="check").status == 200


def look_until(service: Driven, path: str, allowed: int, denied: int) -> Any:
    end = time.monotonic() + 10
    while True:
        service.run(service.service.insight.turn())
        told = service.ask("GET", path).json
        requests = told.get("requests", told)
        if (requests["allowed"], requests["denied"]) == (allowed, denied):
            return told
        assert time.monotonic() < end, told


@pytest.mark.parametrize("query", ["", "?window=10", "?window=300", "?window=301", "?window=3600"])
def test_every_decision_is_counted_once_in_every_window(service: Driven, query: str) -> None:
    check(service, "7", 1, "/other")
    check(service, "7", 1, "/other")
    check(service, "42", 5)
    told = look_until(service, f"/insight{query}", 5, 2)
    assert told["requests"]["degraded"] == 0
    assert told["requests"]["a_second"] > 0
    assert told["shared"] is False
    assert told["instances"] == [service.service.id]
    assert sum(each["allowed"] for each in told["series"]) == 5
    assert [each["at"] for each in told["series"]] == sorted(each["at"] for each in told["series"])
    assert told["from"] == told["series"][0]["at"] <= told["to"] <= time.time() + 1
    searches, per_user = told["rules"]
    assert (searches["rule"], searches["allowed"], searches["denied"]) == ("search-per-user", 3, 2)
    assert (per_user["rule"], per_user["allowed"], per_user["denied"]) == ("per-user", 5, 0)
    assert (searches["refused_share"], per_user["refused_share"]) == (0.4, 0.0)
    assert (searches["keys"], per_user["keys"]) == (1, 2)
    assert searches["utilisation"]["word"] == "refuses many"
    top = {"key": "user=42", "count": 2, "at_most_too_high": 0}
    assert searches["top_denied"] == [top]
    assert told["top_denied"] == [{**top, "rule": "search-per-user"}]
    assert told["latency"]["requests"]["count"] == 3
    assert told["latency"]["store"] == {"count": 0, "p50": None, "p99": None, "above": 1.0}


@pytest.mark.parametrize(
    ("query", "slices", "seconds"), [("?window=10", 2, 5), ("", 12, 5), ("?window=3600", 60, 60)]
)
def test_a_window_is_of_whole_slices(calm: Driven, query: str, slices: int, seconds: int) -> None:
    told = calm.ask("GET", f"/insight{query}").json
    assert [each["seconds"] for each in told["series"]] == [seconds] * slices


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/insight?window=9",
            "/insight?window=3601",
            "/insight?window=1_0",
            "/insight?window=-60",
        ),
        *("/insight?limit=0", "/insight?limit=1001", "/insight/rules/per-user?window=1e2"),
        *("/decisions?limit=1001", "/decisions?allowed=yes", f"/decisions?key={'k' * 4_097}"),
    ],
)
def test_what_makes_no_sense_is_refused(calm: Driven, path: str) -> None:
    answer = calm.ask("GET", path)
    assert answer.status == 422, answer
    assert path.split("?")[1].partition("=")[0] in answer.detail


def test_of_many_rules_those_that_refuse_most_are_told_first(tmp_path: Path) -> None:
    rules = {
        "rules": [
            {"name": f"r{n}", "match": {"path": f"/{n}"}, "key": "user", "limits": "1/day"}
            for n in range(5)
        ]
    }
    with driven(settings_of(tmp_path), rules) as service:
        for n in range(5):
            check(service, "42", 1 + n, f"/{n}")
        told = look_until(service, "/insight?limit=2", 5, 10)
        assert [each["rule"] for each in told["rules"]] == ["r4", "r3"]
        assert told["more"] == 3
        assert [each["count"] for each in told["top_denied"]] == [4, 3, 2, 1]


def test_one_rule_is_told_with_who_uses_it(service: Driven) -> None:
    check(service, "42", 5)
    check(service, "7", 2)
    look_until(service, "/insight", 5, 2)
    told = service.ask("GET", "/insight/rules/search-per-user").json
    assert [told[name] for name in ("allowed", "denied", "shadow_denied", "degraded")] == [
        *(5, 2, 0, 0)
    ]
    assert [(each["key"], each["count"]) for each in told["top_allowed"]] == [
        *(("user=42", 3), ("user=7", 2))
    ]
    assert [(each["key"], each["count"]) for each in told["top_denied"]] == [("user=42", 2)]
    assert told["nearest"] == [
        {"key": "user=42", "percent": 100},
        {"key": "user=7", "percent": 66},
    ]
    assert sum(each["denied"] for each in told["series"]) == 2
    used = told["utilisation"]
    assert (used["word"], used["keys"], used["sampled"], used["refused"]) == (
        *("refuses many", 2, 2, 0.5),
    )
    assert used["says"].startswith("50 % of the keys (about 2) were refused at least once")
    assert sum(each["share"] for each in used["histogram"]) + used["refused"] == 1
    assert [each["up_to"] for each in used["histogram"] if each["share"]] == [75]


def test_a_rule_that_nobody_came_under_is_there_and_one_that_is_none_is_not(calm: Driven) -> None:
    told = calm.ask("GET", "/insight/rules/search-per-user").json
    assert (told["allowed"], told["keys"], told["top_denied"]) == (0, 0, [])
    assert told["utilisation"]["says"] == "Nobody came under this rule in this time."
    answer = calm.ask("GET", "/insight/rules/search-per-usr")
    assert answer.status == 404
    assert answer.detail == "there is no rule 'search-per-usr' (did you mean 'search-per-user'?)"


def test_decisions_are_found_by_what_is_known_of_them(service: Driven) -> None:
    asked = {"attributes": {"user": "42", "path": "/search/x"}}
    for number in range(5):
        headers = {"x-request-id": f"mine-{number}"}
        service.ask("POST", "//v1/check", asked, role="check", headers=headers)
    check(service, "7", 4)

    def ids(query: str) -> list[str]:
        told = service.ask("GET", f"/decisions?{query}").json["decisions"]
        assert [one["at"] for one in told] == sorted((one["at"] for one in told), reverse=True)
        return [one["id"] for one in told]

    assert len(ids("allowed=false")) == 3
    mine = ids("key=user=42&allowed=false")
    assert mine == ids("key=user%3D42&rule=search-per-user&allowed=false") == ["mine-4", "mine-3"]
    assert ids("id=mine-3&allowed=false") == ["mine-3"]
    assert ids("allowed=false&limit=1") == ids("allowed=false")[:1]
    assert ids("key=42") == ids("rule=per-user&allowed=false") == []
    [one] = service.ask("GET", "/decisions?id=mine-4").json["decisions"]
    assert (one["limit"], one["reason"], one["key"]) == ("3/minute", "over 3/minute", "user=42")
    assert (one["instance"], one["surface"]) == (service.service.id, "check")


def test_an_answer_says_which_decisions_are_kept(tmp_path: Path) -> None:
    kept = {"refused": "up to 100 a second, 3 of one key", "allowed_share": 0.25}
    flags = {"insight.sample": "0.25"}
    with driven(settings_of(tmp_path / "kept", **flags), RULES) as service:
        assert service.ask("GET", "/decisions").json["kept"] == kept
    flags["insight.enabled"] = "false"
    with driven(settings_of(tmp_path / "not", **flags), RULES) as service:
        check(service, "42", 5)
        told = look_until(service, "/insight", 3, 2)
        assert "user=42" not in json.dumps(told)
        assert told["rules"][0]["utilisation"]["word"] == "unknown"
        told = service.ask("GET", "/decisions").json
        assert (told["kept"]["allowed_share"], told["decisions"]) == (0.0, [])
        assert "turned off" in told["kept"]["refused"]


def test_keys_that_are_hidden_are_found_and_never_shown(tmp_path: Path) -> None:
    flags = {"insight.keys": "hashed", "alerts.least": "5"}
    with driven(settings_of(tmp_path, **flags), RULES) as service:
        check(service, "canary-key", 9)
        told = look_until(service, "/insight", 3, 6)
        hidden = told["top_denied"][0]["key"]
        assert hidden.startswith("h:")
        for sought in ("user=canary-key", hidden):
            found = service.ask("GET", f"/decisions?key={quote(sought)}").json["decisions"]
            assert {one["key"] for one in found} == {hidden}
        for path in ("/insight", "/insight/rules/search-per-user", "/decisions", "/alerts"):
            assert b"canary-key" not in service.ask("GET", path).body, path
        assert service.ask("GET", "/alerts").json["open"][0]["top"] == [[hidden, 6]]


def test_an_alert_is_told_with_what_it_is_judged_by(tmp_path: Path) -> None:
    with driven(settings_of(tmp_path, **{"alerts.least": "5"}), RULES) as service:
        before = service.ask("GET", "/alerts").json
        assert (before["open"], before["ended"], before["more"]) == ([], [], 0)
        assert before["thresholds"]["least"] == 5
        check(service, "42", 9)
        look_until(service, "/insight", 3, 6)
        told = service.ask("GET", "/alerts").json["open"]
        assert {(one["kind"], one["rule"]) for one in told} == {
            *(("refusals", "search-per-user"), ("key", "search-per-user"))
        }
        assert all(one["ended"] is None and one["value"] > one["threshold"] for one in told)
        assert all("42" not in one["text"] for one in told)


@pytest.mark.parametrize("key", STRANGE)
def test_a_key_may_hold_anything(service: Driven, key: str) -> None:
    asked = [{"key": key, "limits": "1/day"}] * 3
    assert service.ask("POST", "//v1/check", asked, role="check").status == 200
    told = look_until(service, "/insight", 1, 2)
    [top] = told["top_denied"]
    assert top["rule"] == "(own limits)"
    assert top["key"] == key if len(key) <= MOST else top["key"].startswith(key[:200])
    assert len(top["key"]) <= MOST
    found = service.ask("GET", f"/decisions?key={quote(key)}").json["decisions"]
    assert [one["key"] for one in found] == [top["key"]] * 2
    assert service.ask("GET", "/insight/rules/(own limits)").json["denied"] == 2


def test_what_takes_longer_than_can_be_told_is_null_and_not_fast() -> None:
    slow = (*NONE[:-1], 3)
    told = latencies_of(Slice(0, 5, 0, 0, 0, slow, (99, *NONE[1:-1], 1), {}))
    assert (told.store.count, told.store.p50, told.store.p99, told.store.above) == (
        *(3, None, None, 1.0),
    )
    assert (told.requests.p50, told.requests.p99) == (TRIP_S[0], TRIP_S[0])
    told = latencies_of(Slice(0, 5, 0, 0, 0, NONE, (98, *NONE[1:-1], 2), {}))
    assert (told.requests.p50, told.requests.p99, told.requests.count) == (TRIP_S[0], None, 100)
    assert (told.store.p50, told.store.count) == (None, 0)


def test_what_others_saw_is_in_it_and_is_missed_without_redis(
    tmp_path: Path, valkey: servers.Server
) -> None:
    url = f"redis://127.0.0.1:{valkey.port}"
    with driven(settings_of(tmp_path, **{"store.url": url}), RULES) as service:
        check(service, "42", 5)
        service.run(_tell(url, "another\r\n"))
        told = look_until(service, "/insight", 13, 5)
        assert told["shared"] is True
        assert told["instances"] == sorted([service.service.id, "another\r\n"])
        assert told["top_denied"][0] == {
            "rule": "search-per-user",
            "key": "user=42",
            "count": 5,
            "at_most_too_high": 0,
        }
        assert [each["rule"] for each in told["rules"]][1] == STRANGE[0]
        # Each is there once, though this process has told the others of its own.
        found = service.ask("GET", "/decisions?allowed=false").json
        assert (found["shared"], len(found["decisions"])) == (True, 3)
        assert {one["instance"] for one in found["decisions"]} == {service.service.id, "another"}
        valkey.kill()
        told = service.ask("GET", "/insight").json
        assert (told["shared"], told["instances"]) == (False, [service.service.id])
        assert (told["requests"]["allowed"], told["requests"]["denied"]) == (3, 2)
        found = service.ask("GET", "/decisions?allowed=false").json
        assert (found["shared"], len(found["decisions"])) == (False, 2)
        assert service.ask("GET", "/alerts").json["shared"] is False


async def _tell(url: str, instance: str) -> None:
    """Write what another process would."""
    board = Board(target_of(url, asynchronous=True), "limen", instance)
    now = time.time()
    rules = {
        "search-per-user": RuleSlice(0, 3, top_denied=(("user=42", 3),)),
        STRANGE[0]: RuleSlice(10),
    }
    start = start_of(now, SHORT_S)
    written = encode(Slice(start, SHORT_S, 10, 3, 0, NONE, NONE, rules), 32_768)
    seen = DecisionRecord(
        *(now, "theirs", False, "search-per-user", "3/minute", "user=42", 0, 1.0, 1),
        *("over 3/minute", "2", "store", "", "another", "check"),
    )
    try:
        await board.write([(SHORT_S, start, written)], [recent.encode(seen), b"no decision"])
    finally:
        board.close()
