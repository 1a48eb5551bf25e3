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
# needs a whole core begins early, the longest first, so that none is alone with it in the end.
_FIRST = (
    "tests/dashboard/test_accessible.py",
    "tests/server/admin/test_fuzzed.py",
    "tests/server/test_secrets.py",
    "tests/faults/test_nemesis.py",
    "tests/server/insight/test_fleet.py",
    "tests/backends/test_script.py",
    "tests/rules/sync/test_faults.py",
    "tests/algorithms/test_properties.py",
    "tests/gateways/test_gateways.py",
    "tests/rules/sync/test_close.py",
    "tests/cli/test_process.py",
    "tests/dashboard",
    "tests/conformance/test_one_limit.py",
    "tests/gateways/test_failing.py",
    "tests/rules/sync",
    "tests/mutants",
    "tests/test_deploy.py",
    "tests/faults",
    "tests/client/test_away.py",
    "tests/adapters/django/test_sites.py",
    "tests/rules/stores",
    "tests/shared",
    "tests/test_servers.py",
    "tests/test_typing.py",
)


def _place(item: pytest.Item) -> int:
    places = (place for place, name in enumerate(_FIRST) if item.nodeid.startswith(name))
    return next(places, len(_FIRST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)
