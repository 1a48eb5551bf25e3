"""Addresses of databases: what is read, what is refused, and what is shown of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from limen.errors import ConfigurationError
from limen.rules.stores.address import lacks_sslmode, parse
from limen.rules.stores.sql import SqlStore


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///rules.db", "sqlite:///rules.db"),
        ("sqlite:////var/lib/rules.db", "sqlite:////var/lib/rules.db"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgres://ann@host:5433/db", "postgres://ann@host:5433/db"),
        ("postgresql://ann:canary@host/db", "postgresql://ann:***@host/db"),
        ("postgresql://ann:canary%40%2F@[::1]:5/db", "postgresql://ann:***@[::1]:5/db"),
        ("postgresql://ann:can@ary@a,b:5/db", "postgresql://ann:***@a,b:5/db"),
        ("postgresql://ann@h/db?password=canary", "postgresql://ann@h/db"),
        ("postgresql:///db?host=/run/postgresql", "postgresql:///db"),
    ],
)
def test_address_is_shown_without_its_password(url: str, shown: str) -> None:
    assert repr(SqlStore(url)) == f"SqlStore({shown!r})"
    assert repr(parse(url)) == f"<Address {shown}>"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "has no scheme"),
        ("rules.db", "has no scheme"),
        ("ann:canary@host/db", "has no scheme"),
        (None, "has no scheme"),
        ("mysql://ann:canary@host/db", "rules cannot be kept in 'mysql://'"),
        ("redis://:canary@host", "rules cannot be kept in 'redis://'"),
        ("postgresql+psycopg://ann:canary@host/db", "in 'postgresql+psycopg://'"),
        ("ann:canary@postgresql://host/db", "cannot be read"),
        ("sqlite://", "takes a file"),
        ("sqlite://rules.db", "takes a file"),
        ("sqlite:///", "takes a file"),
        ("sqlite:///:memory:", "takes a file"),
        ("sqlite:///rules.db?mode=ro", "no options"),
        ("postgresql://ann:canary@host", "needs the name of a database"),
        ("postgresql://ann:canary@host/", "needs the name of a database"),
        ("postgresql://ann:canary/1@host/db", "in a password"),
        ("postgresql://ann:canary?1@host/db", "in a password"),
        ("postgresql://ann:canary#1@host/db", "in a password"),
        ("postgresql://ann:canary", "a host of 'postgresql://' cannot be read"),
        ("postgresql://ann:canary/db", "a host of 'postgresql://' cannot be read"),
    ],
)
def test_unusable_address_is_one_line_without_a_password(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SqlStore(url)
    text = str(caught.value)
    assert message in text
    assert "\n" not in text
    assert "canary" not in text


def test_relative_file_is_where_it_was_when_the_store_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    address = parse("sqlite:///sub/rules.db")
    monkeypatch.chdir("/")
    assert address.path == tmp_path / "sub" / "rules.db"


@pytest.mark.parametrize("timeout", [-1, 4000, True, "5", None, float("nan")])
def test_odd_busy_timeout_is_refused(timeout: float) -> None:
    with pytest.raises(ConfigurationError, match="busy_timeout must be seconds"):
        SqlStore("sqlite:///rules.db", busy_timeout=timeout)


@pytest.mark.parametrize(
    ("package", "url"),
    [
        ("sqlalchemy", "sqlite:///rules.db"),
        ("aiosqlite", "sqlite:///rules.db"),
        ("alembic", "sqlite:///rules.db"),
        ("asyncpg", "postgresql://host/db"),
    ],
)
def test_missing_package_is_named_with_the_command_that_installs_it(package: str, url: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from limen.errors import ConfigurationError\n"
        "try:\n"
        "    from limen.rules.stores.sql import SqlStore\n"
        f"    SqlStore({url!r})\n"
        "except ConfigurationError as error:\n"
        "    sys.stdout.write(str(error))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        f"rules in a database need the package {package}; run: pip install 'limen[sql]'"
    )


@pytest.mark.parametrize(
    ("url", "environ", "expected"),
    [
        ("postgresql://limen@db.internal/limen", {}, True),
        ("postgres://limen:secret@192.0.2.7:5433/limen", {}, True),
        ("postgresql://localhost,db.internal/limen", {}, True),
        ("postgresql://[2001:db8::1]:5432/limen", {}, True),
        ("postgresql:///limen?host=db.internal", {}, True),
        ("postgresql:///limen", {"PGHOST": "db.internal"}, True),
        ("postgresql://db.internal/limen?sslmode=verify-full", {}, False),
        ("postgresql://db.internal/limen?sslmode=disable", {}, False),
        ("postgresql://db.internal/limen", {"PGSSLMODE": "require"}, False),
        ("postgresql://localhost/limen", {}, False),
        ("postgresql://127.0.0.1:5433/limen", {}, False),
        ("postgresql://[::1]/limen", {}, False),
        ("postgresql:///limen", {}, False),
        ("postgresql:///limen?host=/run/postgresql", {}, False),
        ("sqlite:///rules.db", {}, False),
    ],
)
def test_connection_to_another_host_without_sslmode_is_known(
    url: str, environ: dict[str, str], expected: bool
) -> None:
    assert lacks_sslmode(parse(url), environ) is expected
