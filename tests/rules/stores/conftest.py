"""One suite for both databases: the server is shared, the database is empty in each test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from limen.rules.stores.sql import SqlStore
from tests.postgres import Postgres
from tests.rules.stores.work import processes

WRITERS = 20
DATABASE = "rules"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/rules.db"


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    return postgres.empty_database(DATABASE)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """The address of a database with nothing in it."""
    name = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]
    return str(request.getfixturevalue(name))


@pytest.fixture
def store(url: str) -> SqlStore:
    """A store that is ready, on each of the databases."""
    made = SqlStore(url)
    asyncio.run(made.prepare())
    return made


@pytest.fixture(scope="session")
def crowd() -> Iterator[Callable[..., list[Any]]]:
    """Let many processes do the same: `crowd(work, count, *arguments)`, which get their number."""
    with processes().Pool(WRITERS) as pool:

        def together(work: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[Any]:
            running = [pool.apply_async(work, each) for each in arguments]
            return [each.get(60) for each in running]

        yield together
