"""The addresses of stores: every form there is, read into a `Target`. Pure: connects to nothing."""

from __future__ import annotations

import re
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from limen.errors import ConfigurationError, shown

Address = tuple[str, int]
"""A host and a port; a socket file is its path and port 0."""

Kind = Literal["single", "cluster", "sentinel"]

MAX_CONNECTIONS = 16
"""Connections for each server and process, unless the address says otherwise."""
MOST_CONNECTIONS = 1_000
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_PORT, _SENTINEL_PORT = 6379, 26379
_TLS = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
_KINDS: dict[str, Kind] = {"": "single", "cluster": "cluster", "sentinel": "sentinel"}
_OPTIONS = (
    "ssl_ca_certs",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_keyfile",
)
_MAX_CONNECTIONS = "max_connections"
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_NO_OPTIONS = (*_SENTINEL_OPTIONS, _MAX_CONNECTIONS)
"""Options of an address that are not for a connection of redis-py."""
_UNIX = ("unix", "redis+unix", "valkey+unix")
_EXAMPLES = (
    "'memory://', 'redis://host:6379', 'rediss://...' with TLS, 'unix:///run/redis.sock', "
    "'redis+cluster://host:6379,host:6380' or 'redis+sentinel://host:26379/service'"
)


class Target(Struct, frozen=True):
    """Where a store is, and how to get in."""

    kind: Kind
    addresses: tuple[Address, ...]
    """The server itself; or some that know the rest: nodes of a cluster, sentinels."""
    shown: str
    """The address as messages show it: without a password."""
    options: dict[str, Any]
    """What a connection of redis-py is made with, besides host and port."""
    tls: bool = False
    service: str = ""
    """What sentinels call the group of servers."""
    sentinel_options: dict[str, Any] = {}
    """Like `options`, for the sentinels themselves."""
    max_connections: int = MAX_CONNECTIONS
    """How many connections threads share, for each server and process."""

    def __repr__(self) -> str:
        # Without the options: the password is there.
        return f"<Target {self.shown}>"


def is_shared(store: object) -> bool:
    """Return whether a store is outside this process: whether it is for this module to find."""
    if not isinstance(store, str):
        return True
    scheme = store.partition("://")[0]
    return scheme == "unix" or scheme.partition("+")[0] in _TLS


def parse(url: str) -> Target:
    """Read an address, or raise `ConfigurationError` that says what was expected."""
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        # Without the text: it may be a login.
        raise ConfigurationError(f"the address of the store has no scheme; use {_EXAMPLES}")
    if "@" in rest.partition("/")[2] or "@" in rest.partition("?")[2]:
        # What would be quoted as a path or an option is the end of a password.
        raise ConfigurationError(
            f"in a password of '{scheme}://', write / as %2F, ? as %3F, @ as %40 and % as %25"
        )
    authority, _, query = rest.partition("?")
    authority, slash, path = authority.partition("/")
    login, at, hosts = authority.rpartition("@")
    options = _login(scheme, login) if at else {}
    name, _, form = scheme.partition("+")
    if scheme in _UNIX:
        options |= _query(scheme, query)
        return _socket_file(scheme, hosts, unquote(slash + path), options)
    if name not in _TLS or form not in _KINDS:
        raise ConfigurationError(f"unknown store '{scheme}://'; use {_EXAMPLES}")
    kind, tls = _KINDS[form], _TLS[name]
    options |= _query(scheme, query, tls=tls, sentinel=kind == "sentinel")
    service, path = _service(scheme, path) if kind == "sentinel" else ("", path)
    db = _database(scheme, kind, path.strip("/"))
    port = _SENTINEL_PORT if kind == "sentinel" else _PORT
    addresses = tuple([_address(scheme, host, port) for host in (hosts or "localhost").split(",")])
    if kind == "single" and len(addresses) > 1:
        raise ConfigurationError(
            f"'{scheme}://' takes one host; several are a 'redis+cluster://' or 'redis+sentinel://'"
        )
    where = ",".join(show_address(address) for address in addresses)
    return Target(
        kind,
        addresses,
        f"{scheme}://{where}" + (f"/{service}" if service else "") + (f"/{db}" if db else ""),
        {
            "db": db,
            **{key: value for key, value in options.items() if key not in _NO_OPTIONS},
        },
        tls,
        service,
        {
            key.removeprefix("sentinel_"): options[key]
            for key in _SENTINEL_OPTIONS
            if key in options
        },
        options.get(_MAX_CONNECTIONS, MAX_CONNECTIONS),
    )


