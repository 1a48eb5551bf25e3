"""Every setting of the service: its name, what it takes, its default, and what it means.

The sentence under each field is also its comment in `limen config example` and its row in
docs/settings.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

from msgspec import Struct

from limen.http import HeaderStyle
from limen.model import OnError
from limen.server.settings import kinds
from limen.server.settings.bind import Bind
from limen.server.settings.secret import Secret, SecretAddress

Checks = Literal["auto", "open", "token"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "text", "json"]


class StoreSettings(Struct, frozen=True, kw_only=True):
    """Where counters are kept."""

    url: Annotated[SecretAddress, kinds.STORE_URL] = SecretAddress("memory://")
    """The store that counts: `redis://localhost:6379`. `memory://` is this process alone."""
    deadline: Annotated[float, kinds.seconds()] = 0.05
    """How many seconds a decision waits for the store: `0.05`."""
    on_error: Annotated[OnError, kinds.choice(get_args(OnError))] = "local"
    """Who decides when the store does not answer, unless a rule says otherwise: `local` counts in
    this process, `open` admits, `closed` refuses."""


class TlsSettings(Struct, frozen=True, kw_only=True):
    """HTTPS instead of HTTP. Both files or none."""

    certificate: Annotated[str, kinds.FILE] = ""
    """The file with the certificate and its chain, in PEM: `/etc/limen/tls.crt`. Empty: no TLS."""
    key: Annotated[str, kinds.FILE] = ""
    """The file with the private key of the certificate, in PEM: `/etc/limen/tls.key`."""

    @property
    def is_on(self) -> bool:
        """Whether the service speaks TLS."""
        return bool(self.certificate)


class AuthSettings(Struct, frozen=True, kw_only=True):
    """Who may ask, and who may change."""

    checks: Annotated[Checks, kinds.choice(get_args(Checks))] = "auto"
    """Whether `/v1` needs a token: `open` for no, `token` for yes, `auto` for yes unless `bind` is
    a loopback address."""
    admin_token: Annotated[Secret, kinds.TOKEN] = Secret()
    """A token that may do everything, of at least 16 characters: what `openssl rand -hex 24`
    prints."""
    check_token: Annotated[Secret, kinds.TOKEN] = Secret()
    """A token that may ask for decisions and nothing else, of at least 16 characters: what
    `openssl rand -hex 24` prints."""
    secret: Annotated[Secret, kinds.SIGNING_SECRET] = Secret()
    """What signs receipts, of at least 32 characters and the same on every host: what `openssl rand
    -hex 32` prints. Empty: made once, and kept in `data_dir`."""


class HttpSettings(Struct, frozen=True, kw_only=True):
    """What clients are told, and how much of them is borne."""

    headers: Annotated[tuple[HeaderStyle, ...], kinds.STYLES] = ("draft-11",)
    """The styles of headers that tell a client where it stands, `["draft-11", "x-ratelimit"]`:
    `draft-11`, `x-ratelimit`, `x-ratelimit-delta`. In a variable, with commas."""
    max_body: Annotated[int, kinds.whole(1_024, 2**30)] = 1_048_576
    """The most bytes in the body of a request: `1048576`."""
    max_batch: Annotated[int, kinds.whole(1, 100_000)] = 1_000
    """The most decisions that one request may ask for: `1000`."""
    max_header: Annotated[int, kinds.whole(1_024, 2**20)] = 16_384
    """The most bytes in the first line and the headers of a request: `16384`."""
    read_timeout: Annotated[float, kinds.seconds()] = 10.0
    """How many seconds a request may take from its first byte to its last: `10.0`. Who is slower is
    cut off."""
    keep_alive: Annotated[float, kinds.seconds(may_be_zero=True)] = 75.0
    """How many seconds a connection may be idle: `75.0`. Longer than the proxy in front keeps it.
    """
    drain_timeout: Annotated[float, kinds.seconds(may_be_zero=True)] = 30.0
    """How many seconds requests have to end in when the service stops: `30.0`."""


class LogSettings(Struct, frozen=True, kw_only=True):
    """What is written down."""

    level: Annotated[LogLevel, kinds.choice(get_args(LogLevel))] = "info"
    """The least that is logged: `debug`, `info`, `warning` or `error`."""
    format: Annotated[LogFormat, kinds.choice(get_args(LogFormat))] = "auto"
    """How a line of the log looks: `text`, `json`, or `auto` for text on a terminal and JSON
    elsewhere."""


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of the service. Made by `load`, which validates them."""

    bind: Annotated[Bind, kinds.BIND] = Bind("127.0.0.1", 8080)
    """Where to listen: `127.0.0.1:8080`, `[::1]:8080`, or `:8080` for all addresses."""
    workers: Annotated[int, kinds.whole(1, 64)] = 1
    """How many processes serve: `4`. More than one needs a store on Redis."""
    data_dir: Annotated[Path, kinds.FOLDER] = Path(".limen")
    """The folder for what this host keeps: `/var/lib/limen`."""
    rules: Annotated[SecretAddress, kinds.RULES] = SecretAddress()
    """Where rules live: `sqlite:///rules.db`, `postgresql://user:password@host/database`, or a YAML
    or JSON file. Empty: SQLite in `data_dir`."""
    namespace: Annotated[str, kinds.NAMESPACE] = "limen"
    """What every key in the store begins with: `shop-staging`."""
    store: StoreSettings = StoreSettings()
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can connect."""
        return self.bind.is_loopback

    @property
    def checks_are_open(self) -> bool:
        """Whether `/v1` needs no token."""
        if self.auth.checks == "auto":
            return self.is_loopback
        return self.auth.checks == "open"

    @property
    def rules_place(self) -> SecretAddress:
        """Where rules live: what `rules` says, else SQLite in the data folder."""
        return self.rules or SecretAddress(f"sqlite:///{self.data_dir / 'rules.db'}")
