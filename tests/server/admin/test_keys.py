"""`/explain` and `/keys`: what the rules say to a request, and a new start for a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.server.admin.driving import RULES, Driven, driven, settings_of

SEARCH = {"user": "42", "path": "/search/cats"}


def spend(service: Driven, times: int) -> Any:
    said: Any = None
    for _ in range(times):
        said = service.ask("POST", "//v1/check", {"attributes": SEARCH}, role=None).json
    return said


def test_explains_why_each_rule_applies_or_does_not(service: Driven) -> None:
    asked = {"attributes": {"user": "42", "path": "/", "colour": "red"}, "cost": 5}
    told = service.ask("POST", "/explain", asked).json
    first, second = told["rules"]
    assert (first["rule"], first["applies"]) == ("search-per-user", False)
    assert first["because"] == "path is /search/* : got /"
    assert first["conditions"] == [
        {"attribute": "path", "asked": "is /search/*", "got": "/", "holds": False}
    ]
    assert (second["rule"], second["applies"], second["because"]) == ("per-user", True, None)
    assert told["unused"] == ["colour"]
    assert told["verdict"]["parts"][0]["cost"] == 5
    assert told["verdict"]["remaining"] == 100, "nothing is charged"


def test_explains_by_a_draft_what_is_not_in_force(service: Driven) -> None:
    spend(service, 2)
    draft = {"rules": [{"name": "draft", "key": ["user"], "limits": "2/minute"}]}
    told = service.ask("POST", "/explain", {"attributes": SEARCH, "document": draft}).json
    assert [(each["rule"], each["applies"]) for each in told["rules"]] == [("draft", True)]
    assert (told["verdict"]["rule"], told["verdict"]["remaining"]) == ("draft", 2)
    wrong = {"attributes": SEARCH, "document": {"rules": [{"name": "draft", "limit": "2/s"}]}}
    refused = service.ask("POST", "/explain", wrong)
    assert refused.status == 422
    assert "unknown field 'limit'" in str(refused.json)


def test_explains_long_conditions_by_their_beginning(service: Driven) -> None:
    globs = [f"/{'x' * 200}{number}/*" for number in range(5_000)]
    rules = [{"name": name, "match": {"path": globs}, "limits": "1/s"} for name in ("a", "b", "c")]
    value = "/" + "y" * 4_000
    asked = {"attributes": {"path": value}, "document": {"rules": rules}}
    answer = service.ask("POST", "/explain", asked)
    assert len(answer.body) < 10_000
    first = answer.json["rules"][0]
    [condition] = first["conditions"]
    assert condition["asked"] == f"is {globs[0]} or {globs[1]}"[:197] + "..."
    assert condition["got"] == value[:197] + "..."
    assert first["because"] == f"path {condition['asked']} : got {value[:77]}..."
    assert answer.json["rules_left_out"] == 0


def test_explains_a_bounded_number_of_rules_and_says_how_many_are_left_out(service: Driven) -> None:
    names = [f"rule-{number}" for number in range(3_000)]
    rules = [
        {"name": name, "match": {"path": "/x", "a": "1", "b": "2", "c": "3"}, "limits": "1/s"}
        for name in names
    ]
    rules[2_500]["match"] = {"path": "/"}
    asked = {"attributes": {"path": "/"}, "document": {"rules": rules}, "rule": "rule-2999"}
    answer = service.ask("POST", "/explain", asked)
    told = answer.json["rules"]
    assert [each["rule"] for each in told] == [*names[:998], names[2_500], names[2_999]]
    assert [each["rule"] for each in told if each["applies"]] == ["rule-2500"]
    assert answer.json["rules_left_out"] == 2_000
    assert sum(len(each["conditions"]) for each in told) == 2_000
    assert (told[-1]["conditions_left_out"], told[-3]["conditions_left_out"]) == (0, 4)
    assert told[-3]["because"] == "path is /x : got /"
    assert len(answer.body) < 1_000_000


def test_explains_long_keys_by_their_beginning(service: Driven) -> None:
    names = ["a", "b", "c", "d"]
    rules = [{"name": f"r{number}", "key": names, "limits": "1/s"} for number in range(1_000)]
    asked = {"attributes": dict.fromkeys(names, "\x01" * 4_000), "document": {"rules": rules}}
    answer = service.ask("POST", "/explain", asked)
    assert len(answer.body) < 500_000
    [key] = {part["key"] for part in answer.json["verdict"]["parts"]}
    assert (len(key), key[-3:]) == (200, "...")


def test_explains_a_bounded_number_of_exemptions(service: Driven) -> None:
    names = [f"exempt-{number}" for number in range(1_200)]
    exemptions = [{"name": name, "match": {"path": "/"}} for name in names]
    draft = {"rules": [{"name": "all", "limits": "1/s"}], "exemptions": exemptions}
    asked = {"attributes": {"path": "/"}, "document": draft}
    explained = service.ask("POST", "/explain", asked).json
    assert (explained["exempt"], explained["exempt_left_out"]) == (names[:1_000], 200)
    assert explained["verdict"]["exempt"] == names[:1_000]


def test_refuses_attributes_that_every_limit_would_repeat(calm: Driven) -> None:
    facts = {f"a{number}": "x" * 4_000 for number in range(5)}
    for path in ("/explain", "/keys/inspect"):
        refused = calm.ask("POST", path, {"attributes": facts})
        said = "attributes: expected at most 16,384 characters in all, got 20,010"
        assert (refused.status, refused.detail) == (422, said)


def test_inspects_a_key_with_the_message_of_usage(service: Driven) -> None:
    spend(service, 2)
    inspected = service.ask("POST", "/keys/inspect", {"attributes": SEARCH})
    usage = service.ask("GET", "//v1/usage?user=42&path=/search/cats", role=None)
    same = ("allowed", "rule", "remaining", "version", "limit")
    assert [inspected.json[name] for name in same] == [usage.json[name] for name in same]
    assert [part["remaining"] for part in inspected.json["parts"]] == [1, 998, 98]
    assert inspected.json["receipt"] is None
    assert inspected.json["id"] == inspected.headers["x-request-id"]


def test_resets_a_key_and_writes_it_down(service: Driven) -> None:
    assert spend(service, 4)["allowed"] is False
    asked = {"attributes": SEARCH, "rule": "search-per-user", "comment": "they called"}
    assert service.ask("POST", "/keys/reset", asked).json == {"rules": ["search-per-user"]}
    assert spend(service, 1)["allowed"] is True
    row = service.ask("GET", "/audit?limit=1").json["rows"][0]
    assert (row["action"], row["comment"]) == ("reset", "they called")
    assert row["subject"] == "rule search-per-user; user=42, path=/search/cats"
    everything = service.ask("POST", "/keys/reset", {"attributes": SEARCH})
    assert everything.json == {"rules": ["search-per-user", "per-user"]}


def test_a_reset_of_nothing_is_not_written_down(service: Driven) -> None:
    before = service.ask("GET", "/audit?limit=1").json
    assert service.ask("POST", "/keys/reset", {"attributes": {}}).json == {"rules": []}
    assert service.ask("GET", "/audit?limit=1").json == before


def test_a_reset_says_what_it_was_about_in_one_line(service: Driven) -> None:
    asked = {"attributes": {"user": "a\0b\n" + "x" * 4_000}}
    assert service.ask("POST", "/keys/reset", asked).status == 200
    subject = service.ask("GET", "/audit?limit=1").json["rows"][0]["subject"]
    assert subject.startswith(r"rule per-user; user=a\x00b\nxxx")
    assert len(subject) == 2_000


@pytest.mark.parametrize(
    ("path", "sent", "said"),
    [
        ("/explain", {}, "attributes: this field is missing"),
        ("/explain", {"attributes": {"user": 42}}, "attributes.user: expected a valid string"),
        ("/explain", {"attributes": {}, "cost": -1}, "cost: "),
        ("/explain", {"attributes": {}, "cost": True}, "cost: "),
        ("/explain", {"attributes": {}, "at": 1}, "unknown field 'at'"),
        ("/keys/inspect", {"attributes": {"": "1"}}, "attributes"),
        ("/keys/inspect", {"attributes": {"user": "x" * 4_097}}, "attributes.user"),
        ("/keys/reset", {"attributes": {}, "rule": "per-usr"}, "did you mean 'per-user'?"),
        ("/keys/reset", [], "expected an object"),
    ],
)
def test_what_makes_no_sense_is_refused(calm: Driven, path: str, sent: Any, said: str) -> None:
    refused = calm.ask("POST", path, sent)
    assert (refused.status, said in refused.detail) == (422, True), refused.detail


def test_a_store_that_is_away_resets_nothing_and_is_told(tmp_path: Path) -> None:
    with servers.process(servers.binaries()["valkey"]) as redis:
        url = f"redis://127.0.0.1:{redis.port}"
        with driven(settings_of(tmp_path, **{"store.url": url}), RULES) as service:
            redis.kill()
            before = service.ask("GET", "/audit?limit=1").json
            away = service.ask("POST", "/keys/reset", {"attributes": SEARCH})
            assert (away.status, away.headers["retry-after"]) == (503, "1")
            assert "redis://127.0.0.1" in away.detail
            assert service.ask("GET", "/audit?limit=1").json == before
            # To look is possible all the same, and says who answered.
            looked = service.ask("POST", "/keys/inspect", {"attributes": SEARCH}).json
            assert looked["degraded"] is True
