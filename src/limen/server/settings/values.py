"""The types of settings: addresses of listeners, forwarded headers, secrets, and pydantic
validators for these and for texts.

Knows no setting by name. Messages never repeat a text that may be a secret or contain one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, SecretStr
from pydantic_core import PydanticCustomError

from limen.connect import parse as parse_store
from limen.errors import ConfigurationError, shown
from limen.http import AddressSettings, ClientAddresses, HeaderStyle, valid_styles
from limen.limiter import settings as limiter_settings
from limen.masking import masked
from limen.rules.stores import address as rules_address
from limen.server.settings.webhook_url import valid_webhook

_PORT = re.compile(r"[0-9]{1,5}")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_MAX_PORT = 65_535
_ALL_ADDRESSES = ("", "0.0.0.0", "::")
OWN = ("method", "path", "host", "ip", "address")
"""The attributes that every forwarded request has, and that no header may replace."""
_RESERVED = ("x-limen-token", "sec-fetch-site")
HEADER_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}"
_FORM = re.compile(rf"([A-Za-z_][A-Za-z0-9_.-]{{0,63}})=({HEADER_NAME})(?::(.+))?")
_HIDDEN = "***"
# Drivers take a password as an option too: sentinel_password=..., sslpassword=...
_PASSWORD_OPTION = re.compile(r"([?&][^=&]*pass[^=&]*=)[^&]*", re.IGNORECASE)
# Neither control characters nor the bytes of a variable that are not UTF-8.
_CHARACTER = r"[^\x00-\x1f\x7f\ud800-\udfff]"
_FOLDER = re.compile(rf"(?!\s*$)(?!.*(://|\?)){_CHARACTER}+")
_ADDRESS_WITHOUT_SCHEME = re.compile(r"(sqlite|postgres|postgresql):|.*@|\s+$")


class Bind(Struct, frozen=True):
    """Where the service listens."""

    host: str
    """An address or a name, IPv6 without brackets: `"127.0.0.1"`, `"::1"`; empty is all addresses.
    """
    port: int
    """From 1 to 65535: `8080`; 0 is any that is free."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can connect. A name is believed if it is `localhost`."""
        try:
            found = ip_address(self.host)
            # Whether an IPv4 address in the clothes of IPv6 is one, each Python says otherwise.
            return (getattr(found, "ipv4_mapped", None) or found).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    def url(self, *, tls: bool) -> str:
        """Return the URL for a client on this host: `http://localhost:8080` for all addresses."""
        host = "localhost" if self.host in _ALL_ADDRESSES else self.host
        return f"{'https' if tls else 'http'}://{Bind(host, self.port)}"

    def overlaps(self, other: Bind) -> bool:
        """Return whether only one of two listeners can open its socket.

        True for the same port on the same host, or if one of them listens on all addresses. Names
        other than `localhost` are not resolved. Port 0 never overlaps.
        """
        if not self.port or self.port != other.port:
            return False
        hosts = {"127.0.0.1" if bind.host == "localhost" else bind.host for bind in (self, other)}
        return len(hosts) == 1 or not hosts.isdisjoint(_ALL_ADDRESSES)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bind(value: object) -> Bind:
    """Read `host:port`, `[::1]:8080` or `:8080`, or raise `ConfigurationError`."""
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not _PORT.fullmatch(port) or int(port) > _MAX_PORT or not _is_host(host):
        raise ConfigurationError(
            "expected host:port, [::1]:8080, or :8080 for all addresses, "
            f"got {masked(shown(value))}"
        )
    return Bind(host.strip("[]"), int(port))


def _is_host(text: str) -> bool:
    if not text.startswith("["):
        return not text or _NAME.fullmatch(text) is not None
    try:
        return text.endswith("]") and bool(IPv6Address(text[1:-1]).version)
    except ValueError:
        return False


class Forwarded(Struct, frozen=True):
    """One header, and what it tells."""

    attribute: str
    """What rules call it: `"user"`."""
    header: bytes
    """In lower case: `b"x-user-id"`."""
    claim: str | None = None
    """The header holds a JWT, or its payload, and this claim of it is meant; None is all of it."""

    def __str__(self) -> str:
        text = f"{self.attribute}={self.header.decode()}"
        return text if self.claim is None else f"{text}:{self.claim}"


def parse_forwarded(text: object) -> Forwarded:
    """Read `user=X-User-Id` or `plan=X-Jwt-Payload:plan`, or raise `ConfigurationError`."""
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigurationError(
            "expected attribute=Header, such as 'user=X-User-Id', or attribute=Header:claim, "
            f"got {shown(text)}"
        )
    attribute, header, claim = match.groups()
    if header.lower() in _RESERVED:
        raise ConfigurationError(f"{header} is for limen itself, and no attribute of a client")
    if attribute in OWN:
        raise ConfigurationError(f"{attribute!r} is told by the request itself, and by no header")
    return Forwarded(attribute, header.lower().encode(), claim)


class Secret(SecretStr):
    """A text that is shown as `***`; empty is none."""

    def _display(self) -> str:
        return _HIDDEN if self else ""


