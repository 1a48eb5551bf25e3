"""What the service reports of its database, and does while it waits for one."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it has no types
import grpc
import pytest
import redis

from limen.rules.document import digest
from limen.rules.stores.sql import SqlStore
from limen.server.envoy.schema import SHOULD_RATE_LIMIT, RateLimitRequest
from tests.postgres import Postgres
from tests.server.admin.driving import ADMIN
from tests.server.product import Product, product
from tests.server.raw import Response
from tests.servers import HOST, Server
from tests.waiting import wait_until

BEARER = f"Authorization: Bearer {ADMIN}"
BLOCK = {"rules": [{"name": "no", "mode": "block"}]}
NEWER = "the rule database has schema revision 9999, and this limen supports revisions up to 0003"


def read(response: Response) -> Any:
    return json.loads(response.body)


def trouble(service: Product) -> list[str]:
    """Return what `/readyz` reports; the process must be ready."""
    response = service.ask("/readyz")
    assert response.status == 200
    told: list[str] = read(response)["trouble"]
    return told


def save(service: Product, base: int, document: Any) -> Response:
    body = {"document": document, "base": base}
    return service.ask("/admin/v1/rules", BEARER, method="PUT", body=body)


async def keep_block(url: str) -> None:
    """Make a database with one rule, which refuses everybody."""
    store = SqlStore(url)
    await store.prepare()
    await store.save(BLOCK, author="ann", base=None)


def is_allowed(service: Product) -> bool:
    asked: dict[str, Any] = {"attributes": {}}
    allowed: bool = read(service.ask("/v1/check", method="POST", body=asked))["allowed"]
    return allowed


def limen(service: Product, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "limen", *words],
        cwd=service.folder,
        env=service.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def with_newer_schema(folder: Path) -> str:
    """Make a database that holds a rule and has a newer schema; return its address."""
    path = folder / "rules.db"
    url = f"sqlite:///{path}"
    asyncio.run(keep_block(url))
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE limen_alembic_version SET version_num = '9999'")
        database.commit()
    return url


def test_newer_schema_is_reported_and_read_and_not_written(tmp_path: Path) -> None:
    url = with_newer_schema(tmp_path)
    with product(tmp_path / "after", auth__admin_token=ADMIN, rules=url) as service:
        assert not is_allowed(service)
        assert trouble(service) == ["schema"]
        stats = read(service.ask("/admin/v1/stats", BEARER))
        assert stats["health"]["trouble"] == ["schema"]
        refused = save(service, 1, {"rules": []})
        assert (refused.status, NEWER in refused.problem["detail"]) == (503, True)
        (service.folder / "rules.yaml").write_text("rules: []\n")
        for words in (
            ("rules", "apply", "rules.yaml", "--yes"),
            ("token", "create", "--role", "viewer", "--name", "a viewer"),
        ):
            done = limen(service, *words)
            assert (done.returncode, NEWER in done.stderr) == (1, True), (words, done)
        assert read(service.ask("/admin/v1/rules", BEARER))["latest"] == 1
        assert any(NEWER in line for line in service.complained)


def test_newer_schema_that_cannot_be_read_ends_the_first_start(tmp_path: Path) -> None:
    url = with_newer_schema(tmp_path)
    with closing(sqlite3.connect(tmp_path / "rules.db")) as database:
        database.execute("ALTER TABLE limen_state RENAME COLUMN active TO active_version")
    with product(tmp_path / "after", rules=url) as service:
        assert service.code() == 1
        assert NEWER in "".join(service.complained)


def test_read_only_postgresql_is_reported_before_a_save_fails(
    tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.create_database("read_only")
    asyncio.run(keep_block(url))
    with product(tmp_path, auth__admin_token=ADMIN, rules=url) as service:
        assert not is_allowed(service)
        assert trouble(service) == []
        postgres.execute("ALTER DATABASE read_only SET default_transaction_read_only = on")
        wait_until(lambda: trouble(service) == ["read-only"])
        assert not is_allowed(service)
        refused = save(service, 1, {"rules": []})
        assert refused.status == 503
        assert "the server is read-only" in refused.problem["detail"]
        assert trouble(service) == ["read-only"]
        postgres.execute("ALTER DATABASE read_only RESET default_transaction_read_only")
        wait_until(lambda: trouble(service) == [])


def should_rate_limit(service: Product) -> grpc.StatusCode:
    """Ask as Envoy does; return the status of the call."""
    request = RateLimitRequest(domain="limen")
    request.descriptors.add().entries.add(key="a", value="b")
    with grpc.insecure_channel(f"{HOST}:{service.grpc_port}") as channel:
        try:
            channel.unary_unary(SHOULD_RATE_LIMIT.decode())(request.SerializeToString(), timeout=5)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


def decisions(service: Product) -> list[Response]:
    """Ask for a decision in each way over HTTP."""
    asked: dict[str, Any] = {"attributes": {}}
    envoys = {"domain": "limen", "descriptors": [{"entries": [{"key": "a", "value": "b"}]}]}
    forwarded = ("X-Forwarded-Method: GET", "X-Forwarded-Uri: /a", "X-Forwarded-For: 192.0.2.1")
    return [
        service.ask("/v1/check", method="POST", body=asked),
        service.ask("/v1/check", method="POST", body=asked),
        service.ask("/v1/usage"),
        service.ask("/v1/slots", method="POST", body=asked),
        service.ask("/json", method="POST", body=envoys),
        service.ask("/v1/auth", *forwarded),
        service.ask("/v1/auth/a", *forwarded),
    ]


STARTING = [503] * 5 + [504] * 2


def test_service_listens_before_a_frozen_postgresql_has_rules(
    tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.create_database("frozen")
    asyncio.run(keep_block(url))
    settings = {"auth__admin_token": ADMIN, "gateway__trusted_proxies": HOST, "rules": url}
    postgres.pause()
    try:
        began = time.monotonic()
        with product(tmp_path, **settings) as service:
            assert service.ask("/healthz").status == 200
            assert time.monotonic() - began < 40, "it takes 4 s, on a machine without other work"
            ready = service.ask("/readyz")
            assert (ready.status, ready.headers["retry-after"]) == (503, "1")
            assert read(ready)["status"] == "starting"
            answers = decisions(service)
            assert [response.status for response in answers] == STARTING
            for response in answers:
                assert response.headers["retry-after"] == "1"
                assert "the rules are not loaded yet" in response.problem["detail"]
            assert should_rate_limit(service) == grpc.StatusCode.UNAVAILABLE
            # The kill switch lets everybody pass, whatever the rules are.
            turn = service.ask("/admin/v1/kill-switch", BEARER, method="PUT", body={"on": True})
            assert turn.status == 200
            wait_until(lambda: is_allowed(service))
            service.ask("/admin/v1/kill-switch", BEARER, method="PUT", body={"on": False})
            wait_until(lambda: [each.status for each in decisions(service)] == STARTING)
            postgres.resume()
            wait_until(lambda: service.ask("/readyz").status == 200)
            assert not is_allowed(service)
            assert should_rate_limit(service) == grpc.StatusCode.OK
    finally:
        postgres.resume()


@pytest.mark.slow
def test_first_answers_are_by_the_last_good_rules_while_postgresql_is_frozen(
    tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.create_database("last_good")
    asyncio.run(keep_block(url))
    with product(tmp_path, rules=url) as service:
        wait_until(lambda: read(service.ask("/readyz"))["status"] == "ok")
        service.signal(signal.SIGTERM)
        assert service.code() == 0
    asyncio.run(empty(url))
    postgres.pause()
    try:
        with product(tmp_path, rules=url) as service:
            assert not is_allowed(service)
            assert read(service.ask("/readyz"))["rules_source"] == "last-good"
            postgres.resume()
            # Tables that are missing are made also where rules came from elsewhere.
            wait_until(lambda: "tokens" not in read(service.ask("/readyz"))["trouble"])
            assert not is_allowed(service)
    finally:
        postgres.resume()


async def empty(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    finally:
        await connection.close()


@pytest.mark.slow
def test_tables_are_made_when_a_frozen_postgresql_goes_on(
    tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.create_database("no_tables")
    postgres.pause()
    try:
        with product(tmp_path, auth__admin_token=ADMIN, rules=url) as service:
            assert service.ask("/readyz").status == 503
            postgres.resume()
            wait_until(lambda: service.ask("/readyz").status == 200)
            assert is_allowed(service), "there are no rules yet"
            assert save(service, 0, BLOCK).status == 200
            wait_until(lambda: not is_allowed(service))
    finally:
        postgres.resume()


def test_invalid_rules_in_a_database_end_the_first_start(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/rules.db"
    asyncio.run(keep_block(url))
    document = json.dumps({"rules": [{"name": "no", "mode": "odd"}]}, separators=(",", ":"))
    with closing(sqlite3.connect(tmp_path / "rules.db")) as database:
        database.execute("DROP TRIGGER limen_rule_sets_no_update")
        changed = (document, digest(json.loads(document)))
        database.execute("UPDATE limen_rule_sets SET document = ?, digest = ?", changed)
        database.commit()
    with product(tmp_path / "service", rules=url) as service:
        assert service.code() == 2
        assert "rules[0].mode" in "".join(service.complained)


@pytest.mark.slow
def test_rolling_restart_keeps_workers_with_rules_until_the_new_ones_have_some(
    tmp_path: Path, valkey: Server, postgres: Postgres
) -> None:
    url = postgres.create_database("rolling")
    asyncio.run(keep_block(url))
    store = f"redis://{HOST}:{valkey.port}"
    settings = {"auth__admin_token": ADMIN, "rules": url, "workers": "2", "store__url": store}
    with product(tmp_path, **settings) as service:
        wait_until(lambda: len(service.workers) == 2)
        wait_until(lambda: service.ask("/readyz").status == 200)
        old = set(service.workers)
        postgres.pause()
        try:
            # Without any other source, the new workers have to wait for the database.
            with redis.Redis(HOST, valkey.port) as client:
                client.flushall()
            (service.folder / ".limen" / "rules.last-good.json").unlink()
            service.signal(signal.SIGHUP)
            wait_until(lambda: len(service.workers) == 3)
            end = time.monotonic() + 4  # longer than a worker waits that is alone
            while time.monotonic() < end:
                assert not is_allowed(service)
            assert old < set(service.workers)
        finally:
            postgres.resume()
        wait_until(lambda: not old & set(service.workers) and len(service.workers) == 2)
        assert not is_allowed(service)


def test_database_on_another_host_without_sslmode_is_warned_of_once(tmp_path: Path) -> None:
    with product(tmp_path, rules="postgresql://limen:canary@db.invalid/limen") as service:
        assert service.code() == 1
        [warning] = [line for line in service.complained if "sslmode=verify-full" in line]
        assert "the server is not verified" in warning
        assert "canary" not in "".join(service.complained)
    url = "postgresql://limen@db.invalid/limen?sslmode=disable"
    with product(tmp_path, rules=url) as service:
        assert service.code() == 1
        assert "sslmode" not in "".join(service.complained)
