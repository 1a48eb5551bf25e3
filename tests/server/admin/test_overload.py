"""Long work and a hanging database delay neither the kill switch nor `/metrics` nor the exit."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from limen.server.admin.authorization import MAX_VIEWER_BODY
from limen.server.admin.json_body import decoded
from limen.server.http.exchange import Rejected
from tests.postgres import Postgres
from tests.server.admin.driving import ADMIN
from tests.server.product import Product, product
from tests.server.raw import Raw, Response, request
from tests.waiting import wait_until

BEARER = f"Authorization: Bearer {ADMIN}"
BLOCK = {"rules": [{"name": "no", "mode": "block"}]}
SOON_S = 20.0
"""How long a response may take that waits for nothing, on a machine with other work."""
VALIDATE = "/admin/v1/rules/validate"
SWITCH = "/admin/v1/kill-switch"


def viewer(service: Product) -> str:
    """Create a token; return the header that a viewer sends."""
    body = {"role": "viewer", "name": "a viewer"}
    made = service.ask("/admin/v1/tokens", BEARER, method="POST", body=body)
    return f"Authorization: Bearer {read(made)['secret']}"


def read(response: Response) -> Any:
    return json.loads(response.body)


def health(service: Product) -> Any:
    return read(service.ask("/readyz"))


def is_allowed(service: Product) -> bool:
    asked: dict[str, Any] = {"attributes": {}}
    allowed: bool = read(service.ask("/v1/check", method="POST", body=asked))["allowed"]
    return allowed


def timed(service: Product, path: str, *headers: str, **asked: Any) -> tuple[Response, float]:
    began = time.monotonic()
    response = service.ask(path, *headers, **asked)
    return response, time.monotonic() - began


@contextmanager
def under_way(service: Product, times: int, *asked: str, **more: Any) -> Iterator[list[Raw]]:
    """Send a request so many times, each on its own connection, and wait for no response."""
    with ExitStack() as stack:
        opened = [stack.enter_context(Raw(service.admin_port, timeout=60)) for _ in range(times)]
        for each in opened:
            each.send(request(*asked, **more))
        yield opened


@contextmanager
def computing(service: Product, times: int, bearer: str) -> Iterator[list[Raw]]:
    """Send long work so many times; wait until the service computes."""
    before_s = cpu_s(service)
    with under_way(service, times, VALIDATE, bearer, method="POST", body=long_work()) as opened:
        wait_until(lambda: cpu_s(service) > before_s + 0.5)
        yield opened


def cpu_s(service: Product) -> float:
    """Return the CPU time that the service has used, in seconds."""
    fields = Path(f"/proc/{service.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answered(connections: list[Raw]) -> int:
    """Return how many connections have a response."""
    return sum(each.has_answer() for each in connections)


def long_work() -> bytes:
    """Return a body whose validation takes some seconds."""
    text = f"rules: [{{name: api, description: [{','.join(['a'] * 2_000_000)}]}}]"
    return json.dumps({"text": text}).encode()


def object_of(keys: int, *, is_unique: bool = False) -> bytes:
    """Return an object whose last key stands in it twice, unless all keys are to be unique."""
    names = [*range(keys - 1), keys if is_unique else keys - 2]
    return b"{%s}" % b",".join(b'"k%07d":1' % name for name in names)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[tuple[Product, str]]:
    (tmp_path / "rules.json").write_text(json.dumps(BLOCK))
    settings = {"auth__admin_token": ADMIN, "http__drain_timeout": "1"}
    with product(tmp_path, "--rules", "rules.json", **settings) as service:
        yield service, viewer(service)


def test_finds_a_duplicate_key_in_linear_time() -> None:
    def cpu_s(body: bytes) -> float:
        began = time.process_time()
        with suppress(Rejected):
            decoded(body)
        return time.process_time() - began

    unique, duplicate = object_of(10_000, is_unique=True), object_of(10_000)
    with pytest.raises(Rejected, match="the key 'k0009998' stands twice in one object"):
        decoded(duplicate)
    assert cpu_s(duplicate) < 10 * min(cpu_s(unique) for _ in range(3))


def test_refuses_an_object_with_too_many_keys_at_once(busy: tuple[Product, str]) -> None:
    service, bearer = busy
    response, took_s = timed(
        service, "/admin/v1/rules/validate", bearer, method="POST", body=object_of(50_000)
    )
    assert response.status == 422
    assert response.problem["detail"] == (
        "an object in the body has 50,000 keys; the most that are allowed are 10,000"
    )
    assert took_s < SOON_S


def test_long_work_delays_neither_kill_switch_nor_metrics_nor_rules(
    busy: tuple[Product, str],
) -> None:
    service, bearer = busy
    assert not is_allowed(service)
    with computing(service, 16, bearer) as waiting, computing(service, 16, viewer(service)):
        body = b'{"on": true}' + b" " * 60_000
        turned, took_s = timed(service, SWITCH, BEARER, method="PUT", body=body)
        assert (turned.status, took_s < SOON_S) == (200, True), took_s
        wait_until(lambda: is_allowed(service), SOON_S)
        metrics, took_s = timed(service, "/metrics")
        assert (metrics.status, took_s < SOON_S) == (200, True), took_s
        version = health(service)["rules"]
        (service.folder / "rules.json").write_text(json.dumps({"rules": []}))
        wait_until(lambda: health(service)["rules"] != version, 2 * SOON_S)
        assert not waiting[-1].has_answer(), "the work was over too soon to show anything"


@pytest.mark.slow
def test_long_work_does_not_delay_the_exit(busy: tuple[Product, str]) -> None:
    service, bearer = busy
    with computing(service, 16, bearer):
        service.signal(signal.SIGTERM)
        assert service.code(2 * SOON_S) == 0
    assert "stopped before" in "".join(service.complained)


def test_long_work_of_one_token_does_not_delay_another_token(busy: tuple[Product, str]) -> None:
    service, bearer = busy
    with computing(service, 16, bearer) as waiting:
        body = {"text": f"rules: [] # {'x' * 100_000}"}
        answer, took_s = timed(service, VALIDATE, BEARER, method="POST", body=body)
        assert (answer.status, read(answer)["valid"]) == (200, True)
        assert took_s < SOON_S
        assert not waiting[-1].has_answer(), "the work was over too soon to show anything"


def test_refuses_a_token_with_too_many_requests_in_progress(busy: tuple[Product, str]) -> None:
    service, bearer = busy
    # Unfinished bodies: a request counts before its body is read.
    unfinished = request(VALIDATE, bearer, "Content-Length: 10", method="POST")
    with ExitStack() as stack:
        opened = [stack.enter_context(Raw(service.admin_port)) for _ in range(33)]
        for each in opened:
            each.send(unfinished)
        wait_until(lambda: answered(opened) == 1)
        refused = next(each for each in opened if each.has_answer()).response()
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert refused.problem["detail"] == (
            "this token has 32 requests in progress, the most that one token may have; "
            "wait until one ends"
        )


def test_a_get_is_answered_before_the_end_of_its_body(busy: tuple[Product, str]) -> None:
    service, bearer = busy
    length = f"Content-Length: {15 * 2**20}"
    for path in (SWITCH, "/admin/v1/stats"):
        with Raw(service.admin_port) as connection:
            connection.send(request(path, bearer, length) + b" " * 100_000)
            assert connection.response().status == 200


@pytest.mark.parametrize(
    ("method", "path", "longest"),
    [
        ("PUT", SWITCH, 65_536),
        ("POST", VALIDATE, 4_194_304),
        ("POST", "/admin/v1/explain", 4_194_304),
        ("PUT", "/admin/v1/rules", 16_777_216),
    ],
)
def test_refuses_a_body_that_is_too_long_for_its_route(
    busy: tuple[Product, str], method: str, path: str, longest: int
) -> None:
    service, _ = busy
    with Raw(service.admin_port) as connection:
        length = f"Content-Length: {longest + 1}"
        connection.send(request(path, BEARER, length, method=method) + b" ")
        refused = connection.response()
    assert refused.status == 413
    assert refused.problem["detail"] == f"the body is longer than {longest:,} bytes"
    accepted = service.ask(path, BEARER, method=method, body=b" " * longest)
    assert accepted.status == 400, "a body of just that length is read"


def test_healthz_answers_while_a_viewer_sends_the_longest_bodies(
    busy: tuple[Product, str],
) -> None:
    service, bearer = busy
    lists = b"[%s]" % b",".join([b"[]"] * (MAX_VIEWER_BODY // 3 - 2))
    slowest_s = 0.0
    with under_way(service, 4, VALIDATE, bearer, method="POST", body=lists) as sent:
        while answered(sent) < len(sent):
            health, took_s = timed(service, "/healthz")
            assert health.status == 200
            slowest_s = max(slowest_s, took_s)
        assert [each.response().status for each in sent] == [422] * 4
    assert slowest_s < SOON_S


@contextmanager
def locked_sqlite(service: Product) -> Iterator[None]:
    """Hold the lock of the writers of the database."""
    with closing(sqlite3.connect(service.folder / ".limen" / "rules.db")) as database:
        database.execute("BEGIN IMMEDIATE")
        yield


def kill_switch_rows(service: Product) -> list[dict[str, Any]]:
    rows = read(service.ask("/admin/v1/audit?limit=1000", BEARER))["rows"]
    return [row for row in rows if row["action"] == "kill-switch"]


def turn(service: Product, comment: str) -> bool:
    """Turn the kill switch on; return `audited`."""
    body = {"on": True, "comment": comment}
    turned = service.ask(SWITCH, BEARER, method="PUT", body=body)
    audited: bool = read(turned)["audited"]
    return audited


@pytest.mark.slow
def test_writes_the_audit_row_of_the_kill_switch_after_a_lock_of_sqlite(
    busy: tuple[Product, str],
) -> None:
    service, _ = busy
    with locked_sqlite(service):
        assert not turn(service, "while it is locked")
        wait_until(lambda: "writes" in health(service)["trouble"])
        unlocked_at = datetime.now(UTC)
    wait_until(lambda: len(kill_switch_rows(service)) == 1)
    [row] = kill_switch_rows(service)
    assert row["comment"] == "while it is locked"
    assert datetime.fromisoformat(row["at"]) < unlocked_at


def test_refuses_a_kill_switch_whose_comment_the_audit_cannot_keep(
    busy: tuple[Product, str],
) -> None:
    service, _ = busy
    body = {"on": True, "comment": "a\0b"}
    assert service.ask(SWITCH, BEARER, method="PUT", body=body).status == 422
    assert read(service.ask(SWITCH, BEARER))["on"] is False


def stays_in_trouble(service: Product) -> bool:
    """Return whether `writes` is in trouble for 3 s; the service looks once a second."""
    end = time.monotonic() + 3
    while time.monotonic() < end:
        if "writes" not in health(service)["trouble"]:
            return False
        time.sleep(0.05)
    return True


def refuse_token(service: Product) -> None:
    """Try to create a token, which the database refuses."""
    body = {"role": "viewer", "name": "another viewer"}
    assert service.ask("/admin/v1/tokens", BEARER, method="POST", body=body).status == 503


def test_reports_writes_while_the_disk_of_sqlite_is_full(busy: tuple[Product, str]) -> None:
    service, _ = busy
    before = resource.prlimit(service.pid, resource.RLIMIT_FSIZE)
    with closing(sqlite3.connect(service.folder / ".limen" / "rules.db")) as database:
        # An open connection keeps the files beside the database: the lock needs no room then.
        database.execute("SELECT tokens FROM limen_state").fetchall()
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (1, before[1]))
        refuse_token(service)
        assert stays_in_trouble(service)
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, before)
        wait_until(lambda: "writes" not in health(service)["trouble"])


@pytest.fixture
def on_postgres(tmp_path: Path, postgres: Postgres) -> Iterator[tuple[Product, str]]:
    settings = {"auth__admin_token": ADMIN, "rules": postgres.create_database("limen")}
    with product(tmp_path, http__drain_timeout="1", **settings) as service:
        body = {"document": BLOCK, "base": read(service.ask("/admin/v1/rules", BEARER))["latest"]}
        assert service.ask("/admin/v1/rules", BEARER, method="PUT", body=body).status == 200
        bearer = viewer(service)
        wait_until(lambda: not is_allowed(service))
        yield service, bearer
        postgres.resume()


def test_kill_switch_works_at_once_while_postgresql_hangs(
    on_postgres: tuple[Product, str], postgres: Postgres
) -> None:
    service, bearer = on_postgres
    postgres.pause()
    with under_way(service, 40, "/admin/v1/rules", bearer) as waiting:
        wait_until(lambda: answered(waiting) == 8)
        turned, took_s = timed(service, SWITCH, BEARER, method="PUT", body={"on": True})
        assert (turned.status, read(turned)["audited"]) == (200, False)
        assert took_s < SOON_S
        wait_until(lambda: is_allowed(service), SOON_S)
        wait_until(lambda: health(service)["status"] == "degraded")
        assert {"source", "tokens"} & set(health(service)["trouble"])
        statuses = Counter(each.response().status for each in waiting)
        assert statuses == {429: 8, 503: 32}
    service.signal(signal.SIGTERM)
    assert service.code(2 * SOON_S) == 0


@pytest.mark.slow
def test_kill_switch_works_and_readyz_tells_while_a_row_is_locked(
    on_postgres: tuple[Product, str], postgres: Postgres
) -> None:
    service, _ = on_postgres
    with postgres.locked("UPDATE limen_state SET tokens = tokens", "limen"):
        turned, took_s = timed(service, SWITCH, BEARER, method="PUT", body={"on": True})
        assert (turned.status, read(turned)["audited"]) == (200, False)
        assert took_s < SOON_S
        wait_until(lambda: is_allowed(service), SOON_S)
        wait_until(lambda: health(service)["trouble"] == ["writes"])
        body = {"role": "viewer", "name": "another viewer"}
        refused, took_s = timed(service, "/admin/v1/tokens", BEARER, method="POST", body=body)
        assert (refused.status, took_s < 2 * SOON_S) == (503, True), took_s
        assert "another session of the database holds a lock" in refused.problem["detail"]
    wait_until(lambda: health(service)["status"] == "ok")


@pytest.mark.slow
def test_writes_every_audit_row_of_the_kill_switch_with_one_connection(
    on_postgres: tuple[Product, str], postgres: Postgres
) -> None:
    service, _ = on_postgres
    body = json.dumps({"on": True}).encode()
    with postgres.locked("UPDATE limen_state SET tokens = tokens", "limen"):
        with under_way(service, 60, SWITCH, BEARER, method="PUT", body=body) as sent:
            turned = [each.response() for each in sent]
        assert {(each.status, read(each)["audited"]) for each in turned} == {(200, False)}
        # The follower, the look after tokens, the probe of writes, and this query use a few.
        connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'limen'"
        assert int(postgres.execute(connections)) < 8
        # A row was refused, since the lock lasts for longer than the lock timeout.
        wait_until(lambda: "writes" in health(service)["trouble"])
        unlocked_at = datetime.now(UTC)
    wait_until(lambda: len(kill_switch_rows(service)) == 60)
    rows = kill_switch_rows(service)
    assert all(datetime.fromisoformat(row["at"]) < unlocked_at for row in rows)
    assert read(service.ask("/admin/v1/audit/verify", BEARER, method="POST"))["holds"]


@pytest.mark.slow
def test_logs_the_audit_row_that_is_not_written_before_the_exit(
    on_postgres: tuple[Product, str], postgres: Postgres
) -> None:
    service, _ = on_postgres
    with postgres.locked("UPDATE limen_state SET tokens = tokens", "limen"):
        assert not turn(service, "everybody is refused")
        service.signal(signal.SIGTERM)
        assert service.code(2 * SOON_S) == 0
    [line] = [line for line in service.complained if "the audit may lack a row" in line]
    for text in ("on for all rules", "the admin token of this host", "everybody is refused"):
        assert text in line


@pytest.mark.slow
def test_refuses_a_token_that_waits_too_long_for_the_requests_of_others(
    on_postgres: tuple[Product, str], postgres: Postgres
) -> None:
    service, last = on_postgres
    others = [viewer(service) for _ in range(14)]
    with ExitStack() as stack:
        stack.enter_context(postgres.locked("LOCK TABLE limen_state", "limen"))
        for bearer in others[:4]:
            stack.enter_context(under_way(service, 2, "/admin/v1/rules", bearer))
        # Each has a thread, and PostgreSQL ends it after 5 s.
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: int(postgres.execute(waiting)) >= 8)
        # Eight of these have the threads for the next 5 s.
        for bearer in others[4:]:
            stack.enter_context(under_way(service, 2, "/admin/v1/rules", bearer))
        refused, took_s = timed(service, "/admin/v1/rules", last)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.problem["detail"] == (
            "no database thread was free within 5 s; try again later"
        )
        assert took_s < SOON_S


@pytest.mark.slow
def test_reports_writes_while_postgresql_takes_a_lock_and_no_write(
    on_postgres: tuple[Product, str], postgres: Postgres
) -> None:
    service, _ = on_postgres
    postgres.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100'; END $$; "
        "CREATE TRIGGER refuse BEFORE UPDATE ON limen_state EXECUTE FUNCTION refuse()",
        "limen",
    )
    refuse_token(service)
    assert stays_in_trouble(service)
    postgres.execute("DROP TRIGGER refuse ON limen_state", "limen")
    wait_until(lambda: "writes" not in health(service)["trouble"])
