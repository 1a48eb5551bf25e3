"""`limen explain`: what a request meets, and why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from limen import Limiter
from limen.engine import Engine
from limen.rules import load, parse
from tests import servers
from tests.cli.acts import (
    SECRET,
    Ran,
    Run,
    edit,
    write,
)


def test_explain_tells_which_rules_apply_why_and_the_verdict(explain: Run) -> None:
    assert explain("user=7", "plan=pro", "path=/search/a", "method=GET") == Ran(
        0,
        """\
rules  rules.yaml: 2 of 6 apply
store  memory://: no counters here, so this is what a first request meets (see --store)

search-per-user  enforced, tier pro
    path is /search/* : got /search/a
    method is GET or POST : got GET
    counted by user=7, cost 1
    600/minute: 600 of 600 left

everybody  shadow
    counted by everybody together, cost 1
    1000/minute: 1000 of 1000 left

4 other rules do not apply (--all tells why)

allowed; nearest is search-per-user (600/minute), 600 left
""",
        "",
    )


def test_explain_all_tells_what_stands_against_the_others(explain: Run) -> None:
    out = explain("user=7", "path=/search/a", "method=GET", "--all").out
    assert (
        "4 other rules do not apply\n"
        "    login  path is /login : got /search/a\n"
        "    bots  agent is *bot* : absent\n"
        "    exports  path is /export : got /search/a\n"
        "    old  mode is off\n"
    ) in out


@pytest.mark.parametrize(
    ("attributes", "line"),
    [
        ("user=42 path=/search/a method=GET", "search-per-user  enforced, override for this key"),
        ("user=7 path=/search/a method=GET", "search-per-user  enforced, no plan, so no tier"),
        (
            "user=7 plan=x path=/search/a method=GET",
            "search-per-user  enforced, plan=x is no tier",
        ),
        ("user=7 plan=max path=/search/a method=GET", "    unlimited"),
        ("user=7 path=/export", "    counted by user=7"),
        ("user=7 path=/export", "    3 at once, lease 1 minute: 3 of 3 left"),
        ("ip=10.1.1.1", "exempt internal: from all rules"),
        ("ip=10.1.1.1", "6 rules do not apply (--all tells why)"),
        ("ip=10.1.1.1", "allowed: exempt by internal"),
        ("user=ops path=/export", "exempt ops: from exports, login"),
        ("user=7", "allowed: no limit is enforced"),
        ("agent=abot", "    refuses: it blocks whoever matches until 2099-01-01"),
        ("agent=abot", "refused by bots: it blocks whoever matches until 2099-01-01"),
        ("agent=abot", "    not asked: bots refuses already"),
        (
            "path=/login",
            "refused by login: it is counted by ip; ip is absent (missing: deny)",
        ),
        ("path=/login ip=::1 --cost 9", "    5/minute: 5 of 5 left, refused, and no wait helps"),
        ("path=/login ip=::1 --cost 9", "refused by login (5/minute), and no wait helps"),
        (
            "user=7 --cost 5000",
            "    1000/minute: 1000 of 1000 left, would be refused, and no wait helps",
        ),
        ("user=7 --at 2100-01-01", "rules  rules.yaml: 1 of 6 apply at 2100-01-01"),
        ("agent=abot --at 2100-01-01 --all", "    bots  ended at 2099-01-01"),
    ],
)
def test_explain_tells(explain: Run, attributes: str, line: str) -> None:
    ran = explain(*attributes.split())
    assert ran.exit_code == 0
    assert line in ran.out.splitlines()


def test_explain_tells_whether_a_key_is_in_the_enforced_share(limen: Run, tmp_path: Path) -> None:
    text = """\
rules:
  - name: some
    key: [user]
    limits: 10/s
    enforce_percent: 50
    variants: [{name: smooth, percent: 50, limits: 10/s leaky_bucket}]
"""
    said = set()
    for user in range(12):
        out = limen("explain", f"user={user}", "--rules", write(tmp_path, text)).out
        said.add(out.splitlines()[3])
    assert said == {
        f"some  {how} for this key (50 % of keys are enforced){variant}"
        for how in ("enforced", "shadow")
        for variant in ("", ", variant smooth")
    }


def test_explain_tells_what_a_shadow_would_refuse(limen: Run, tmp_path: Path) -> None:
    text = "rules: [{name: a, key: [user], missing: deny, mode: shadow, limits: 1/s}]\n"
    ran = limen("explain", "user=7", "--rules", write(tmp_path, text))
    assert ran.out.splitlines()[-1] == "allowed: no limit is enforced"
    text += "exemptions: [{name: e, match: {ip: 10.0.0.1}}]\n"
    ran = limen("explain", "ip=::1", "--rules", write(tmp_path, text))
    said = "    would refuse: it is counted by user; user is absent (missing: deny)"
    assert said in ran.out.splitlines()


def test_explain_says_when_no_rule_applies(limen: Run, tmp_path: Path) -> None:
    text = "rules: [{name: a, key: [user], limits: 1/s}, {name: b, match: {x: y}, limits: 1/s}]\n"
    ran = limen("explain", "x=z", "--rules", write(tmp_path, text))
    assert ran.out.splitlines()[-1] == "allowed: no rule applies"
    assert ran.out.splitlines()[0] == "rules  rules.yaml: 0 of 2 apply"


def test_explain_tells_of_rules_beyond_the_hundredth_limit(limen: Run, tmp_path: Path) -> None:
    rules = [{"name": f"r{number}", "limits": "10/s"} for number in range(102)]
    rules[0]["match"] = {"user": "7"}  # type: ignore[assignment]  # any shape will do
    write(tmp_path, json.dumps({"rules": rules}), "many.json")
    out = limen("explain", "user=7", "--rules", "many.json").out
    assert out.count("    not applied: a request is held to 100 limits at most") >= 1


def test_explain_tells_machines(explain: Run) -> None:
    told = json.loads(explain("user=7", "path=/search/a", "method=GET", "--json").out)
    assert (told["allowed"], told["rule"], told["limit"]) == (True, "search-per-user", "100/minute")
    assert (told["has_state"], told["store"], told["retry_after"]) == (False, "memory://", 0.0)
    assert told["attributes"] == {"user": "7", "path": "/search/a", "method": "GET"}
    assert [part["limit"] for part in told["parts"]] == ["100/minute", "1000/day", "1000/minute"]
    assert told["applying"][0]["because"][0] == {
        "attribute": "path",
        "asked": "is /search/*",
        "got": "/search/a",
        "holds": True,
    }
    assert told["others"][0] == {"rule": "login", "because": "path is /login : got /search/a"}


def test_explain_can_ask_a_draft(limen: Run, applied: str, tmp_path: Path) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    limen("rules", "apply", applied, "--draft")
    asked = ("explain", "path=/login", "ip=::1")
    assert "    5/minute: 5 of 5 left\n" in limen(*asked).out
    assert "    6/minute: 6 of 6 left\n" in limen(*asked, "--version", "2").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["user"], "'user' is no attribute; write it as name=value"),
        (["=7"], "'=7' has no name; write it as name=value"),
        (["user=\udcff"], "'user=\\udcff' is not text in UTF-8"),
        (["user=1", "user=2"], "the attribute 'user' stands twice"),
        (["user=1", "--at", "friday"], "--at takes a date such as 2026-12-24 or a time such as"),
        (["user=1", "--at", "9999-12-31T23:59-12:00"], "--at takes a date such as 2026-12-24"),
        (["user=1", "--cost", "-1"], "(see limen explain --help)"),
        (["user=1", "--cost", "9999999999"], "cost must be a whole number from 0 to 1,000,000,000"),
        (["user=1", "--store", "ftp://x"], "unknown store 'ftp://'"),
        (["user=1", "--namespace", "a b"], "--namespace: expected 1 to"),
    ],
)
def test_explain_answers_a_mistake_by_one_line_and_exit_code_2(
    explain: Run, arguments: list[str], said: str
) -> None:
    ran = explain(*arguments)
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.startswith("limen: ")
    assert ran.err.count("\n") == 1
    assert said in ran.err


@pytest.mark.parametrize(
    ("attributes", "note"),
    [
        ("usr=1", "no rule uses usr (did you mean user?)"),
        ("zzz=1", "no rule uses zzz; they use: agent, ip, method, path, plan, user"),
        # What is there already was not meant.
        ("user=7 usr=1", "no rule uses usr; they use: agent, ip, method, path, plan, user"),
        ("user=", "user is empty, which is the same as absent"),
        ("ip=notanip", "notanip is no address, so it is in no network"),
    ],
)
def test_explain_notes_what_may_be_a_slip_and_goes_on(
    explain: Run, attributes: str, note: str
) -> None:
    ran = explain(*attributes.split())
    assert (ran.exit_code, ran.err) == (0, f"note: {note}\n")
    assert ran.out.startswith("rules  rules.yaml: 1 of 6 apply\n")
    told = explain(*attributes.split(), "--json")
    assert told.err == ""
    assert json.loads(told.out)["notes"] == [note]


def test_an_empty_attribute_is_absent(explain: Run) -> None:
    empty, absent = explain("path=/login", "ip="), explain("path=/login")
    assert empty.out == absent.out
    assert absent.err == ""


def test_explain_without_rules_knows_no_attribute(limen: Run, tmp_path: Path) -> None:
    ran = limen("explain", "user=1", "--rules", write(tmp_path, "rules: []\n"))
    assert (ran.exit_code, ran.err) == (0, "note: no rule uses user\n")
    assert ran.out.endswith("allowed: no rule applies\n")


def test_explain_tells_that_the_attribute_of_the_cost_is_absent(limen: Run, tmp_path: Path) -> None:
    text = "rules: [{name: a, key: org, cost: tokens, missing: deny, limits: 9/s}]\n"
    ran = limen("explain", "org=acme", "--rules", write(tmp_path, text))
    said = "its cost is the attribute tokens, which is absent (missing: deny)"
    assert ran.exit_code == 0
    assert f"    refuses: {said}" in ran.out.splitlines()
    assert ran.out.splitlines()[-1] == f"refused by a: {said}"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_explain_teaches_on_a_terminal_when_nothing_at_all_was_typed(
    limen: Run, applied: str, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: is_terminal)
    ran = limen("explain")
    assert ran.exit_code == 0
    if is_terminal:
        assert "limen explain user=42 path=/search/a method=GET" in ran.out
        assert "is 0 also when the request would be refused" in ran.out
    else:
        assert ran.out.endswith("allowed: no limit is enforced\n")


def test_a_request_without_attributes_is_a_request(
    explain: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert explain().out.startswith("rules  rules.yaml: 1 of 6 apply\n")
    assert json.loads(explain("--json").out)["attributes"] == {}


def everything_in(client: redis.Redis) -> dict[bytes, Any]:
    found: Any = client.keys("*")
    return {key: client.dump(key) for key in found}


def test_explain_tells_the_counters_of_a_store_and_consumes_nothing(
    explain: Run, valkey: servers.Server
) -> None:
    url = f"redis://127.0.0.1:{valkey.port}"
    facts = {"ip": "1.2.3.4", "path": "/login"}
    with Limiter(url, deadline=5.0) as limiter, redis.Redis(port=valkey.port) as client:
        engine = Engine(parse(load("rules.yaml").document), limiter)
        for _ in range(3):
            assert engine.decide(facts).allowed
        before = everything_in(client)
        assert len(before) == 2
        asked = ("ip=1.2.3.4", "path=/login", "--store", url)
        first, second = explain(*asked), explain(*asked)
        assert (first.exit_code, first.err) == (0, "")
        assert f"store  {url}: counters as they are now; nothing was consumed\n" in first.out
        for ran in (first, second):
            assert "    5/minute: 2 of 5 left, reset in " in ran.out
            assert "    1000/minute: 997 of 1000 left, reset in " in ran.out
            assert ran.out.endswith("allowed; nearest is login (5/minute), 2 left\n")
        assert everything_in(client) == before
        # Also of keys that nobody has used yet, nothing is left behind.
        assert explain("user=new", "path=/export", "--store", url).exit_code == 0
        assert client.dbsize() == 2
        for _ in range(2):
            assert engine.decide(facts).allowed
        refused = explain(*asked).out
        assert "    5/minute: 0 of 5 left, refused, retry in " in refused
        assert refused.splitlines()[-1].startswith("refused by login (5/minute), retry in ")
        assert explain(*asked, "--namespace", "other").out.endswith("(5/minute), 5 left\n")


def test_explain_shows_no_numbers_of_its_own_for_a_store_that_is_gone(explain: Run) -> None:
    port = servers.free_port()
    ran = explain("user=7", "--store", f"redis://joe:{SECRET}@127.0.0.1:{port}")
    assert (ran.exit_code, ran.out) == (1, "")
    assert ran.err.startswith(f"limen: redis://127.0.0.1:{port}: ")
    assert ran.err.count("\n") == 1


def test_explain_shows_no_numbers_of_its_own_for_a_key_that_cannot_be_read(
    explain: Run, valkey: servers.Server
) -> None:
    url = f"redis://127.0.0.1:{valkey.port}"
    with Limiter(url, deadline=5.0) as limiter, redis.Redis(port=valkey.port) as client:
        client.flushall()
        Engine(load("rules.yaml"), limiter).decide({"ip": "7", "path": "/login"})
        for key in everything_in(client):
            client.delete(key)
            client.lpush(key.decode(), "poison")
        ran = explain("ip=7", "path=/login", "--store", url)
    assert (ran.exit_code, ran.out) == (1, "")
    assert ran.err.startswith("limen: the store did not answer")
    assert ran.err.endswith(f"; see `limen doctor {url}`\n")
    assert ran.err.count("\n") == 1
