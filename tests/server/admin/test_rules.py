"""`/rules`: what holds, what would be wrong, and how rules come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limen.rules.stores.sql import SqlStore
from tests.server.admin.driving import RULES, Driven, driven, settings_of
from tests.waiting import wait_until

OTHER = {"rules": [{"name": "all", "limits": "7/minute"}]}


def put(service: Driven, document: Any, base: int, **more: Any) -> Any:
    return service.ask("PUT", "/rules", {"document": document, "base": base, **more})


def latest(service: Driven) -> int:
    """Return the newest version: 2, for the starter rules come before those of the test."""
    version: int = service.ask("GET", "/rules").json["latest"]
    return version


def test_tells_the_rules_that_hold_one_by_one(calm: Driven) -> None:
    told = calm.ask("GET", "/rules").json
    assert (told["source"], told["version"], told["latest"]) == ("database", 2, 2)
    assert (told["author"], told["comment"]) == ("tests", "the first")
    assert told["in_force"] == "2"
    assert told["document"] == RULES
    first = told["rules"][0]
    assert first["name"] == "search-per-user"
    assert first["mode"] == "enforce"
    assert first["limits"] == ["3/minute", "1000/day"]


def test_sums_up_all_that_a_rule_allows(service: Driven) -> None:
    rule = {
        "name": 7,
        "key": "user",
        "limits": "10/minute",
        "concurrency": {"slots": 3, "lease": "60s"},
        "tiers": {"by": "plan", "limits": {"pro": ["600/minute", "9/s"]}, "default": "unlimited"},
        "variants": [{"percent": 10, "algorithm": "token_bucket"}],
        "enforce_percent": "12.5",
        "ends": "2001-01-01",
    }
    assert put(service, {"rules": [rule]}, latest(service)).status == 200
    told = service.ask("GET", "/rules/7").json
    assert told["limits"] == [
        "10/minute",
        "3 at once, lease 60s",
        "pro: 600/minute, 9/s",
        "other: unlimited",
        "1 variant",
    ]
    assert (told["enforce_percent"], told["state"]) == (12.5, "ended")
    assert told["document"] == rule


def test_tells_one_rule_or_what_was_meant(calm: Driven) -> None:
    assert calm.ask("GET", "/rules/per-user").json["document"] == RULES["rules"][1]
    missing = calm.ask("GET", "/rules/per-usr")
    assert missing.status == 404
    assert missing.detail == "there is no rule 'per-usr' (did you mean 'per-user'?)"


def test_validates_text_with_lines_and_saves_nothing(calm: Driven) -> None:
    text = "rules:\n  - {name: a, limit: 3/s}\n"
    told = calm.ask("POST", "/rules/validate", {"text": text}).json
    assert told == {
        "valid": False,
        "problems": [
            {
                "path": "rules[0].limit",
                "message": "unknown field 'limit' (did you mean 'limits'?)",
                "line": 2,
            }
        ],
        "advice": [],
        "document": None,
        "text": None,
    }
    assert latest(calm) == 2


def test_tells_text_as_data_and_data_as_text(calm: Driven) -> None:
    asked = {"document": RULES, "want": "text"}
    text = calm.ask("POST", "/rules/validate", asked).json["text"]
    told = calm.ask("POST", "/rules/validate", {"text": text, "want": "document"}).json
    assert (told["valid"], told["document"]) == (True, RULES)


def test_what_is_not_valid_is_data_all_the_same_if_it_can_be_read(calm: Driven) -> None:
    asked = {"text": "rules: [{name: a, limits: 3/parsec}]", "want": "document"}
    told = calm.ask("POST", "/rules/validate", asked).json
    assert not told["valid"]
    assert told["document"] == {"rules": [{"name": "a", "limits": "3/parsec"}]}
    unreadable = {"text": "rules: [", "want": "document"}
    assert calm.ask("POST", "/rules/validate", unreadable).json["document"] is None
    wrong = {"document": {"rules": [{"name": "a"}], "x": 1}, "want": "text"}
    assert calm.ask("POST", "/rules/validate", wrong).json["text"] is None


@pytest.mark.parametrize(
    ("sent", "valid", "advice"),
    [
        ({"document": RULES}, True, 0),
        ({"document": None}, False, 0),
        ({"document": [1]}, False, 0),
        ({"text": '{"rules": []}', "json": True}, True, 0),
        ({"text": "rules: []", "json": True}, False, 0),
        ({"text": "rules: [{name: a, match: {path: ^/a}, limits: 1/s}]"}, True, 1),
        ({"text": ""}, False, 0),
    ],
)
def test_validates_data_text_and_json(
    calm: Driven, sent: dict[str, Any], valid: bool, advice: int
) -> None:
    told = calm.ask("POST", "/rules/validate", sent)
    assert told.status == 200
    assert (told.json["valid"], len(told.json["advice"])) == (valid, advice)


@pytest.mark.parametrize("sent", [{}, {"document": {}, "text": ""}, {"json": True}])
def test_validates_one_thing_at_a_time(calm: Driven, sent: dict[str, Any]) -> None:
    assert calm.ask("POST", "/rules/validate", sent).status == 422


def test_saves_a_version_that_holds_here_soon(service: Driven) -> None:
    saved = put(service, OTHER, 2, comment="less")
    assert saved.status == 200
    told = saved.json
    assert (told["version"], told["parent"], told["active"]) == (3, 2, True)
    assert (told["author"], told["comment"]) == ("the admin token of this host", "less")
    assert told["summary"] == "+1 ~0 -2"
    wait_until(lambda: service.service.engine.rules.version == "3")
    verdict = service.ask("POST", "//v1/check", {"attributes": {}}, role=None).json
    assert verdict["limit"] == "7/minute"


def test_the_author_is_whoever_has_the_token(service: Driven) -> None:
    _, secret = service.token("editor")
    sent = {"document": OTHER, "base": 2}
    assert service.ask("PUT", "/rules", sent, token=secret).json["author"] == "a editor"
    row = service.ask("GET", "/audit?limit=1").json["rows"][0]
    assert (row["actor"], row["action"], row["version"]) == ("a editor", "activate", 3)


def test_a_stale_edit_is_a_conflict_and_saves_nothing(calm: Driven) -> None:
    late = put(calm, OTHER, 1)
    assert late.status == 409
    assert "the rules are at version 2" in late.detail
    assert latest(calm) == 2


def test_rules_that_are_wrong_are_refused_with_all_that_is(calm: Driven) -> None:
    wrong = {"rules": [{"name": "a"}, {"name": "b", "limits": "lots"}]}
    refused = put(calm, wrong, 2)
    assert refused.status == 422
    assert [each["path"] for each in refused.json["problems"]] == ["rules[0]", "rules[1].limits"]
    assert refused.detail.endswith("(and 1 more)")


def test_a_draft_holds_when_it_is_activated(service: Driven) -> None:
    assert put(service, OTHER, 2, activate=False).json["active"] is False
    told = service.ask("GET", "/rules").json
    assert (told["version"], told["latest"]) == (2, 3)
    conflict = service.ask("POST", "/rules/versions/3/activate", {"expected": 1})
    assert conflict.status == 409
    active = service.ask("POST", "/rules/versions/3/activate", {"expected": 2, "comment": "go"})
    assert active.json["active"] is True
    assert service.ask("GET", "/rules").json["version"] == 3


def test_rolls_back_to_what_was_as_a_new_version(service: Driven) -> None:
    put(service, OTHER, 2)
    assert service.ask("POST", "/rules/versions/2/rollback", {"base": 2}).status == 409
    back = service.ask("POST", "/rules/versions/2/rollback").json
    assert (back["version"], back["active"]) == (4, True)
    assert back["comment"] == "rollback to version 2"
    assert service.ask("GET", "/rules").json["document"] == RULES


def test_lists_versions_page_by_page(service: Driven) -> None:
    put(service, OTHER, 2)
    newest = service.ask("GET", "/rules/versions?limit=2").json["versions"]
    assert [each["version"] for each in newest] == [3, 2]
    older = service.ask("GET", "/rules/versions?limit=2&before=2").json["versions"]
    assert [each["version"] for each in older] == [1]


def test_tells_a_version_and_what_it_changed(service: Driven) -> None:
    put(service, OTHER, 2)
    assert service.ask("GET", "/rules/versions/3").json["document"] == OTHER
    told = service.ask("GET", "/rules/versions/3/diff").json
    assert (told["before"], told["after"], told["summary"]) == (2, 3, "+1 ~0 -2")
    assert told["lines"][0] == "+ rules.all"
    assert service.ask("GET", "/rules/versions/2/diff?against=3").json["summary"] == "+2 ~0 -1"
    assert service.ask("GET", "/rules/versions/2/diff?against=0").json["summary"] == "+2 ~0 -0"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/rules/versions/99"),
        ("GET", "/rules/versions/99/diff"),
        ("GET", "/rules/versions/2/diff?against=99"),
        ("POST", "/rules/versions/99/activate"),
        ("POST", "/rules/versions/99/rollback"),
    ],
)
def test_a_version_that_is_not_there_is_not_found(calm: Driven, method: str, path: str) -> None:
    missing = calm.ask(method, path)
    assert missing.status == 404
    assert missing.detail == "there is no version 99 of the rules; the newest is 2"


def test_rules_in_a_file_are_read_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("rules: [{name: a, key: user, limits: 5/minute}]")
    with driven(settings_of(tmp_path, rules=str(file))) as service:
        told = service.ask("GET", "/rules").json
        assert (told["source"], told["version"], told["latest"]) == ("file", None, None)
        assert told["document"]["rules"][0]["limits"] == "5/minute"
        assert service.ask("GET", "/rules/a").status == 200
        assert service.ask("GET", "/overrides").json == {"version": None, "overrides": []}
        assert service.ask("GET", "/rules/versions").json == {"versions": []}
        assert service.ask("GET", "/rules/versions/1").status == 404
        for method, path, body in (
            ("PUT", "/rules", {"document": OTHER, "base": 0}),
            ("POST", "/rules/versions/1/activate", None),
            ("POST", "/rules/versions/1/rollback", None),
            ("POST", "/rules/a/overrides", {"key": {"user": "1"}, "limits": "1/s"}),
            ("DELETE", "/rules/a/overrides?user=1", None),
            ("POST", "/exemptions", {"name": "x", "match": {"user": "1"}}),
            ("DELETE", "/exemptions/x", None),
            ("POST", "/blocks", {"attributes": {"user": "1"}}),
            ("DELETE", "/blocks/x", None),
        ):
            refused = service.ask(method, path, body)
            assert refused.status == 409, path
            assert refused.detail == "the rules are in a file, rules.yaml: change the file"
        # What is no rule is in the database all the same.
        assert service.ask("POST", "/tokens", {"role": "check", "name": "x"}).status == 201


def test_ten_thousand_rules_are_saved_and_told(service: Driven) -> None:
    rules = [{"name": f"r{n}", "key": "user", "limits": f"{n + 1}/day"} for n in range(10_000)]
    assert put(service, {"rules": rules}, 2).status == 200
    assert len(service.ask("GET", "/rules").json["rules"]) == 10_000


def test_a_small_edit_is_made_again_when_somebody_was_faster(
    service: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = iter(range(3))
    real = SqlStore.save

    async def after_somebody_else(store: SqlStore, document: Any, **how: Any) -> Any:
        number = next(others, None)
        if number is not None:
            rules = [*RULES["rules"], {"name": f"other-{number}", "limits": "1/s"}]
            await real(store, {"rules": rules}, author="other", base=None)
        return await real(store, document, **how)

    monkeypatch.setattr(SqlStore, "save", after_somebody_else)
    assert service.ask("POST", "/blocks", {"attributes": {"user": "42"}}).status == 201
    names = [each["name"] for each in service.ask("GET", "/rules").json["rules"]]
    assert names == ["block-user-42", "search-per-user", "per-user", "other-2"]


def test_a_small_edit_gives_up_when_somebody_is_always_faster(
    service: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tries = SqlStore.save, []

    async def after_somebody_else(store: SqlStore, document: Any, **how: Any) -> Any:
        tries.append(1)
        rules = [{"name": f"other-{len(tries)}", "limits": "1/s"}]
        await real(store, {"rules": rules}, author="other", base=None)
        return await real(store, document, **how)

    monkeypatch.setattr(SqlStore, "save", after_somebody_else)
    assert service.ask("POST", "/blocks", {"attributes": {"user": "42"}}).status == 409
    assert len(tries) == 5
