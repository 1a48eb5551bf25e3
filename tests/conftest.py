"""How hard the property tests try, and which files go first.

`make test` tries the same examples every time, so that it fails for a change and for nothing else.
New examples are for `make fuzz`, which is made to fail.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow]
settings.register_profile("quick", deadline=None, max_examples=10, suppress_health_check=_SLOW)
settings.register_profile(
    "test", deadline=None, max_examples=100, derandomize=True, suppress_health_check=_SLOW
)
settings.register_profile("fuzz", deadline=None, max_examples=1_000, suppress_health_check=_SLOW)
settings.load_profile("test")

# Each process of `make test` takes the next file when it is done with one. What takes long or
# needs a whole core begins early, so that none is alone with it in the end.
_FIRST = (
    "tests/test_typing.py",
    "tests/server/admin/test_fuzzed.py",
    "tests/server/test_secrets.py",
    "tests/test_servers.py",
    "tests/test_deploy.py",
    "tests/faults/test_nemesis.py",
    "tests/faults/test_cluster.py",
    "tests/faults/test_abuse.py",
    "tests/mutants",
    "tests/dashboard/test_accessible.py",
    "tests/dashboard/test_large.py",
    "tests/server/insight/test_fleet.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(_FIRST))
