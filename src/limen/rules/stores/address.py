"""The addresses of SQL databases, read and validated. Pure: connects to nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from limen.errors import ConfigurationError

_EXAMPLES = (
    "'sqlite:///rules.db', 'sqlite:////var/lib/limen/rules.db' "
    "or 'postgresql://user:password@host/database'"
)
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_NEEDED = {"sqlite": ("aiosqlite", "alembic"), "postgresql": ("asyncpg", "alembic")}


class Address(Struct, frozen=True):
    """Where a database is."""

    kind: Literal["sqlite", "postgresql"]
    shown: str
    """The address as messages show it: without a password."""
    path: Path | None = None
    """The file of SQLite, absolute."""
    dsn: str = ""
    """The whole address of PostgreSQL, password and all."""
    is_doubtful: bool = False
    """Whether the login has an `@` in it, which drivers take for its end."""

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"

    @property
    def options(self) -> dict[str, str]:
        """The options of PostgreSQL, such as `sslmode`; the last one of a name counts."""
        return dict(parse_qsl(self.dsn.partition("?")[2]))

    @property
    def source(self) -> str:
        """The identity of the database: its file, or its hosts and its name. Without the login."""
        if self.path is not None:
            return f"sqlite:{os.path.normpath(self.path)}"
        options = self.options
        chosen = [f"{name}={options[name]}" for name in ("host", "port") if name in options]
        where = self.shown.partition("://")[2].rpartition("@")[2]
        return f"postgresql://{where}{'?' if chosen else ''}{'&'.join(chosen)}"


def parse(url: str) -> Address:
    """Read an address, or raise `ConfigurationError` with one line that shows no password."""
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not separator:
        # Without the text: it may be a login.
        raise ConfigurationError(f"the address of the rules has no scheme; use {_EXAMPLES}")
    if scheme == "sqlite":
        return _sqlite(rest)
    if scheme in ("postgresql", "postgres"):
        return _postgresql(scheme, url, rest)
    if not re.fullmatch(r"[a-z0-9+.-]+", scheme):
        raise ConfigurationError(f"the address of the rules cannot be read; use {_EXAMPLES}")
    raise ConfigurationError(f"rules cannot be kept in '{scheme}://'; use {_EXAMPLES}")


def is_same(one: str, other: str) -> bool:
    """Return whether two addresses are of one database, whoever asks it. Knows no other names."""
    try:
        a, b = parse(one), parse(other)
    except ConfigurationError:
        return False
    return a.source == b.source


def lacks_sslmode(address: Address, environ: Mapping[str, str]) -> bool:
    """Return whether PostgreSQL is on another host, and nothing says how to connect to it.

    The driver then uses `prefer`, as libpq does: TLS if the server offers it, and no verification.
    """
    if address.kind != "postgresql":
        return False
    options = address.options
    if "sslmode" in options or "service" in options or environ.get("PGSSLMODE"):
        return False
    hosts = address.shown.partition("://")[2].partition("/")[0].rpartition("@")[2]
    named = hosts or options.get("host") or environ.get("PGHOST", "")
    # Without a host it is a socket file, or localhost.
    return not all(map(_is_local, named.split(",")))


def _is_local(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if not name or name.startswith("/") or name.lower() == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def need_packages(address: Address) -> None:
    """Raise `ConfigurationError` with the command that installs what is missing."""
    for package in _NEEDED[address.kind]:
        if find_spec(package) is None:
            raise missing(package) from ImportError(name=package)


def missing(package: str | None) -> ConfigurationError:
    """Return the error for a package that is not installed."""
    return ConfigurationError(
        f"rules in a database need the package {package}; run: pip install 'limen[sql]'"
    )


def _sqlite(rest: str) -> Address:
    host, slash, path = rest.partition("/")
    if host or not slash or not path or path == ":memory:":
        raise ConfigurationError(
            "'sqlite://' takes a file: 'sqlite:///rules.db', or with an absolute path "
            "'sqlite:////var/lib/limen/rules.db'"
        )
    if "?" in path or "\0" in path:
        raise ConfigurationError("'sqlite://' takes the path of a file, and no options")
    return Address("sqlite", f"sqlite:///{path}", path=Path(path).absolute())


def _postgresql(scheme: str, url: str, rest: str) -> Address:
    if "@" in rest.partition("/")[2] or "@" in rest.partition("?")[2] or "#" in rest:
        # What would be quoted as a path or an option is the end of a password.
        raise ConfigurationError(
            f"in a password of '{scheme}://', write / as %2F, ? as %3F, # as %23, @ as %40 "
            "and % as %25"
        )
    authority, _, path = rest.partition("?")[0].partition("/")
    login, at, hosts = authority.rpartition("@")
    if hosts and not all(map(_HOST.fullmatch, hosts.split(","))):
        # Not the text itself: with a mistyped address, a password may be in it.
        raise ConfigurationError(
            f"a host of '{scheme}://' cannot be read; expected 'host' or 'host:port'"
        )
    if not path.strip("/"):
        raise ConfigurationError(
            f"'{scheme}://' needs the name of a database: '{scheme}://user:password@host/database'"
        )
    user, colon, _ = login.partition(":")
    who = f"{unquote(user)}{':***' if colon else ''}@" if at else ""
    shown = f"{scheme}://{who}{hosts}/{path}"
    return Address("postgresql", shown, dsn=url, is_doubtful="@" in login)
