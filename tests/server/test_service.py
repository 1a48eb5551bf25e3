"""The service as a whole: what a few bytes may cost it, what it survives, and what it says then."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from limen.server.http import connections
from tests.server.asking import Asker, asking
from tests.server.product import product
from tests.servers import HOST, binaries, free_port, process
from tests.waiting import wait_until

TEN = {"rules": [{"name": f"r{n}", "key": ["user"], "limits": "1000/hour"} for n in range(10)]}
SLOTS = """
rules:
  - name: exports-at-once
    key: [user]
    concurrency: {slots: 1, lease: 60s}
  - name: per-user
    key: [user]
    limits: 5/hour
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Asker]:
    with asking(tmp_path, SLOTS) as [started]:
        yield started


@pytest.mark.parametrize(
    ("limits", "status"),
    [
        ("10000/day", 200),
        ("10001/day packed_window", 422),
        ("1000/day rolling_window", 200),
        ("1001/day rolling_window", 422),
        ("1000000/day token_bucket", 200),
        ("1000000/day sliding_counter", 200),
    ],
)
def test_an_exact_window_of_a_callers_own_is_bounded(
    service: Asker, limits: str, status: int
) -> None:
    answer = service.post("/v1/check", {"key": "k", "limits": limits, "peek": True})
    assert answer.status == status, answer
    if status == 422:
        assert "limits: " in answer.detail
        assert "keeps every request" in answer.detail


def test_a_thousand_under_ten_limits_are_all_decided_by_the_store(tmp_path: Path) -> None:
    with process(binaries()["valkey"]) as server:
        flags: dict[str, Any] = {"store.url": f"redis://{HOST}:{server.port}"}
        with asking(tmp_path, json.dumps(TEN), flags) as [one]:
            one.service.limiter._backend._deadline = 2.0  # type: ignore[attr-defined]  # a busy machine
            questions = [{"attributes": {"user": str(n % 500)}} for n in range(1_000)]
            said = json.loads(one.post("/v1/check", questions).body)
    assert {(each["source"], each["allowed"]) for each in said} == {("store", True)}
    assert [each["remaining"] for each in said] == [999] * 500 + [998] * 500


def test_a_list_under_too_many_limits_is_refused(service: Asker) -> None:
    limits = [f"{number}/{number} minutes" for number in range(2, 102)]
    answer = service.post("/v1/check", [{"key": "k", "limits": limits, "peek": True}] * 201)
    assert answer.status == 422
    assert "more than 20,000 limits in all" in answer.detail


def test_a_peek_says_what_a_check_would_say_also_beside_slots(service: Asker) -> None:
    held = service.acquire(attributes={"user": "7"})
    assert held.slot
    looked, decided = service.check({"user": "7"}, peek=True), service.check({"user": "7"})
    assert looked.allowed
    assert decided.allowed
    assert looked.not_applicable == decided.not_applicable == ("exports-at-once",)
    assert not service.usage(user="7")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (b"https://evil.example", 403),
        (b"http://localhost.evil.example:8080", 403),
        (b"null", 403),
        (b"http://localhost:3000", 200),
        (b"http://127.0.0.1:8080", 200),
        (b"http://[::1]:8080", 200),
    ],
)
def test_pages_of_other_sites_may_not_ask_a_service_without_tokens(
    service: Asker, origin: bytes, status: int
) -> None:
    body = {"attributes": {"user": "7"}, "peek": True}
    answer = service.post("/v1/check", body, headers=[(b"origin", origin)])
    assert answer.status == status


