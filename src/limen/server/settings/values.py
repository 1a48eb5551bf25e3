"""The types of settings: pydantic constraints, and validators for addresses, paths and secrets.

Knows no setting by name. Messages never repeat a text that may be a secret or contain one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, SecretStr
from pydantic_core import PydanticCustomError

from limen.connect import parse as parse_store
from limen.errors import ConfigurationError
from limen.http import AddressSettings, ClientAddresses, HeaderStyle, valid_styles
from limen.limiter import settings as limiter_settings
from limen.rules.stores import address as rules_address
from limen.server.settings.bind import Bind, parse_bind
from limen.server.settings.forwarded import HEADER_NAME, Forwarded, parse_forwarded
from limen.server.settings.secret import Secret, SecretAddress
from limen.server.settings.webhook_url import valid_webhook

# Neither control characters nor the bytes of a variable that are not UTF-8.
_CHARACTER = r"[^\x00-\x1f\x7f\ud800-\udfff]"
_FOLDER = re.compile(rf"(?!\s*$)(?!.*(://|\?)){_CHARACTER}+")
_ADDRESS_WITHOUT_SCHEME = re.compile(r"(sqlite|postgres|postgresql):|.*@|\s+$")


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
