"""From all that was said to one `Settings`, or to all that is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from limen.connect import is_shared
from limen.errors import ConfigurationError, shown
from limen.masking import masked
from limen.rules.stores import address as rules_address
from limen.server.insight.destination import valid_webhook
from limen.server.settings.fields import FIELDS, GROUPS, PREFIX
from limen.server.settings.model import Settings
from limen.server.settings.paths import can_be_read
from limen.server.settings.sources import of_environment, of_file, of_flags

DEFAULT = "default"


class Loaded(Struct, frozen=True):
    """Settings, and who said so."""

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
    """Do as `load` does, and tell where each value came from."""
    gathered = _gather(flags, environ)
    _raise_if_any(gathered.problems + gathered.flag_problems)
    settings = _put_together(gathered.values)
    _raise_if_any(_contradictions(settings, gathered.sources))
    return Loaded(settings, gathered.sources)


def load_valid(
    flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> tuple[Settings, list[str]]:
    """Return the settings without those that are wrong, and a line for each of these.

    For the kill switch, which must work while limen.toml or the environment has an error. Raises
    `ConfigurationError` for a flag.
    """
    gathered = _gather(flags, environ)
    _raise_if_any(gathered.flag_problems)
    return _put_together(gathered.values), [masked(problem) for problem in gathered.problems]


class _Gathered(Struct):
    """The values of all sources; the strongest source wins."""

    values: dict[str, Any]
    sources: dict[str, str]
    problems: list[str] = []
    """Errors in the file and the environment, a line each."""
    flag_problems: list[str] = []


def _gather(flags: Mapping[str, Any], environ: Mapping[str, str]) -> _Gathered:
    values = {field.name: field.default for field in FIELDS}
    found = _Gathered(values, dict.fromkeys(values, DEFAULT))
    others = {name: value for name, value in flags.items() if name != "config"}
    weak, strong = found.problems, found.flag_problems
    # A value that is wrong is told also where a stronger source would hide it.
    for problems, source in (
        (weak, of_file(flags.get("config"), environ, weak, strong)),
        (weak, list(of_environment(environ, weak))),
        (strong, list(of_flags(others, strong))),
    ):
        for given in source:
            try:
                values[given.field.name] = given.field.kind.valid(given.value)
            except ConfigurationError as error:
                problems.append(f"{given.where}: {error}")
            found.sources[given.field.name] = given.source
    return found


def _raise_if_any(problems: Iterable[str]) -> None:
    lines = [masked(problem) for problem in problems]
    if lines:
        raise ConfigurationError("\n".join(lines))


def _put_together(values: Mapping[str, Any]) -> Settings:
    defaults = Settings()
    made: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
    for group in GROUPS:
        inside = {
            name.removeprefix(f"{group}."): value
            for name, value in values.items()
            if name.startswith(f"{group}.")
        }
        made[group] = type(getattr(defaults, group))(**inside)
    return Settings(**made)


def _contradictions(settings: Settings, sources: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with settings that are each valid by themselves."""
    if settings.workers > 1 and not is_shared(settings.store.url.reveal()):
        yield (
            f"{_said('workers', sources)}: {settings.workers} workers need a store that they "
            "share, got 'memory://'; use --store redis://host:6379, or one worker"
        )
    if "://" not in settings.rules.reveal():
        # The database is there also when the rules are in a file.
        try:
            rules_address.parse(f"sqlite:///{settings.data_dir / 'rules.db'}")
        except ConfigurationError as error:
            yield f"{_said('data_dir', sources)}: no place for a database: {error}"
    if settings.grpc.bind == settings.bind and settings.bind.port:
        yield (
            f"{_said('grpc.bind', sources)}: {settings.bind} is where HTTP listens; choose another "
            "port, or '' for no gRPC"
        )
    tls = {"tls.certificate": settings.tls.certificate, "tls.key": settings.tls.key}
    for name, path in tls.items():
        if path and not can_be_read(path):
            yield (f"{_said(name, sources)}: expected a file that can be read, got {shown(path)}")
    missing = [name for name, path in tls.items() if not path]
    if len(missing) == 1:
        [given] = set(tls) - set(missing)
        yield f"{_said(given, sources)}: needs {missing[0]} too; give both or none"
    alerts = settings.alerts
    if alerts.webhook and not alerts.webhook_private:
        try:
            valid_webhook(alerts.webhook.reveal(), private=False)
        except ConfigurationError as error:
            yield f"{_said('alerts.webhook', sources)}: {error} (alerts.webhook_private = true)"
    log = settings.insight.log
    if log not in ("", "-") and not Path(log).parent.is_dir():
        yield (
            f"{_said('insight.log', sources)}: expected a file in a folder that is there, got "
            f"{shown(log)}"
        )


def _said(name: str, sources: Mapping[str, str]) -> str:
    """Return how a message about a setting begins: by who said it."""
    source = sources[name]
    # A variable and a flag tell the setting by themselves; a file does not.
    return source if source.startswith((PREFIX, "--")) else f"{source}: {name}"
