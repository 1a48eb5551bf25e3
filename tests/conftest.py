"""The servers for all tests, how hard the property tests try, and which files go first.

`make test` tries the same examples every time, so that it fails for a change and for nothing else.
New examples are for `make fuzz`, which is made to fail.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from hypothesis import HealthCheck, settings

from tests import servers
from tests.postgres import Postgres
from tests.postgres import postgres as started_postgres
from tests.servers import Server

_SLOW = [HealthCheck.too_slow]
settings.register_profile("quick", deadline=None, max_examples=10, suppress_health_check=_SLOW)
for name, examples in (("test", 50), ("all", 100)):
    settings.register_profile(
        name,
        deadline=None,
        max_examples=examples,
        derandomize=True,
        suppress_health_check=_SLOW,
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


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Server]:
    """The Valkey that is shared by all tests; they use it as `valkey`."""
    with servers.process(servers.binaries()["valkey"]) as server:
        yield server


@pytest.fixture
def valkey(valkey_server: Server) -> Iterator[Server]:
    """An empty Valkey without connections; a test may kill or pause it, but not configure it."""
    with redis.Redis(port=valkey_server.port) as client:
        client.flushall()
        client.config_resetstat()
        for kind in ("normal", "pubsub"):
            client.client_kill_filter(_type=kind, skipme=True)
    yield valkey_server
    valkey_server.resume()
    if not valkey_server.alive:
        valkey_server.restart()


@pytest.fixture
def admin(valkey: Server) -> Iterator[redis.Redis]:
    """A client of `valkey` that is independent of limen, and connected."""
    with redis.Redis(port=valkey.port) as client:
        client.ping()
        yield client


@pytest.fixture
def redis_url(valkey: Server) -> str:
    return f"redis://{servers.HOST}:{valkey.port}"


@pytest.fixture
def own_valkey() -> Iterator[Server]:
    """A Valkey for one test, to kill, pause and configure."""
    with servers.process(servers.binaries()["valkey"]) as server:
        yield server


@pytest.fixture(scope="module")
def module_valkey() -> Iterator[Server]:
    """A Valkey for fixtures that are shared by the tests of a module; it is not emptied."""
    with servers.process(servers.binaries()["valkey"]) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """The PostgreSQL that is shared by all tests; they use it as `postgres`."""
    with started_postgres() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Postgres) -> Iterator[Postgres]:
    """A PostgreSQL that a test may kill and pause; databases that the test creates are dropped."""
    yield postgres_server
    postgres_server.resume()
    if not postgres_server.alive:
        postgres_server.start()
    postgres_server.drop_databases()
