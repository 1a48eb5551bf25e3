"""Every setting of the service: its name, what it takes, its default, and what it means.

The sentence under each field is also its comment in `limen config example` and its row in
docs/settings.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from limen.connect import is_shared
from limen.http import AddressSettings, ClientAddresses, ProxyHeader
from limen.model import OnError
from limen.server.settings import values
from limen.server.settings.values import Bind, Secret, SecretAddress

Checks = Literal["auto", "open", "token"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "text", "json"]
Keys = Literal["plain", "hashed"]


class SettingsGroup(BaseModel):
    """Immutable settings. The docstring of a field is its description."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True
    )


class StoreSettings(SettingsGroup):
    """Where counters are kept."""

    url: values.StoreUrl = SecretAddress("memory://")
    """The store that counts: `redis://localhost:6379`. `memory://` is this process alone."""
    deadline: values.Seconds = 0.05
    """How many seconds a decision waits for the store: `0.05`."""
    on_error: OnError = "local"
    """Who decides when the store does not answer, unless a rule says otherwise: `local` counts in
    this process, `open` admits, `closed` refuses."""
    min_instances: Annotated[int, Field(ge=1, le=100_000)] = 1
    """The least number of processes among which limits are divided when the store does not answer,
    over all hosts: `8`. More are assumed when more are known."""


class TlsSettings(SettingsGroup):
    """HTTPS instead of HTTP. Both files or none."""

    certificate: values.FilePath = ""
    """The file with the certificate and its chain, in PEM: `/etc/limen/tls.crt`. Empty: no TLS."""
    key: values.FilePath = ""
    """The file with the private key of the certificate, in PEM: `/etc/limen/tls.key`."""

    @property
    def is_on(self) -> bool:
        """Whether the service speaks TLS."""
        return bool(self.certificate)


class AuthSettings(SettingsGroup):
    """Who may ask, and who may change."""

    checks: Checks = "auto"
    """Whether `/v1` needs a token: `open` for no, `token` for yes, `auto` for yes unless `bind` and
    `grpc.bind` are loopback addresses."""
    metrics: Checks = "auto"
    """Whether `/metrics` needs a token, of any role but `check`: `open` for no, `token` for yes,
    `auto` for yes unless `admin.bind` is a loopback address."""
    admin_token: values.Token = Secret("")
    """A token that may do everything, of at least 16 characters: what `openssl rand -hex 24`
    prints."""
    check_token: values.Token = Secret("")
    """A token that may ask for decisions and nothing else, of at least 16 characters: what
    `openssl rand -hex 24` prints."""
    secret: values.SigningSecret = Secret("")
    """What signs receipts, of at least 32 characters and the same on every host: what `openssl rand
    -hex 32` prints. Empty: made once, and kept in `data_dir`."""


class HttpSettings(SettingsGroup):
    """What clients are told, and how much of them is borne."""

    headers: values.HeaderStyles = ("draft-11",)
    """The styles of headers that tell a client where it stands, `["draft-11", "x-ratelimit"]`:
    `draft-11`, `draft-07`, `draft-03`, `x-ratelimit`, `x-ratelimit-delta`. Empty: `Retry-After`
    alone. In a variable, with commas."""
    max_body: Annotated[int, Field(ge=1_024, le=2**30)] = 1_048_576
    """The most bytes in the body of a request: `1048576`."""
    max_batch: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    """The most decisions that one request may ask for: `1000`."""
    max_header: Annotated[int, Field(ge=1_024, le=2**20)] = 16_384
    """The most bytes in the first line and the headers of a request to the data plane: `16384`."""
    read_timeout: values.Seconds = 10.0
    """How many seconds a request to the data plane may take from its first byte to its last:
    `10.0`. A slower client gets 408."""
    keep_alive: values.SecondsOrZero = 75.0
    """How many seconds a connection to the data plane may be idle: `75.0`. Longer than the proxy in
    front keeps it."""
    drain_timeout: values.SecondsOrZero = 30.0
    """How many seconds requests to the data plane have to end in when the service stops: `30.0`."""