def test_a_mistake_of_our_own_is_500_and_logged_under_the_id_it_is_told(
    service: Asker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError("of our own")

    monkeypatch.setattr(service.service.handlers, "_response", fail)
    answer = service.post("/v1/check", {"attributes": {}}, headers=[(b"x-request-id", b"mine-1")])
    assert answer.status == 500
    assert answer.json["instance"] == "urn:limen:mine-1"
    assert "ZeroDivisionError" not in answer.body.decode()
    assert [record.request for record in caplog.records if hasattr(record, "request")] == ["mine-1"]


def test_looking_after_tokens_survives_whatever_the_database_raises(
    service: Asker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = service.service.books

    async def damaged() -> int:
        raise ValueError("not a number")

    def wait(condition: Callable[[], bool]) -> None:
        # The service works only while its loop runs.
        wait_until(condition, sleep=lambda seconds: service.run(asyncio.sleep(seconds)))

    with monkeypatch.context() as broken:
        broken.setattr(books, "tokens_version", damaged)
        wait(lambda: service.service.health.status == "degraded")
        assert service.service.health.trouble == ("tokens",)
    assert [each for each in caplog.records if each.levelno == logging.WARNING]
    token, secret = service.run(books.create_token("check", "late", "me"))
    bearer = [(b"authorization", f"Bearer {secret}".encode())]
    ask = partial(service.post, "/v1/check", {"attributes": {}}, headers=bearer)
    wait(lambda: ask().status == 200)
    service.run(books.revoke_token(token.id, "me"))
    wait(lambda: ask().status == 401)
    assert service.service.health.status == "ok"


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot read the rules in rules.yaml"), ("rules: 5", "expected a list, got 5")],
)
def test_rules_in_a_file_that_nobody_could_go_by_stop_the_start(
    tmp_path: Path, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / "rules.yaml").write_text(text)
    ran = serve_with_rules(tmp_path, "rules.yaml")
    assert ran.returncode == 2
    assert said in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert not ran.stdout


def serve_with_rules(folder: Path, rules: str) -> subprocess.CompletedProcess[str]:
    """Run `limen serve` in a folder, with rules with which it does not start."""
    command = [sys.executable, "-m", "limen", "serve", "--bind", f"{HOST}:{free_port()}"]
    command += ["--grpc-bind", "", "--admin-bind", "", "--rules", rules]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=30, check=False
    )


def test_service_does_not_start_with_the_last_good_rules_of_another_source(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("rules: [{name: all, limits: 5/minute}]")
    with product(tmp_path, "--rules", "rules.yaml") as served:
        wait_until(lambda: (tmp_path / ".limen" / "rules.last-good.json").exists())
        served.signal(signal.SIGTERM)
        assert served.code() == 0
    (tmp_path / "rules.yaml").unlink()
    ran = serve_with_rules(tmp_path, "nofile.yaml")
    assert ran.returncode == 2
    assert "cannot read the rules in nofile.yaml" in ran.stderr
    assert ran.stdout == ""
    # The source of these rules itself may be away.
    with product(tmp_path, "--rules", "rules.yaml") as served:
        assert json.loads(served.ask("/readyz").body)["rules_source"] == "last-good"


@pytest.mark.parametrize(
    ("settings", "kept", "share"),
    [
        ({}, "", 100),
        ({"workers": 2}, "", 50),
        ({"store.min_instances": 4}, "", 25),
        ({"store.min_instances": 4, "workers": 2}, "2\n", 25),
        ({"store.min_instances": 4}, "10\n", 10),
    ],
)
def test_share_without_the_store_goes_by_the_known_number_of_processes_and_the_minimum(
    tmp_path: Path, settings: dict[str, Any], kept: str, share: int
) -> None:
    if kept:
        (tmp_path / "data-0").mkdir()
        (tmp_path / "data-0" / "instances").write_text(kept)
    away = {"store.url": f"redis://{HOST}:{free_port()}", **settings}
    with asking(tmp_path, "rules: []", away) as [service]:
        verdict = service.check(key="user:42", limits="100/hour")
    assert (verdict.degraded, verdict.remaining) == (True, share - 1)


def test_there_are_never_more_connections_than_files_may_be_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_MAX_CONNECTIONS", 7)
    assert connections._max_connections() == 7
