"""The options and arguments that several commands share, and the settings that options override.

limen.toml and the environment apply to all commands as they apply to `limen serve`. So an option of
a setting has no default here: None means that limen.toml, the environment or the default decides.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from limen.cli.output import print_error
from limen.errors import ConfigurationError

if TYPE_CHECKING:
    from limen.server.settings import Settings

Command = Callable[..., None]
_LOGIN = r"[^\s/:@]+:[^\s/@]+@"
_STORES = ("redis", "rediss", "valkey", "valkeys", "memory")


class SettingOption(NamedTuple):
    """An option that overrides a setting. The default is the text in the help."""

    setting: str
    metavar: str
    default: str
    help: str
    alias: str | None = None


SETTINGS = {
    "config": SettingOption(
        "config", "FILE", "limen.toml, if it exists", "The TOML file with the settings."
    ),
    "bind": SettingOption(
        "bind", "HOST:PORT", "127.0.0.1:8080", "Address of decisions; :8080 is all addresses."
    ),
    "grpc_bind": SettingOption(
        "grpc.bind", "HOST:PORT", "127.0.0.1:8081", "Address of Envoy's service; '' turns it off."
    ),
    "admin_bind": SettingOption(
        "admin.bind",
        "HOST:PORT",
        "127.0.0.1:8082",
        "Address of the dashboard, the admin API and metrics; '' turns them off.",
    ),
    "store": SettingOption(
        "store.url", "URL", "memory://", "The store that counts: redis://host:6379, or memory://."
    ),
    "rules": SettingOption(
        "rules",
        "WHERE",
        "SQLite in the data directory",
        "The rules: sqlite:///FILE, postgresql://..., or a file, which has no versions.",
    ),
    "workers": SettingOption(
        "workers", "N", "1", "The number of processes; more than one needs a store on Redis."
    ),
    "data_dir": SettingOption(
        "data_dir", "DIR", ".limen", "The folder for the files of this host.", alias="--folder"
    ),
    "namespace": SettingOption(
        "namespace", "NAME", "limen", "The prefix of every key in the store."
    ),
    "tls_certificate": SettingOption(
        "tls.certificate", "FILE", "no TLS", "The certificate and its chain, in PEM."
    ),
    "tls_key": SettingOption(
        "tls.key", "FILE", "no TLS", "The private key of the certificate, in PEM."
    ),
    "checks": SettingOption(
        "auth.checks", "WHO", "auto", "Access to /v1: open, token, or auto: open on loopback only."
    ),
    "log_level": SettingOption(
        "log.level", "LEVEL", "info", "The lowest level: debug, info, warning or error."
    ),
    "log_format": SettingOption(
        "log.format", "FORMAT", "auto", "text, json, or auto: text on a terminal."
    ),
}
"""The options of settings, by the names of their parameters: `data_dir` is `--data-dir`."""

Version = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Another version than the active one.")
]
VersionNumber = Annotated[int, typer.Argument(min=1, metavar="VERSION", help="The version.")]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", show_default="stdout", help="The file."),
]
Author = Annotated[
    str | None,
    typer.Option(metavar="NAME", show_default="the login name", help="The author of the change."),
]
Comment = Annotated[str, typer.Option(metavar="TEXT", help="The reason, for the history.")]
Rows = Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="The number of rows.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]


def command_group(help_text: str | None) -> typer.Typer:
    """Return a group of commands that prints its help if it is called without a command."""

    def print_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    return typer.Typer(help=help_text, callback=print_help, invoke_without_command=True)


def with_settings(*names: str) -> Callable[[Command], Command]:
    """Add options of `SETTINGS`, and `--config`, to a command.

    typer finds options in the signature of a command, so they are added there. The command does not
    receive them as arguments: `settings_of` reads them from the context.
    """
    added = [_parameter(name) for name in dict.fromkeys((*names, "config"))]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**arguments: Any) -> None:
            for parameter in added:
                del arguments[parameter.name]
            command(**arguments)

        signature = inspect.signature(command, eval_str=True)
        parameters = [*signature.parameters.values(), *added]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


@cache
def _parameter(name: str) -> inspect.Parameter:
    option = SETTINGS[name]
    flags = [f"--{name.replace('_', '-')}", *([option.alias] if option.alias else [])]
    info = typer.Option(
        *flags, metavar=option.metavar, show_default=option.default, help=option.help
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, info]
    )


def flags_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among the parameters of a command; None if an option was not given."""
    return {SETTINGS[name].setting: value for name, value in parameters.items() if name in SETTINGS}


def settings_of(context: typer.Context) -> Settings:
    """Return the settings of `limen serve` from limen.toml, the environment and the options.

    Every command uses them, and so the same store, rules and data directory as the service. Raises
    `ConfigurationError`.
    """
    from limen.server.settings import load

    return load(flags_of(context.params))


def valid_settings_of(context: typer.Context) -> tuple[Settings, int]:
    """Return the settings without the invalid ones, which are printed on stderr.

    The kill switch has to work with a broken configuration. Also returns the exit code so far: 1 if
    a setting was ignored, because the service may have another store or data directory.
    """
    from limen.server.settings import load_valid

    settings, problems = load_valid(flags_of(context.params))
    for problem in problems:
        print_error(f"limen: ignored: {problem}")
    return settings, 1 if problems else 0


def rules_location_of(context: typer.Context) -> str:
    """Return the file or the database of the rules."""
    return settings_of(context).rules_place.get_secret_value()


def database_of(context: typer.Context) -> str:
    """Return the database of the tokens and the audit, also if the rules are in a file."""
    return settings_of(context).database.get_secret_value()


def refuse_address(text: str, expected: str = "a file") -> None:
    """Raise `ConfigurationError` for an address in the wrong place. The message does not repeat it,
    because it may contain a password.
    """
    scheme, separator, _ = text.partition("://")
    if not separator and (not re.match(_LOGIN, text) or _exists(text)):
        return
    option = "--store" if scheme.partition("+")[0] in _STORES else "--rules"
    raise ConfigurationError(f"that is an address, not {expected}; did you mean {option}?")


def _exists(path: str) -> bool:
    """Return whether a file exists; True as well if its folder cannot be read."""
    try:
        return Path(path).exists()
    except OSError:
        return True


def read_time(text: str) -> datetime:
    """Return a date or a time in UTC; UTC is also the default of its offset.

    Raises `ValueError` or `OverflowError`.
    """
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)


def author_name(option: str | None) -> str:
    """Return the value of `--author`, or the login name."""
    name = login_name() if option is None else option
    if name is None:
        raise ConfigurationError("this user has no login name; add --author NAME")
    return name


def login_name() -> str | None:
    """Return the name of the user; None if the system has none."""
    import getpass

    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return None
