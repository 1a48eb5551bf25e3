from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.shared.load import Crowd


@pytest.fixture
def url(redis_url: str) -> str:
    """The address of a store of the kind that the tests of a file are about."""
    return redis_url


@pytest.fixture(scope="session")
def crowd() -> Iterator[Crowd]:
    with Crowd() as started:
        yield started
