"""Settings from all sources, or all errors in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from limen.errors import ConfigurationError, did_you_mean, shown
from limen.masking import masked
from limen.server.settings.fields import BY_NAME, FIELDS, GROUPS, PREFIX, unknown
from limen.server.settings.model import Settings
from limen.server.settings.sources import Source, nested, read_environment, read_file, read_flags
from limen.server.settings.webhook_url import valid_webhook

_QUOTED = re.compile(r"'([^']*)'")
DEFAULT = "default"


class Loaded(NamedTuple):
    """Settings, and the source of each."""

    settings: Settings
    sources: dict[str, str]
    """By the name of a setting: `default`, `limen.toml`, `LIMEN_STORE__URL` or `--store`."""


def load(flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings, or raise `ConfigurationError` with a line for each thing that is wrong.

    Flags are by the name of a setting, `{"store.url": "redis://..."}`, and None is one that was not
    given; `config` names the file.
    """
    return read(flags, environ).settings


def read(flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Loaded:
    """Return the settings with the source of each; raise as `load` does."""
    loaded, problems = _gather(flags, environ)
    _raise_if_any(problems)
    _raise_if_any(
        f"{_said(name, loaded.sources)}: {message}"
        for name, message in _contradictions(loaded.settings)
    )
    return loaded


def load_valid(
    flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> tuple[Settings, list[str]]:
    """Return the settings without those that are wrong, and a line for each of these.

    For the kill switch, which must work while limen.toml or the environment has an error. Raises
    `ConfigurationError` for a flag.
    """
    loaded, problems = _gather(flags, environ)
    _raise_if_any(problem for problem in problems if problem.startswith("--"))
    return loaded.settings, [masked(problem) for problem in problems]


def _gather(flags: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Loaded, list[str]]:
    """Return the valid values of all sources, the strongest source first, and all errors."""
    problems: list[str] = []
    values: dict[str, Any] = {}
    labels = dict.fromkeys(BY_NAME, DEFAULT)
    for source in (
        read_file(flags.get("config"), environ, problems),
        read_environment(environ, problems),
        read_flags(flags),
    ):
        # Also reports errors in values that a stronger source replaces.
        invalid = _validate(source, problems)
        for field in FIELDS:
            table = source.values.get(field.group, {}) if field.group else source.values
            if invalid.isdisjoint((field.name, field.group)) and field.key in table:
                values[field.name] = table[field.key]
                labels[field.name] = source.labels[field.name]
    return Loaded(Settings.model_validate(nested(values)), labels), problems


def _validate(source: Source, problems: list[str]) -> set[str]:
    """Add a line for each invalid value of a source; return the names of the settings."""
    try:
        Settings.model_validate(source.values, strict=source.has_types)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        problems += [_problem(details, source) for details in errors]
        return {_name(details) for details in errors}
    return set()


def _name(error: ErrorDetails) -> str:
    """Return the setting, or the table, of an error of pydantic."""
    words = [str(key) if str(key).isidentifier() else f'"{key}"' for key in error["loc"]]
    return ".".join(words[:2] if words[0] in GROUPS else words[:1])


def _problem(error: ErrorDetails, source: Source) -> str:
    """Return an error of pydantic as one line with the source and the setting."""
    name, value = _name(error), error["input"]
    if error["type"] == "extra_forbidden":
        return unknown(name, source.place, (*BY_NAME, *GROUPS))
    if name in GROUPS:
        return f"{source.place}: {name}: expected a table, got a value"
    expectation = error["msg"].partition(", unable to")[0]
    expectation = expectation.replace("Input should", "must").replace("tuple", "list")
    message = f"{_said(name, source.labels)}: {expectation}"
    is_shown = isinstance(value, str | int | float) and not BY_NAME[name].is_secret
    if error["type"] == "configuration" or not is_shown:
        return message
    expected = _QUOTED.findall(error.get("ctx", {}).get("expected", ""))
    return f"{message}, got {shown(value)}{did_you_mean(value, expected)}"


def _raise_if_any(problems: Iterable[str]) -> None:
    lines = [masked(problem) for problem in problems]
    if lines:
        raise ConfigurationError("\n".join(lines))


def _contradictions(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield a setting and a message for each error in settings that are valid by themselves."""
    if settings.workers > 1 and not settings.shared_store:
        yield (
            "workers",
            f"{settings.workers} workers need a store that they share, got 'memory://'; "
            "use --store redis://host:6379, or one worker",
        )
    for (other, taken), (name, bind) in combinations(settings.listeners.items(), 2):
        if bind.overlaps(taken):
            yield name, f"{bind} is already used by {other} = '{taken}'; choose another port"
    tls = {"tls.certificate": settings.tls.certificate, "tls.key": settings.tls.key}
    for name, path in tls.items():
        if path and not os.access(path, os.R_OK):
            yield name, "expected a file that can be read"
        elif path and not all(tls.values()):
            yield name, "TLS needs both tls.certificate and tls.key"
    if settings.alerts.webhook and not settings.alerts.webhook_private:
        try:
            valid_webhook(settings.alerts.webhook.get_secret_value(), private=False)
        except ConfigurationError as error:
            yield "alerts.webhook", f"{error} (alerts.webhook_private = true)"
    log = settings.insight.log
    if log not in ("", "-") and not Path(log).parent.is_dir():
        yield "insight.log", "expected a file in an existing folder"


def _said(name: str, sources: Mapping[str, str]) -> str:
    """Return the beginning of a message about a setting: its source, and its name in a file."""
    source = sources[name]
    return source if source.startswith((PREFIX, "--")) else f"{source}: {name}"