class GatewaySettings(SettingsGroup):
    """What gateways forward, and how much of it is believed."""

    deadline: values.Seconds = 0.015
    """How many seconds a gateway's question waits for the store, unless `store.deadline` is
    shorter: `0.015`. Envoy itself waits 20 ms."""
    attributes: values.Attributes = ()
    """Which headers become which attributes, for `/v1/auth`: `["user=X-User-Id"]`;
    `"plan=X-Jwt-Payload:plan"` takes one claim. The gateway must write or remove each of them. In a
    variable, with commas."""
    list_headers: values.HeaderNames = ("Accept-Language", "Referer", "User-Agent")
    """Headers in `gateway.attributes` whose values may contain commas: `["User-Agent"]`. Any other
    header in `gateway.attributes` that is repeated or contains a comma is refused. In a variable,
    with commas."""
    normalize_path: values.PathSteps = ("parameters", "backslashes")
    """Steps that `/v1/auth` takes with each path, besides decoding it and resolving dot segments:
    `parameters` removes `;...` from each segment, `backslashes` makes a slash of each backslash:
    `["parameters", "backslashes"]`. Empty: neither. In a variable, with commas."""
    trusted_proxies: values.Networks = ("127.0.0.0/8", "::1")
    """Who may forward requests to `/v1/auth`: the networks of the gateways, and of the proxies in
    front of them: `["10.0.0.5"]`. The dashboard counts failed sign-ins by the client address that
    they report. In a variable, with commas."""
    address_header: ProxyHeader = "x-forwarded-for"
    """The header in which the gateway says who the client is: `x-forwarded-for`, `forwarded`,
    `x-real-ip`, `cf-connecting-ip` or `true-client-ip`."""
    ipv6_prefix: values.IPv6Prefix = 64
    """How many bits of an IPv6 address are one client: 48, 56, `64` or 128."""

    def client_addresses(self) -> ClientAddresses:
        """Return the resolver of client addresses behind the trusted proxies."""
        settings = AddressSettings(
            trusted_proxies=self.trusted_proxies,
            header=self.address_header,
            ipv6_prefix=self.ipv6_prefix,
        )
        return ClientAddresses(settings)


class GrpcSettings(SettingsGroup):
    """The rate limit service that Envoy asks."""

    bind: values.OptionalBind = Bind("127.0.0.1", 8081)
    """Where to listen for gRPC: `127.0.0.1:8081`, or `:8081` for all addresses. Empty: no gRPC."""
    max_connection_age: values.Seconds = 1_800.0
    """After how many seconds a client is asked to connect anew, so that load spreads: `1800.0`."""


class AdminSettings(SettingsGroup):
    """The control plane: admin API, dashboard and metrics."""

    bind: values.OptionalBind = Bind("127.0.0.1", 8082)
    """The address of the control plane, which serves the admin API, the dashboard and `/metrics`:
    `127.0.0.1:8082`, or `:8082` for all addresses. Empty: no control plane."""


class InsightSettings(SettingsGroup):
    """What is kept of decisions, to show who is refused, and why."""

    enabled: bool = True
    """Whether keys are kept for a while: who comes most often, who was refused. `false` counts and
    keeps no key."""
    keys: Keys = "plain"
    """How keys are shown to viewers: `plain`, or `hashed`, which tells two apart and names none."""
    sample: values.UpToOne = 0.01
    """Which share of the requests that pass is kept among recent decisions, and logged: `0.01`. Of
    those that are refused all are, up to 100 a second."""
    log: values.FilePath = ""
    """The file to which recent decisions are appended as lines of JSON:
    `/var/log/limen/decisions.jsonl`, or `-` for standard output. Empty: they are not logged."""
    log_keys: Keys = "hashed"
    """How keys are written in that file: `hashed`, or `plain` where `insight.keys` is so too."""


