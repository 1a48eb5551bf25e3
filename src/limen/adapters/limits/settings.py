"""The address and the options of a storage, read into what makes a limiter.

An address of limen stands behind `limen+`, and is read by limen itself. Here is only what the
storage adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args
from urllib.parse import quote, unquote, unquote_plus, urlencode

import limits.errors
from msgspec import Struct

from limen.clock import Clock
from limen.errors import ConfigurationError, StoreError, shown
from limen.limiter import AsyncLimiter, Limiter
from limen.model import Decision, OnError

L = TypeVar("L", Limiter, AsyncLimiter)
OnStoreError = Literal["local", "open", "closed", "raise"]

_SERVERS = ("redis", "rediss", "valkey", "valkeys")
_FORMS = ("", "+cluster", "+sentinel")
SCHEMES: tuple[str, ...] = (
    "limen+memory",
    "limen+unix",
    "limen+redis+unix",
    "limen+valkey+unix",
    *[f"limen+{server}{form}" for server in _SERVERS for form in _FORMS],
)
"""The addresses that are for us, without `://`; for asyncio, `async+` stands in front."""

_INSTEAD = {
    "key_prefix": "namespace",
    "socket_connect_timeout": "deadline",
    "socket_timeout": "deadline",
}
"""What storages of `limits` call something that we have too."""
_LOGIN = ("username", "password")
_WITH_TLS = {"redis": "rediss", "valkey": "valkeys"}


class StorageConfigurationError(ConfigurationError, limits.errors.ConfigurationError):
    """A `ConfigurationError` of limen that handlers for the one of `limits` catch too."""


@contextmanager
def errors_of_limits() -> Iterator[None]:
    """Raise each `ConfigurationError` as a `StorageConfigurationError`."""
    try:
        yield
    except ConfigurationError as error:
        raise StorageConfigurationError(str(error)) from None


class Settings(Struct, frozen=True):
    """What a storage is made with. Each may be given behind `?`, or by keyword; the first wins."""

    store: str
    """Where the states are, as limen writes it: `"redis://localhost:6379"`."""
    namespace: str = "limits"
    """What the keys begin with, apart from those of other limiters of limen."""
    on_error: OnStoreError = "local"
    """Who decides when the store does not answer: `local` counts in this process, `open` lets
    everybody pass, `closed` nobody. With `raise` it is a `StoreError`, which is what the fallbacks
    of Flask-Limiter and slowapi wait for."""
    instances: int = 1
    """Among how many processes a limit is shared while the store is away, for `local`."""
    deadline: float = 0.05
    """Seconds that the store has to answer."""

    def __repr__(self) -> str:
        # Without the address, which may hold a password.
        return f"<Settings of a storage, on_error={self.on_error}>"

    @property
    def stand_in(self) -> OnError:
        """What the limiter does when the store is away."""
        # What it decides is thrown away, so it may as well count nothing.
        return "closed" if self.on_error == "raise" else self.on_error

    @property
    def in_memory(self) -> bool:
        """Whether the states are in this process alone."""
        return self.store.startswith("memory://")

    def open(self, kind: type[L], clock: Clock | None) -> L:
        """Return a limiter with these settings."""
        return kind(
            self.store,
            namespace=self.namespace,
            on_error=self.stand_in,
            instances=self.instances,
            deadline=self.deadline,
            clock=clock,
        )

    def accepted(self, decision: Decision) -> Decision:
        """Return a decision; raise `StoreError` where only the store may decide, and did not."""
        if self.on_error == "raise" and decision.degraded:
            raise StoreError("the store did not answer; the log of limen says why")
        return decision


def read(uri: str, options: Mapping[str, object]) -> Settings:
    """Read an address and what stands beside it, or raise `ConfigurationError`."""
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme.removeprefix("async+") not in SCHEMES:
        # Without the text: it may hold a password.
        raise ConfigurationError(
            "the address of the storage must begin with 'limen+', such as "
            "'limen+memory://' or 'limen+redis://host:6379'"
        )
    rest, _, query = rest.partition("?")
    given, kept = dict(options), []
    for name in _LOGIN:
        if given.get(name) is None:
            given.pop(name, None)  # as `os.environ.get` gives it for a variable that is not set
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        if name in _READERS or name in _INSTEAD:
            given[name] = unquote_plus(value)
        else:
            # The address's own, as it stands: limen says so when it is not.
            kept.append(part)
    for name, ours in _INSTEAD.items():
        if name in given:
            raise ConfigurationError(f"a storage of limen has no option {name!r}; use {ours}")
    chosen = {name: read(given.pop(name)) for name, read in _READERS.items() if name in given}
    scheme = scheme.removeprefix("async+").removeprefix("limen+")
    if scheme.endswith("+sentinel"):
        rest = _for_sentinels(rest, given, kept)
    _refuse_connection_options(scheme, given)
    if given:
        kept.append(urlencode(given))
    address = scheme + separator + rest
    return Settings(f"{address}?{'&'.join(kept)}" if kept else address, **chosen)


def _for_sentinels(rest: str, given: dict[str, object], kept: list[str]) -> str:
    """Return the address behind `://`, with the login for sentinels added to the options `kept`.

    As in `limits`, one login is for sentinels and servers, unless `sentinel_kwargs` has another.
    Removes the options `username`, `password`, `service_name` and `sentinel_kwargs` from `given`.
    """
    authority, slash, path = rest.partition("/")
    in_address, at, hosts = authority.rpartition("@")
    if at and ":" not in in_address:
        return rest  # limen explains what is wrong with it
    pair = zip(_LOGIN, map(unquote, in_address.split(":", 1)), strict=False) if at else ()
    login = {name: value for name, value in pair if value}
    login |= _login(given, "option")
    own = given.pop("sentinel_kwargs", None) or {}
    if not isinstance(own, Mapping) or not set(own) <= set(_LOGIN):
        raise ConfigurationError(
            "sentinel_kwargs takes username and password; sentinels are asked with the deadline "
            "of the servers, and with TLS if the address begins with limen+rediss+sentinel://"
        )
    for_sentinels = {**login, **dict.fromkeys(own), **_login(dict(own), "sentinel_kwargs")}
    if not any(part.startswith("sentinel_") for part in (*kept, *given)):
        kept += [
            f"sentinel_{name}={quote(value, safe='')}"
            for name, value in _named(for_sentinels).items()
        ]
    service = given.pop("service_name", None)
    if service is not None and not path:
        slash, path = "/", quote(str(service), safe="")
    named = [quote(value, safe="") for value in _named(login).values()]
    return (":".join(named) + "@" if named else "") + hosts + slash + path


def _login(given: dict[str, Any], where: str) -> dict[str, str]:
    """Take user name and password out of some options. None and empty text are not given."""
    found = {name: given.pop(name) for name in _LOGIN if name in given}
    for name, value in found.items():
        if value is not None and not isinstance(value, str):
            raise ConfigurationError(f"{where} {name} must be text, got {type(value).__name__}")
    return {name: value for name, value in found.items() if value}


def _named(login: Mapping[str, str | None]) -> dict[str, str]:
    """Return a login with a user name; empty without a password.

    A server that has no password takes any for the user `default`, but refuses one without a name.
    So one password can be given where sentinels or servers have none, as in `limits`.
    """
    password = login.get("password")
    return (
        {"username": login.get("username") or "default", "password": password} if password else {}
    )


def _refuse_connection_options(scheme: str, given: Mapping[str, object]) -> None:
    """Raise `ConfigurationError` for options of redis-py that are part of an address of limen."""
    if scheme == "memory" or "unix" in scheme:
        return
    name, _, form = scheme.partition("+")
    place = "host:26379/service" if form == "sentinel" else "host:6379"
    if "ssl" in given:
        secure = scheme.replace(name, _WITH_TLS.get(name, name), 1)
        raise ConfigurationError(
            f"a storage of limen has no option 'ssl'; for TLS, write limen+{secure}://{place}"
        )
    for option in _LOGIN:
        if option in given:
            raise ConfigurationError(
                f"a storage of limen has no option {option!r}; write it into the address: "
                f"limen+{scheme}://user:password@{place}"
            )


def _on_error(value: object) -> object:
    if value not in get_args(OnStoreError):
        raise ConfigurationError(
            f"on_error must be local, open, closed or raise, got {shown(value)}"
        )
    return value


def _instances(value: object) -> object:
    is_number = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10
    return int(str(value)) if is_number else value


def _deadline(value: object) -> object:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


_READERS: dict[str, Callable[[object], Any]] = {
    "namespace": lambda value: value,
    "on_error": _on_error,
    "instances": _instances,
    "deadline": _deadline,
}
"""Our own options. Whether a value makes sense is for the limiter to say, where it has it too."""
