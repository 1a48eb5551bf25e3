"""A service on SQLite with two rules, for every test anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.admin.driving import RULES, Driven, driven, settings_of


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Driven]:
    with driven(settings_of(tmp_path), RULES) as started:
        yield started


@pytest.fixture(scope="package")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    """One for all tests that change nothing; its thread is gone when other tests count threads."""
    with driven(settings_of(tmp_path_factory.mktemp("calm")), RULES) as started:
        yield started
