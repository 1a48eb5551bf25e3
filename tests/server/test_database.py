"""What the service reports of its database, and does while it waits for one."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from limen.rules.stores.sql import SqlStore
from tests import postgres
from tests.postgres import Postgres
from tests.server.admin.driving import ADMIN
from tests.server.product import Product, product
from tests.server.raw import Response, until

BEARER = f"Authorization: Bearer {ADMIN}"
BLOCK = {"rules": [{"name": "no", "mode": "block"}]}
NEWER = "the rule database has schema revision 9999, and this limen supports revisions up to 0003"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres.postgres() as started:
        yield started


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
    tmp_path: Path, server: Postgres
) -> None:
    url = server.create_database("read_only")
    asyncio.run(keep_block(url))
    with product(tmp_path, auth__admin_token=ADMIN, rules=url) as service:
        assert not is_allowed(service)
        assert trouble(service) == []
        server.execute("ALTER DATABASE read_only SET default_transaction_read_only = on")
        until(lambda: trouble(service) == ["read-only"])
        assert not is_allowed(service)
        refused = save(service, 1, {"rules": []})
        assert refused.status == 503
        assert "the server is read-only" in refused.problem["detail"]
        assert trouble(service) == ["read-only"]
        server.execute("ALTER DATABASE read_only RESET default_transaction_read_only")
        until(lambda: trouble(service) == [])
