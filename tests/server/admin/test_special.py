"""Overrides, exemptions and blocks: small edits that hold as they say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from limen.rules import parse
from tests.server.admin.driving import Driven

LATER, BEFORE = "2099-12-24T18:00Z", "2001-01-01"


def verdict(service: Driven, **attributes: str) -> Any:
    """Return what the newest rules say; they hold without waiting until they are found."""
    service.service.engine.use(parse(service.ask("GET", "/rules").json["document"]))
    question = {"attributes": attributes}
    return service.ask("POST", "/keys/inspect", question).json


def test_an_override_holds_for_its_key_until_it_is_removed(service: Driven) -> None:
    sent = {"key": {"user": 42}, "limits": "5000/hour", "ends": LATER, "comment": "Ticket 1873"}
    added = service.ask("POST", "/rules/per-user/overrides", sent)
    assert added.status == 201
    assert added.json["version"]["comment"] == "Ticket 1873"
    assert added.json["override"]["state"] == "active"
    assert verdict(service, user="42")["limit"] == "5000/hour"
    assert verdict(service, user="43")["limit"] == "100/minute"
    [listed] = service.ask("GET", "/overrides").json["overrides"]
    assert (listed["rule"], listed["key"], listed["ends"]) == ("per-user", {"user": 42}, LATER)
    gone = service.ask("DELETE", "/rules/per-user/overrides?user=42")
    assert gone.json["comment"] == "no override in per-user for user=42"
    assert verdict(service, user="42")["limit"] == "100/minute"
    again = service.ask("DELETE", "/rules/per-user/overrides?user=42")
    assert again.status == 404
    assert again.detail == "the rule 'per-user' has no override for user=42"


def test_an_override_takes_the_place_of_one_for_the_same_key(service: Driven) -> None:
    for key, limits in (({"user": 42}, "1/s"), ({"user": "42"}, "2/s"), ({"user": "7"}, "3/s")):
        sent = {"key": key, "limits": limits}
        assert service.ask("POST", "/rules/per-user/overrides", sent).status == 201
    found = service.ask("GET", "/overrides").json["overrides"]
    assert [each["limits"] for each in found] == ["2/s", "3/s"]


@pytest.mark.parametrize(
    ("rule", "sent", "status", "said"),
    [
        ("no-such", {"key": {"user": "1"}, "limits": "1/s"}, 404, "there is no rule 'no-such'"),
        ("per-user", {"key": {}, "limits": "1/s"}, 422, "at least one attribute"),
        ("per-user", {"key": {"org": "1"}, "limits": "1/s"}, 422, "the rule's key has no 'org'"),
        ("per-user", {"key": {"user": "1"}, "limits": "lots"}, 422, "limits"),
        ("per-user", {"key": {"user": "1"}}, 422, "limits: this field is missing"),
        ("per-user", {"key": {"user": "1"}, "limits": "1/s", "until": LATER}, 422, "unknown field"),
        ("per-user", {"key": {"user": "1"}, "limits": "1/s", "ends": "soon"}, 422, "ends: "),
        ("per-user", {"key": {"user": "1"}, "limits": "1/s", "comment": 7}, 422, "comment: "),
        (
            "per-user",
            {"key": {"user": "1"}, "limits": "1/s", "starts": LATER, "ends": BEFORE},
            422,
            "expected a time after it starts",
        ),
    ],
)
def test_an_override_that_makes_no_sense_changes_nothing(
    calm: Driven, rule: str, sent: dict[str, Any], status: int, said: str
) -> None:
    answer = calm.ask("POST", f"/rules/{rule}/overrides", sent)
    assert (answer.status, said in answer.detail) == (status, True), answer.detail
    assert calm.ask("GET", "/rules").json["version"] == 2


@pytest.mark.parametrize("query", ["", "?user=1&user=2"])
def test_an_override_is_removed_by_its_whole_key(calm: Driven, query: str) -> None:
    assert calm.ask("DELETE", f"/rules/per-user/overrides{query}").status == 422


def test_an_exemption_holds_until_it_is_removed(service: Driven) -> None:
    sent = {"name": "office", "match": {"ip": "192.0.2.0/24"}, "rules": ["per-user"]}
    added = service.ask("POST", "/exemptions", sent)
    assert added.status == 201
    assert added.json["exemption"]["rules"] == ["per-user"]
    assert verdict(service, user="42", ip="192.0.2.7")["exempt"] == ["office"]
    [listed] = service.ask("GET", "/exemptions").json["exemptions"]
    assert listed["match"] == {"ip": "192.0.2.0/24"}
    twice = service.ask("POST", "/exemptions", sent)
    assert twice.status == 409
    assert "there is an exemption 'office' already" in twice.detail
    assert service.ask("DELETE", "/exemptions/office").status == 200
    assert "exemptions" not in service.ask("GET", "/rules").json["document"]
    missing = service.ask("DELETE", "/exemptions/office")
    assert missing.status == 404


def test_an_exemption_from_a_rule_that_is_not_there_is_refused(service: Driven) -> None:
    sent = {"name": "office", "match": {"user": "1"}, "rules": ["per-usr"]}
    refused = service.ask("POST", "/exemptions", sent)
    assert refused.status == 422
    assert "did you mean 'per-user'?" in refused.detail


def test_one_that_has_ended_makes_room_for_another(service: Driven) -> None:
    exemption = {"name": "x", "match": {"user": "1"}, "ends": BEFORE}
    block = {"name": "block-user-1", "match": {"user": "1"}, "mode": "block", "ends": BEFORE}
    held = service.ask("GET", "/rules").json
    document = {"rules": [block, *held["document"]["rules"]], "exemptions": [exemption]}
    sent = {"document": document, "base": held["latest"]}
    assert service.ask("PUT", "/rules", sent).status == 200
    assert service.ask("POST", "/exemptions", {**exemption, "ends": LATER}).status == 201
    again = {"attributes": {"user": "1"}, "ends": LATER}
    assert service.ask("POST", "/blocks", again).status == 201
    assert [each["ends"] for each in service.ask("GET", "/blocks").json["blocks"]] == [LATER]
    assert len(service.ask("GET", "/exemptions").json["exemptions"]) == 1


def test_what_is_over_already_is_not_saved(service: Driven) -> None:
    before = service.ask("GET", "/rules").json["latest"]
    for path, sent in (
        ("/exemptions", {"name": "x", "match": {"user": "1"}}),
        ("/blocks", {"attributes": {"user": "1"}}),
        ("/rules/per-user/overrides", {"key": {"user": "1"}, "limits": "1/minute"}),
    ):
        refused = service.ask("POST", path, {**sent, "ends": BEFORE})
        assert (refused.status, "ends: " in refused.detail) == (422, True), path
    assert service.ask("GET", "/rules").json["latest"] == before


def test_a_block_refuses_for_an_hour(service: Driven) -> None:
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    sent = {"attributes": {"user": "42"}, "ends": ends, "description": "a scraper"}
    added = service.ask("POST", "/blocks", sent)
    assert added.status == 201
    assert added.json["block"]["name"] == "block-user-42"
    assert service.ask("GET", "/rules").json["rules"][0]["name"] == "block-user-42"
    said = verdict(service, user="42")
    assert (said["allowed"], said["rule"]) == (False, "block-user-42")
    assert 3_500 < said["retry_after"] <= 3_600
    assert verdict(service, user="43")["allowed"]
    assert service.ask("DELETE", "/blocks/block-user-42").status == 200
    assert verdict(service, user="42")["allowed"]


@pytest.mark.parametrize("value", ["*", "a*", r"\*", "a|b", "ü 1", "x" * 200])
def test_a_block_is_for_one_value_to_the_letter(service: Driven, value: str) -> None:
    added = service.ask("POST", "/blocks", {"attributes": {"user": value}})
    assert added.status == 201
    assert verdict(service, user=value)["allowed"] is False
    assert verdict(service, user="another")["allowed"]


def test_blocks_of_different_keys_never_share_a_name(service: Driven) -> None:
    for attributes in (
        {"user": "a b"},
        {"user": "a-b"},
        {"user": "a.b"},
        {"a": "b", "c": "d"},
        {"a": "b-c-d"},
        {"ip": "2001:db8::1"},
        {"ip": "192.0.2.0/24"},
    ):
        assert service.ask("POST", "/blocks", {"attributes": attributes}).status == 201, attributes
    assert len(service.ask("GET", "/blocks").json["blocks"]) == 7


def test_a_name_that_is_taken_is_a_conflict(service: Driven) -> None:
    sent = {"attributes": {"user": "42"}, "name": "per-user"}
    taken = service.ask("POST", "/blocks", sent)
    assert taken.status == 409
    assert "there is a rule 'per-user' already" in taken.detail


def test_only_blocks_are_removed_as_blocks(service: Driven) -> None:
    refused = service.ask("DELETE", "/blocks/per-user")
    assert refused.status == 404
    assert refused.detail == "there is no block 'per-user'"


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"attributes": {}},
        {"attributes": {"user": ""}},
        {"attributes": {"no name": "1"}},
        {"attributes": {"ip": "nowhere"}},
        {"attributes": {"user": "1"}, "name": "no name"},
        {"attributes": {"user": "1"}, "mode": "off"},
        {"attributes": {"user": "1"}, "ends": 7},
    ],
)
def test_a_block_that_makes_no_sense_changes_nothing(calm: Driven, sent: dict[str, Any]) -> None:
    assert calm.ask("POST", "/blocks", sent).status == 422
    assert calm.ask("GET", "/rules").json["version"] == 2


def test_a_draft_is_not_slipped_in_by_a_small_edit(service: Driven) -> None:
    draft = {"document": {"rules": []}, "base": 2, "activate": False}
    assert service.ask("PUT", "/rules", draft).status == 200
    added = service.ask("POST", "/blocks", {"attributes": {"user": "42"}})
    assert added.json["version"]["version"] == 4
    names = [each["name"] for each in service.ask("GET", "/rules").json["rules"]]
    assert names == ["block-user-42", "search-per-user", "per-user"]
