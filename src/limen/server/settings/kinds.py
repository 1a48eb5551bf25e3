"""What a setting may be: from what somebody wrote to a value, or to one line of what was expected.

Knows no setting by name. What may be a secret, or an address with one in it, is never repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from limen.connect import parse as parse_store
from limen.errors import ConfigurationError, did_you_mean, shown
from limen.http import AddressSettings, ClientAddresses, HeaderStyle, valid_styles
from limen.keys import MAX_NAMESPACE
from limen.limiter import settings as limiter_settings
from limen.masking import masked
from limen.rules.stores import address as rules_address
from limen.server.insight.destination import valid_webhook
from limen.server.settings.bind import Bind, parse_bind
from limen.server.settings.forwarded import parse_forwarded, parse_header_names
from limen.server.settings.paths import is_address, is_there
from limen.server.settings.secret import HIDDEN, Secret, SecretAddress

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"-?[0-9]{0,9}\.?[0-9]{1,9}")
_NAMESPACE = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAMESPACE}}}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TOKEN = re.compile(r"[!-~]*")
_HALF_SQLITE = re.compile(r"sqlite:(?!//)/*(.*)")
_HALF_ADDRESS = re.compile(r"(sqlite|postgres|postgresql):|.*@")
_LONGEST_WAIT_S = 3600
_SWITCHES = {"true": True, "false": False, "1": True, "0": False, "on": True, "off": False}
_WORDS = {bool: "true or false", int: "a number", float: "a number", list: "a list"}


class Kind(Struct, frozen=True):
    """What a setting takes, and how it is shown."""

    valid: Callable[[Any], Any]
    """Returns the value of what a file said, or raises `ConfigurationError`."""
    of_text: Callable[[str], Any] = str
    """Returns what the text of a variable or a flag would be in a file; what is not understood
    stays text, for `valid` to complain of."""
    shown: Callable[[Any], Any] = lambda value: value
    """Returns what people may see of a value: a text, a number or a list."""
    takes_file: bool = False
    """Whether a variable may name a file that holds the value: for secrets, and what may hold one.
    """


def whole(least: int, most: int) -> Kind:
    """Return the kind of a whole number within bounds."""

    def valid(value: object) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _unfit(f"a whole number from {least} to {most}", value)
        return value

    return Kind(valid, lambda text: int(text) if _WHOLE.fullmatch(text) else text)


def seconds(*, may_be_zero: bool = False) -> Kind:
    """Return the kind of a wait in seconds, below an hour."""
    least = "from 0 to below" if may_be_zero else "above 0 and below"

    def valid(value: object) -> float:
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (0 < value < _LONGEST_WAIT_S or (may_be_zero and value == 0))
        ):
            return float(value)
        raise _unfit(f"seconds {least} {_LONGEST_WAIT_S}", value)

    return Kind(valid, lambda text: float(text) if _NUMBER.fullmatch(text) else text)


def up_to_one(expected: str) -> Kind:
    """Return the kind of a number from 0 to 1: a share of a whole, or a short time in seconds."""

    def valid(value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
        raise _unfit(expected, value)

    return Kind(valid, lambda text: float(text) if _NUMBER.fullmatch(text) else text)


def switch() -> Kind:
    """Return the kind of what is on or off."""

    def valid(value: object) -> bool:
        if not isinstance(value, bool):
            raise _unfit("true or false", value)
        return value

    return Kind(valid, lambda text: _SWITCHES.get(text.lower(), text))


def choice(words: Iterable[str]) -> Kind:
    """Return the kind of one word among several."""
    known = tuple(words)
    expected = f"{', '.join(known[:-1])} or {known[-1]}"

    def valid(value: object) -> str:
        if not isinstance(value, str) or value not in known:
            raise ConfigurationError(f"{_unfit(expected, value)}{did_you_mean(value, known)}")
        return value

    return Kind(valid)


def choices(words: Iterable[str]) -> Kind:
    """Return the kind of a list of words, each among several and given once."""
    one = choice(words)

    def valid(value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple):
            raise _unfit("a list", value)
        found = tuple([one.valid(word) for word in value])
        if len(set(found)) < len(found):
            raise _unfit("each word once", value)
        return found

    return Kind(valid, _words, list)


def secret(least: int, characters: re.Pattern[str] | None = None) -> Kind:
    """Return the kind of a secret of so many characters; an empty one is none."""

    def valid(value: object) -> Secret:
        text = _text(value, "a secret", one_line=False)
        if text and len(text) < least:
            raise ConfigurationError(f"expected at least {least} characters, got fewer")
        if characters is not None and not characters.fullmatch(text):
            raise ConfigurationError(
                "expected letters, digits and signs of ASCII without spaces, got others"
            )
        return Secret(text)

    return Kind(valid, shown=lambda value: HIDDEN if value else "", takes_file=True)


def _unfit(expected: str, value: object) -> ConfigurationError:
    return ConfigurationError(f"expected {expected}, got {masked(shown(value))}")


def _text(value: object, what: str, *, one_line: bool = True) -> str:
    """Return a text, or raise `ConfigurationError` without repeating it."""
    if not isinstance(value, str):
        got = _WORDS.get(type(value), "a table" if isinstance(value, dict) else "a date or time")
        raise ConfigurationError(f"expected {what}, got {got}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"expected {what}, got text that is not UTF-8") from None
    if one_line and _CONTROL.search(value):
        raise ConfigurationError(f"expected {what} on one line, got control characters in it")
    return value


def _path(value: object, what: str) -> str:
    text = _text(value, what)
    if is_address(text):
        raise ConfigurationError(f"expected {what}, got an address")
    if "-----BEGIN" in text:
        raise ConfigurationError(f"expected {what}, got what should be in it")
    return text


def _folder(value: object) -> Path:
    text = _path(value, "the path of a folder")
    if not text.strip():
        raise _unfit("the path of a folder", text)
    return Path(text)


def _namespace(value: object) -> str:
    if not isinstance(value, str) or not _NAMESPACE.fullmatch(value):
        raise _unfit(f"1 to {MAX_NAMESPACE} letters, digits, '.', '_' or '-'", value)
    return value


def _store_url(value: object) -> str:
    url = _text(value, "the address of a store")
    scheme, separator, rest = url.partition("://")
    if scheme != "memory" or not separator:
        parse_store(url)
        return url
    if rest.partition("?")[0].strip("/"):
        raise ConfigurationError(
            "'memory://' takes no host or path; use 'memory://?max_keys=100000'"
        )
    # Only the limiter knows the options of its own store. An empty one costs nothing.
    limiter_settings.open_store(
        limiter_settings.validate(url, "limen", "local", 1, 1.0, (), clock=None)
    )
    return url


def _rules(value: object) -> str:
    text = _text(value, "where rules live")
    if "://" in text:
        rules_address.parse(text)
    elif text and not text.strip():
        raise _unfit("an address or a file", text)
    elif half := _HALF_SQLITE.fullmatch(text) if not is_there(text) else None:
        slash = "/" if text.startswith("sqlite:/") else ""
        raise ConfigurationError(
            f"an address has '://' in it; did you mean 'sqlite:///{slash}{half[1]}'?"
        )
    elif _HALF_ADDRESS.match(text) and not is_there(text):
        # It has no scheme, which is what this says, without repeating what may be a login.
        rules_address.parse(text)
    return text


def _styles(value: object) -> tuple[HeaderStyle, ...]:
    if not isinstance(value, list | tuple):
        raise _unfit("a list of styles", value)
    return valid_styles(value)


def _networks(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise _unfit("a list of networks, such as ['10.0.0.0/8']", value)
    found = tuple(value)
    try:
        ClientAddresses(AddressSettings(trusted_proxies=found, header="x-forwarded-for"))
    except ConfigurationError as error:
        # What else the library would take is no setting here.
        reason = str(error).partition(", or say how many")[0]
        raise ConfigurationError(reason.removeprefix("trusted_proxies ")) from None
    return found


def _ipv6_prefix(value: object) -> int:
    if type(value) is not int or value not in (48, 56, 64, 128):
        raise _unfit("48, 56, 64 or 128", value)
    return value


def _decision_log(value: object) -> str:
    text = _path(value, "the path of a file, or -")
    if text and not text.strip():
        raise _unfit("the path of a file, or -", text)
    return text


def _webhook(value: object) -> str:
    text = _text(value, "the address of a webhook")
    if text:
        valid_webhook(text)
    return text


def _optional_bind(value: object) -> Bind | None:
    return None if value == "" else parse_bind(value)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")] if text.strip() else []


SHARE = up_to_one("a share from 0 to 1, such as 0.5")
LATENCY = up_to_one("seconds from 0 to 1, such as 0.02")
BIND = Kind(parse_bind, shown=str)
OPTIONAL_BIND = Kind(_optional_bind, shown=lambda value: str(value or ""))
NETWORKS = Kind(_networks, _words, list)
FORWARDED = Kind(parse_forwarded, _words, lambda value: [str(each) for each in value])
HEADER_NAMES = Kind(parse_header_names, _words, list)
IPV6_PREFIX = Kind(_ipv6_prefix, lambda text: int(text) if _WHOLE.fullmatch(text) else text)
FOLDER = Kind(_folder, shown=str)
FILE = Kind(lambda value: _path(value, "the path of a file"))
NAMESPACE = Kind(_namespace)
STORE_URL = Kind(lambda value: SecretAddress(_store_url(value)), shown=str, takes_file=True)
RULES = Kind(lambda value: SecretAddress(_rules(value)), shown=str, takes_file=True)
TOKEN = secret(16, _TOKEN)
SIGNING_SECRET = secret(32)
STYLES = Kind(_styles, _words, list)
DECISION_LOG = Kind(_decision_log)
WEBHOOK = Kind(
    lambda value: Secret(_webhook(value)),
    shown=lambda value: HIDDEN if value else "",
    takes_file=True,
)
