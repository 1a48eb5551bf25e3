"""A service that runs, and a browser to look at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.dashboard.browsing import Served, Visit, chromium, served, shared


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of a file.

    Not for all files: as long as it is open its loop runs in this thread, where others begin one.
    """
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service for all tests of a file, in memory and with the starter rules."""
    with served(tmp_path_factory.mktemp("service")) as started:
        yield started


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens pages, also several; the test fails in the end if one of them complained."""
    made = Visit(browser)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def fresh(tmp_path: Path, visit: Visit) -> Iterator[Served]:
    """A service for one test alone."""
    with served(tmp_path / "fresh") as started:
        yield started
        visit.leave()


@pytest.fixture
def pair(tmp_path: Path, visit: Visit) -> Iterator[Served]:
    """A service of two workers on a store, for one test alone."""
    with shared(tmp_path / "pair") as started:
        yield started
        visit.leave()


@pytest.fixture
def page(visit: Visit, service: Served) -> Page:
    """The first page of `service`, signed in as an admin."""
    return visit.open(service)
