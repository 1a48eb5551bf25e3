"""What the checks share, in a process that is Django's: see `tests.adapters.django.test_inside`."""

from __future__ import annotations

from collections.abc import Iterator

import django
import pytest
from django.conf import settings
from django.test import override_settings
from django.test.utils import setup_test_environment, teardown_test_environment


def pytest_configure() -> None:
    django.setup()
    setup_test_environment()


def pytest_unconfigure() -> None:
    teardown_test_environment()


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """Count anew for each check: a setting that changes begins with an empty memory."""
    with override_settings(LIMEN=dict(settings.LIMEN)):
        yield
