"""The sources of settings: a TOML file, the environment, flags. Reads them and validates nothing.

An unknown variable is a problem here. Secrets, and paths that may be secrets by mistake, are never
repeated.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from limen.errors import ConfigurationError, shown
from limen.server.settings.fields import BY_NAME, FIELDS, PREFIX, Field, unknown
from limen.server.settings.model import Settings

FILE = "limen.toml"
"""The file that is read from the working directory when no file is named."""
CONFIG = "LIMEN_CONFIG"
"""The variable that names the file."""
OTHERS = (CONFIG, "LIMEN_FAULTS", "LIMEN_FIGURES")
"""Variables that are not settings: the first names the file, the others are for the tests."""
_MAX_BYTES = 1_048_576
# Kubernetes sets these in every pod for a service whose name begins with "limen".
_KUBERNETES = re.compile(
    r"LIMEN_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)=.*"
    r"|LIMEN_(\w+_)?PORT=(tcp|udp|sctp)://.*"
)


class _Variables(Settings, BaseSettings):
    """The settings with the names that pydantic-settings gives their variables."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", enable_decoding=False
    )


class Source(NamedTuple):
    """The settings of one source, not validated."""

    place: str
    """`limen.toml`, `the environment` or `the flags`."""
    values: dict[str, Any]
    """By table and key, as the model takes them: `{"store": {"url": "redis://localhost"}}`."""
    labels: Mapping[str, str]
    """The source in `limen config show`, by setting: `limen.toml`, `LIMEN_BIND`, `--bind`."""
    has_types: bool = False
    """Whether numbers are never texts, as in TOML."""


def read_file(flag: object, environ: Mapping[str, str], problems: list[str]) -> Source:
    """Read the file that the flag names, or the variable; else `limen.toml` if there is one."""
    document: dict[str, Any] = {}
    named_by, path = FILE, FILE
    if flag is not None:
        named_by, path = "--config", str(flag)
    elif environ.get(CONFIG):
        named_by, path = CONFIG, environ[CONFIG]
    elif not os.access(FILE, os.F_OK):
        return Source(FILE, {}, {})
    place = path if path.isprintable() else shown(path)
    try:
        document = tomllib.loads(_content(path))
    except ConfigurationError as error:
        problems.append(f"{named_by}: {error}")
    except (ValueError, RecursionError) as error:
        problems.append(f"{place} is not TOML: {error}")
    return Source(place, document, dict.fromkeys(BY_NAME, place), has_types=True)


def read_environment(environ: Mapping[str, str], problems: list[str]) -> Source:
    """Read the variables of settings, and the files that some of them name."""
    texts: dict[str, str] = {}
    labels: dict[str, str] = {}
    for field in FIELDS:
        variable, file_variable = field.variable, field.file_variable or ""
        if variable in environ and file_variable in environ:
            problems.append(f"{variable} and {file_variable} are both set; keep one")
        elif variable in environ:
            texts[field.name], labels[field.name] = environ[variable], variable
        elif file_variable in environ:
            labels[field.name] = file_variable
            try:
                text = _content(environ[file_variable])
                texts[field.name] = text.removesuffix("\n").removesuffix("\r")
            except ConfigurationError as error:
                problems.append(f"{file_variable}: {error}")
    known = {each for field in FIELDS for each in (field.variable, field.file_variable) if each}
    problems += [
        unknown(name, "the environment", known)
        for name in sorted(environ)
        if name.startswith(PREFIX)
        and name not in (*known, *OTHERS)
        and not _KUBERNETES.fullmatch(f"{name}={environ[name]}")
    ]
    return Source("the environment", nested(texts), labels)


def read_flags(flags: Mapping[str, Any]) -> Source:
    """Read flags by the names of their settings; None is a flag that was not given."""
    given = {name: value for name, value in flags.items() if name != "config" and value is not None}
    labels = {name: BY_NAME[name].flag for name in given}
    return Source("the flags", nested(given), labels)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by table and key from values by name."""
    source = EnvSettingsSource(_Variables)
    source.env_vars = {
        BY_NAME[name].variable.lower(): _split(BY_NAME[name], value)
        for name, value in values.items()
    }
    return source()


def _split(field: Field, value: Any) -> Any:
    """Return the words of a list that is a text with commas."""
    if not field.is_list or not isinstance(value, str):
        return value
    return [word.strip() for word in value.split(",")] if value.strip() else []


def _content(path: str) -> str:
    """Return the text of a file. The error does not repeat the path: it may be a secret."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ConfigurationError(f"the file has more than {_MAX_BYTES} bytes")
        return content.decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path, or not UTF-8"
        raise ConfigurationError(f"cannot read the file: {reason}") from None