def show_address(address: Address) -> str:
    """Return an address as one would type it."""
    host, port = address
    if not port:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _login(scheme: str, text: str) -> dict[str, Any]:
    username, colon, password = text.partition(":")
    if not colon:
        # What stands alone is read as a name by some, and meant as a password by most.
        raise ConfigurationError(
            f"'{scheme}://' has a user and no password; write '{scheme}://:password@host' "
            f"or '{scheme}://user:password@host'"
        )
    named = {"username": unquote(username)} if username else {}
    return {**named, "password": unquote(password)}


def _query(scheme: str, query: str, *, tls: bool = False, sentinel: bool = False) -> dict[str, Any]:
    known = (
        _MAX_CONNECTIONS,
        *(_OPTIONS if tls else ()),
        *(_SENTINEL_OPTIONS if sentinel else ()),
    )
    options: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in known:
            raise ConfigurationError(
                f"unknown option {shown(name)} of '{scheme}://'; there are: {', '.join(known)}"
            )
    if _MAX_CONNECTIONS in options:
        text = options[_MAX_CONNECTIONS]
        is_number = text.isascii() and text.isdigit() and len(text) <= 4
        if not is_number or not 1 <= int(text) <= MOST_CONNECTIONS:
            raise ConfigurationError(
                f"max_connections must be a number from 1 to {MOST_CONNECTIONS:,}, "
                f"got {shown(text)}"
            )
        options[_MAX_CONNECTIONS] = int(text)
    if "ssl_check_hostname" in options:
        text = options["ssl_check_hostname"].lower()
        if text not in ("true", "false"):
            raise ConfigurationError(f"ssl_check_hostname must be true or false, got {shown(text)}")
        options["ssl_check_hostname"] = text == "true"
    required = options.get("ssl_cert_reqs", "required")
    if required not in ("required", "optional", "none"):
        raise ConfigurationError(
            f"ssl_cert_reqs must be required, optional or none, got {shown(required)}"
        )
    return options


def _socket_file(scheme: str, hosts: str, path: str, options: dict[str, Any]) -> Target:
    if hosts or not path:
        raise ConfigurationError(
            f"'{scheme}://' takes the path of a socket: '{scheme}:///run/redis.sock'"
        )
    max_connections = options.pop(_MAX_CONNECTIONS, MAX_CONNECTIONS)
    shown_as = f"{scheme}://{path}"
    return Target("single", ((path, 0),), shown_as, options, max_connections=max_connections)


def _service(scheme: str, path: str) -> tuple[str, str]:
    service, _, rest = path.partition("/")
    if not service:
        raise ConfigurationError(
            f"'{scheme}://' needs the name of the service: '{scheme}://host:{_SENTINEL_PORT}/name'"
        )
    return unquote(service), rest


def _database(scheme: str, kind: Kind, text: str) -> int:
    if not text:
        return 0
    if kind == "cluster":
        raise ConfigurationError(f"'{scheme}://' takes no path: a cluster has a single database")
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ConfigurationError(
            f"the database of '{scheme}://' must be a number, got {shown(text)}"
        )
    return int(text)


def _address(scheme: str, text: str, port: int) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        if not parts.hostname or parts.port == 0:
            raise ValueError
        return unquote(parts.hostname), parts.port or port
    except ValueError:
        # Not the text itself: with a mistyped address, a password may be in it.
        raise ConfigurationError(
            f"a host of '{scheme}://' cannot be read; expected 'host' or 'host:port'"
        ) from None