class AlertSettings(SettingsGroup):
    """When somebody should look. Judged each second by the last 5 to 10; 0 turns one off."""

    refusal_share: values.UpToOne = 0.5
    """Above which share of its requests that a rule refuses there is an alert: `0.5`."""
    key_share: values.UpToOne = 0.5
    """Above which share of a rule's requests that come from one key there is an alert: `0.5`."""
    fallback_share: values.UpToOne = 0.05
    """Above which share of requests that are decided without the store there is an alert: `0.05`.
    """
    store_latency: values.UpToOne = 0.02
    """Above how many seconds for the slowest hundredth of the store's answers there is an alert:
    `0.02`."""
    least: Annotated[int, Field(ge=1, le=10**9)] = 100
    """How many requests there must be in these seconds for a share to mean anything: `100`."""
    webhook: values.WebhookUrl = Secret("")
    """The address that is told of alerts by POST: `https://chat.example.com/hooks/limen`. Empty:
    the log and the admin API alone."""
    webhook_secret: values.Token = Secret("")
    """What signs these messages, of at least 16 characters: what `openssl rand -hex 24` prints."""
    webhook_private: bool = False
    """Whether that address may be of a private network, or of this host: `false`."""


class LogSettings(SettingsGroup):
    """What is written down."""

    level: LogLevel = "info"
    """The least that is logged: `debug`, `info`, `warning` or `error`."""
    format: LogFormat = "auto"
    """How a line of the log looks: `text`, `json`, or `auto` for text on a terminal and JSON
    elsewhere."""


class Settings(SettingsGroup):
    """The settings of the service. Made by `load`, which validates them."""

    bind: values.RequiredBind = Bind("127.0.0.1", 8080)
    """The address of the data plane, which serves decisions: `127.0.0.1:8080`, `[::1]:8080`, or
    `:8080` for all addresses."""
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """How many processes serve: `4`. More than one needs a store on Redis."""
    data_dir: values.FolderPath = Path(".limen")
    """The folder for what this host keeps: `/var/lib/limen`."""
    rules: values.RulesAddress = SecretAddress("")
    """Where rules live: `sqlite:///rules.db`, `postgresql://user:password@host/database`, or a YAML
    or JSON file. Empty: SQLite in `data_dir`."""
    namespace: values.Namespace = "limen"
    """What every key in the store begins with: `shop-staging`."""
    store: StoreSettings = StoreSettings()
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    http: HttpSettings = HttpSettings()
    gateway: GatewaySettings = GatewaySettings()
    grpc: GrpcSettings = GrpcSettings()
    admin: AdminSettings = AdminSettings()
    log: LogSettings = LogSettings()
    insight: InsightSettings = InsightSettings()
    alerts: AlertSettings = AlertSettings()

    @property
    def listeners(self) -> dict[str, Bind]:
        """The addresses of the listeners that are on, by the names of their settings."""
        each = {"bind": self.bind, "grpc.bind": self.grpc.bind, "admin.bind": self.admin.bind}
        return {name: place for name, place in each.items() if place is not None}

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can ask for decisions, over HTTP and gRPC."""
        return self.bind.is_loopback and (self.grpc.bind is None or self.grpc.bind.is_loopback)

    @property
    def admin_is_loopback(self) -> bool:
        """Whether only this host can reach the control plane. True when it is off."""
        return self.admin.bind is None or self.admin.bind.is_loopback

    @property
    def data_plane_url(self) -> str:
        """The URL of the data plane for a client on this host. Behind a proxy it differs."""
        return self.bind.url(tls=self.tls.is_on)

    @property
    def gateway_deadline(self) -> float:
        """How many seconds a gateway's question waits for the store."""
        return min(self.gateway.deadline, self.store.deadline)

    @property
    def checks_are_open(self) -> bool:
        """Whether `/v1` needs no token."""
        if self.auth.checks == "auto":
            return self.is_loopback
        return self.auth.checks == "open"

    @property
    def metrics_are_open(self) -> bool:
        """Whether `/metrics` needs no token."""
        if self.auth.metrics == "auto":
            return self.admin_is_loopback
        return self.auth.metrics == "open"

    @property
    def rules_place(self) -> SecretAddress:
        """Where rules live: what `rules` says, else SQLite in the data folder."""
        return self.rules or self.database

    @property
    def database(self) -> SecretAddress:
        """The database of tokens and of the audit; and of the rules, unless they are in a file."""
        if "://" in self.rules.get_secret_value():
            return self.rules
        return SecretAddress(f"sqlite:///{self.data_dir / 'rules.db'}")

    @property
    def shared_store(self) -> str | None:
        """The address of the store, with its password; None for `memory://`."""
        url = self.store.url.get_secret_value()
        return url if is_shared(url) else None
