"""What runs, the kill switch, the audit; with Redis and without, and with PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from limen.rules.sync import Switch, SwitchFile
from limen.rules.sync.switch import decode
from tests import postgres, servers
from tests.server.admin.driving import RULES, Driven, driven, settings_of
from tests.waiting import wait_until

OTHER = {"rules": [{"name": "all", "limits": "7/minute"}]}


def on_redis(folder: Path, own_valkey: servers.Server, **flags: Any) -> Any:
    url = f"redis://:canary-redis@127.0.0.1:{own_valkey.port}"
    return settings_of(folder, **{"store.url": url, **flags})


@pytest.fixture
def shared(tmp_path: Path, own_valkey: servers.Server) -> Iterator[Driven]:
    with Redis(port=own_valkey.port) as client:
        client.config_set("requirepass", "canary-redis")
    with driven(on_redis(tmp_path, own_valkey), RULES) as started:
        yield started


def test_without_redis_the_fleet_is_this_process(calm: Driven) -> None:
    told = calm.ask("GET", "/instances").json
    assert told["shared"] is False
    [one] = told["instances"]
    assert (one["pid"], one["version"], one["source"]) == (os.getpid(), "2", "store")


def test_with_redis_the_fleet_is_all_that_run(shared: Driven) -> None:
    wait_until(lambda: shared.ask("GET", "/instances").json["instances"] != [])
    told = shared.ask("GET", "/instances").json
    assert told["shared"] is True
    assert [one["pid"] for one in told["instances"]] == [os.getpid()]


def test_a_save_is_announced_by_redis(shared: Driven, own_valkey: servers.Server) -> None:
    sent = {"document": OTHER, "base": 2}
    assert shared.ask("PUT", "/rules", sent).status == 200
    with Redis(port=own_valkey.port, password="canary-redis") as client:
        assert client.hget("limen:{rules}entry", "version") == b"3"
        back = {"expected": 3}
        assert shared.ask("POST", "/rules/versions/2/activate", back).status == 200
        assert client.hget("limen:{rules}entry", "version") == b"2"


def test_without_redis_for_a_while_a_save_is_saved(
    shared: Driven, own_valkey: servers.Server, caplog: pytest.LogCaptureFixture
) -> None:
    own_valkey.kill()
    assert shared.ask("PUT", "/rules", {"document": OTHER, "base": 2}).status == 200
    assert "version 3 is saved, and not announced" in caplog.text
    assert "canary" not in caplog.text
    away = shared.ask("GET", "/instances")
    assert away.status == 503
    assert "canary" not in away.detail
    turned = shared.ask("PUT", "/kill-switch", {"on": True})
    assert (turned.status, turned.json["other_hosts"]) == (200, "not reached")


def test_the_kill_switch_is_for_every_host_that_redis_reaches(
    shared: Driven, own_valkey: servers.Server
) -> None:
    turned = shared.ask("PUT", "/kill-switch", {"on": True, "rules": ["per-user"]}).json
    assert (turned["other_hosts"], turned["audited"]) == ("reached", True)
    with Redis(port=own_valkey.port, password="canary-redis") as client:
        carried = decode(client.get("limen:{rules}switch"))
    assert carried is not None
    assert carried.rules == ("per-user",)


def test_the_kill_switch_lets_everybody_pass_and_is_written_down(service: Driven) -> None:
    block = {"document": {"rules": [{"name": "no", "mode": "block"}]}, "base": 2}
    assert service.ask("PUT", "/rules", block).status == 200
    sent = {"on": True, "comment": "too strict"}
    turned = service.ask("PUT", "/kill-switch", sent).json
    assert (turned["on"], turned["all"], turned["other_hosts"]) == (True, True, "none")
    assert turned["by"] == "the admin token of this host"
    assert service.ask("GET", "/kill-switch").json["all"] is True
    row = service.ask("GET", "/audit?limit=1").json["rows"][0]
    assert (row["action"], row["subject"]) == ("kill-switch", "on for all rules")
    assert row["comment"] == "too strict"
    check: dict[str, Any] = {"attributes": {}}
    wait_until(lambda: service.service.engine.rules.version == "3")
    wait_until(lambda: service.ask("POST", "//v1/check", check, role=None).json["allowed"])
    assert service.ask("PUT", "/kill-switch", {"on": False}).json["on"] is False
    wait_until(lambda: not service.ask("POST", "//v1/check", check, role=None).json["allowed"])


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"on": True, "rules": ["per-usr"]}, "rules[0]: there is no rule 'per-usr' (did you mean"),
        ({"on": False, "rules": ["per-user"]}, "rules: the switch is turned off for all rules"),
        ({"on": True, "rules": ["per-user"] * 501}, "rules[500]: at most 500 rules can be s"),
        ({"on": 1}, "on: expected a valid boolean"),
        ({}, "on: this field is missing"),
        ({"on": True, "rule": "per-user"}, "unknown field 'rule' (did you mean 'rules'?)"),
    ],
)
def test_a_kill_switch_that_makes_no_sense_is_not_turned(
    calm: Driven, sent: dict[str, Any], said: str
) -> None:
    refused = calm.ask("PUT", "/kill-switch", sent)
    assert (refused.status, said in refused.detail) == (422, True), refused.detail
    assert calm.ask("GET", "/kill-switch").json["on"] is False


def test_a_rule_that_is_called_all_is_not_mistaken_for_all(service: Driven) -> None:
    service.save(OTHER)
    refused = service.ask("PUT", "/kill-switch", {"on": True, "rules": ["all"]})
    assert refused.status == 422
    assert SwitchFile(service.service.place.folder).read() == Switch()


def test_stats_are_of_one_process(service: Driven) -> None:
    check = {"attributes": {"user": "42", "path": "/search/cats"}}
    for _ in range(4):
        service.ask("POST", "//v1/check", check, role=None)
    told = service.ask("GET", "/stats").json
    assert (told["allowed"], told["refused"], told["degraded"]) == (3, 1, 0)
    assert told["refused_by"] == {"search-per-user": 1}
    assert (told["instance"], told["pid"]) == (service.service.id, os.getpid())
    assert (told["health"]["status"], told["health"]["rules"]) == ("ok", "2")


def test_stats_have_the_address_of_the_data_plane(service: Driven) -> None:
    told = service.ask("GET", "/stats").json["data_plane"]
    assert told == {"url": "http://127.0.0.1:8080", "token_required": False}


def test_the_audit_is_told_page_by_page(service: Driven) -> None:
    rows = service.ask("GET", "/audit").json["rows"]
    assert [row["id"] for row in rows] == [4, 3, 2, 1]
    assert rows[0]["action"] == "activate"
    assert [row["id"] for row in service.ask("GET", "/audit?before=3&limit=1").json["rows"]] == [2]


def test_an_audit_that_was_changed_is_found_out(service: Driven) -> None:
    assert service.ask("POST", "/audit/verify").json == {"holds": True, "problem": None}
    file = service.service.place.folder / "rules.db"
    with closing(sqlite3.connect(file)) as database, database:
        for [trigger] in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'limen_audit'"
        ).fetchall():
            database.execute(f"DROP TRIGGER {trigger}")
        database.execute("UPDATE limen_audit SET actor = 'nobody' WHERE id = 2")
    told = service.ask("POST", "/audit/verify")
    assert (told.status, told.json["holds"]) == (200, False)
    assert "row 2 of the audit" in told.json["problem"]


def test_all_of_it_works_on_postgresql(tmp_path: Path) -> None:
    with postgres.postgres() as server:
        url = server.create_database("limen")
        with driven(settings_of(tmp_path, rules=url), RULES) as service:
            assert service.ask("GET", "/rules").json["version"] == 1
            assert service.ask("PUT", "/rules", {"document": OTHER, "base": 1}).status == 200
            assert service.ask("PUT", "/rules", {"document": RULES, "base": 1}).status == 409
            assert service.ask("POST", "/blocks", {"attributes": {"user": "a\0"}}).status == 201
            made = service.ask("POST", "/tokens", {"role": "viewer", "name": "x"}).json
            assert service.ask("GET", "/rules", token=made["secret"]).status == 200
            assert service.ask("DELETE", f"/tokens/{made['id']}").status == 200
            assert service.ask("POST", "/rules/versions/1/rollback").json["version"] == 4
            assert service.ask("POST", "/audit/verify").json["holds"] is True
            server.stop()
            check_without_a_database(service, postgres.PASSWORD)


def test_without_a_database_nothing_is_a_500(service: Driven) -> None:
    (service.service.place.folder / "rules.db").rename(service.service.place.folder / "gone")
    check_without_a_database(service, "canary")


def check_without_a_database(service: Driven, secret: str) -> None:
    """Ask for everything; what needs the database says so, and the rest goes on."""
    needs: list[tuple[str, str, Any]] = [
        ("GET", "/rules", None),
        ("GET", "/rules/all", None),
        ("PUT", "/rules", {"document": OTHER, "base": 1}),
        ("GET", "/rules/versions", None),
        ("GET", "/rules/versions/1", None),
        ("GET", "/rules/versions/1/diff", None),
        ("POST", "/rules/versions/1/activate", None),
        ("POST", "/rules/versions/1/rollback", None),
        ("GET", "/overrides", None),
        ("POST", "/rules/all/overrides", {"key": {"user": "1"}, "limits": "1/s"}),
        ("DELETE", "/rules/all/overrides?user=1", None),
        ("GET", "/exemptions", None),
        ("POST", "/exemptions", {"name": "x", "match": {"user": "1"}}),
        ("DELETE", "/exemptions/x", None),
        ("GET", "/blocks", None),
        ("POST", "/blocks", {"attributes": {"user": "1"}}),
        ("DELETE", "/blocks/x", None),
        ("GET", "/tokens", None),
        ("POST", "/tokens", {"role": "check", "name": "x"}),
        ("DELETE", "/tokens/00000000", None),
        ("GET", "/audit", None),
        ("POST", "/audit/verify", None),
        ("POST", "/keys/reset", {"attributes": {"user": "1", "path": "/search/x"}}),
    ]
    for method, path, body in needs:
        away = service.ask(method, path, body)
        assert (away.status, away.headers.get("retry-after")) == (503, "1"), path
        assert secret not in away.detail
    goes_on: list[tuple[str, str, Any]] = [
        ("POST", "/rules/validate", {"document": RULES}),
        ("POST", "/explain", {"attributes": {"user": "1"}}),
        ("POST", "/keys/inspect", {"attributes": {"user": "1"}}),
        ("GET", "/instances", None),
        ("GET", "/kill-switch", None),
        ("GET", "/stats", None),
    ]
    for method, path, body in goes_on:
        assert service.ask(method, path, body).status == 200, path
    turned = service.ask("PUT", "/kill-switch", {"on": True})
    assert (turned.status, turned.json["audited"]) == (200, False)