class SecretAddress(SecretStr):
    """A valid address, or a path, that is shown without its password: `redis://joe:***@host`.

    `limen.masking` has to find addresses in any text. Here the whole text is one, so that all of
    its login can be hidden, and passwords among its options too.
    """

    def _display(self) -> str:
        text = self.get_secret_value()
        scheme, separator, rest = text.partition("://")
        if not separator:
            return text
        login, at, host = rest.rpartition("@")
        user, colon, _ = login.partition(":")
        masked_login = f"{user}:{_HIDDEN}@" if user and colon else f"{_HIDDEN}@"
        host = _PASSWORD_OPTION.sub(rf"\g<1>{_HIDDEN}", host)
        return f"{scheme}://{masked_login if at else ''}{host}"


def _call(function: Callable[[Any], Any], value: object) -> Any:
    """Call a function; report its `ConfigurationError` as an error of pydantic."""
    try:
        return function(value)
    except ConfigurationError as error:
        raise PydanticCustomError("configuration", "{message}", {"message": str(error)}) from None


def _parse(function: Callable[[Any], Any]) -> PlainValidator:
    """Return a validator that replaces any value by the result of a function."""
    return PlainValidator(lambda value: _call(function, value))


def _check(function: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that calls a function with a value, or with the text of a secret."""

    def validate(value: Any) -> Any:
        _call(function, value.get_secret_value() if isinstance(value, SecretStr) else value)
        return value

    return AfterValidator(validate)


def _match(pattern: str, expected: str) -> AfterValidator:
    """Return a validator of texts and secrets. Its message does not repeat the text."""
    compiled = re.compile(pattern)

    def match(text: str) -> None:
        if not compiled.fullmatch(text):
            raise ConfigurationError(f"expected {expected}")

    return _check(match)


def _store_url(url: str) -> None:
    if not url.startswith("memory://"):
        parse_store(url)
        return
    if url.partition("?")[0] != "memory://":
        raise ConfigurationError(
            "'memory://' takes no host or path; use 'memory://?max_keys=100000'"
        )
    # Only the limiter knows the options of its own store. An empty one costs nothing.
    settings = limiter_settings.LimiterSettings(url, "limen", "local", 1, 1.0, (), clock=None)
    limiter_settings.open_store(settings)


def _rules(text: str) -> None:
    is_file = not _ADDRESS_WITHOUT_SCHEME.match(text) or os.access(text, os.F_OK)
    if "://" in text or not is_file:
        rules_address.parse(text)


def _folder(text: object) -> Path:
    if not isinstance(text, str) or not _FOLDER.fullmatch(text):
        raise ConfigurationError("expected the path of a folder, without '?' and '://'")
    return Path(text)


def _networks(networks: tuple[str, ...]) -> None:
    if not networks:
        raise ConfigurationError("expected a list of networks, such as ['10.0.0.0/8'], got none")
    try:
        ClientAddresses(AddressSettings(trusted_proxies=networks, header="x-forwarded-for"))
    except ConfigurationError as error:
        # The other options of the library are not settings of the service.
        reason = str(error).partition(", or say how many")[0]
        raise ConfigurationError(reason.removeprefix("trusted_proxies ")) from None


def _ipv6_prefix(bits: int) -> None:
    ClientAddresses(AddressSettings(ipv6_prefix=bits))


def _each_once(values: tuple[object, ...]) -> None:
    # The name of an attribute is before the "=".
    names = [str(value).partition("=")[0] for value in values]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"{name!r} is given twice")


# Strict validation, as for TOML, takes no list for a tuple.
_as_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
_one_line = _match(f"{_CHARACTER}*", "one line of text")
_header_name = _match(HEADER_NAME, "the name of a header, such as 'User-Agent'")
_path = _match(rf"|(?!\s*$)(?!.*://){_CHARACTER}+", "the path of a file")
_namespace = _match(r"[A-Za-z0-9._-]{1,32}", "1 to 32 letters, digits, '.', '_' or '-'")
_token = _match(r"|[!-~]{16,}", "at least 16 ASCII characters without spaces")
_signing_secret = _match(r"|[^\ud800-\udfff]{32,}", "at least 32 characters")
_optional_bind = _parse(lambda value: None if value == "" else parse_bind(value))

Seconds = Annotated[float, Field(gt=0, lt=3600)]
SecondsOrZero = Annotated[float, Field(ge=0, lt=3600)]
UpToOne = Annotated[float, Field(ge=0, le=1)]
FilePath = Annotated[str, _path]
FolderPath = Annotated[Path, _parse(_folder)]
Namespace = Annotated[str, _namespace]

RequiredBind = Annotated[Bind, _parse(parse_bind)]
OptionalBind = Annotated[Bind | None, _optional_bind]
StoreUrl = Annotated[SecretAddress, _one_line, _check(_store_url)]
RulesAddress = Annotated[SecretAddress, _one_line, _check(_rules)]

Token = Annotated[Secret, _token]
SigningSecret = Annotated[Secret, _signing_secret]
WebhookUrl = Annotated[Secret, _check(lambda text: text and valid_webhook(text))]

IPv6Prefix = Annotated[int, _check(_ipv6_prefix)]
Networks = Annotated[tuple[str, ...], _as_tuple, _check(_networks)]
HeaderStyles = Annotated[tuple[HeaderStyle, ...], _as_tuple, _check(valid_styles)]
HeaderNames = Annotated[tuple[Annotated[str, _header_name], ...], _as_tuple]
Attribute = Annotated[Forwarded, _parse(parse_forwarded)]
Attributes = Annotated[tuple[Attribute, ...], _as_tuple, _check(_each_once)]
PathStep = Literal["parameters", "backslashes"]
PathSteps = Annotated[tuple[PathStep, ...], _as_tuple, _check(_each_once)]
