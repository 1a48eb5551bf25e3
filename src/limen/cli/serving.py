"""The options of `limen serve`, and the settings of every command that takes some of them.

They say nothing about the environment: `limen.server.settings` reads it, and knows which of the
two is stronger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from limen.server.settings import Settings

Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        show_default="limen.toml, if it is there",
        help="A TOML file with the settings of limen serve.",
    ),
]
Bind = Annotated[
    str | None,
    typer.Option(
        "--bind",
        metavar="HOST:PORT",
        show_default="127.0.0.1:8080",
        help="Where to listen; :8080 is all addresses.",
    ),
]
GrpcBind = Annotated[
    str | None,
    typer.Option(
        "--grpc-bind",
        metavar="HOST:PORT",
        show_default="127.0.0.1:8081",
        help="Where Envoy asks by gRPC; '' is nowhere.",
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        show_default="memory://",
        help="The store that counts: redis://host:6379, or memory://.",
    ),
]
Rules = Annotated[
    str | None,
    typer.Option(
        "--rules",
        metavar="WHERE",
        show_default="SQLite in the data folder",
        help="Where rules live: sqlite:///FILE, postgresql://..., or a YAML or JSON file.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        show_default="1",
        help="How many processes serve; more than one needs a store on Redis.",
    ),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        show_default=".limen",
        help="The folder for what this host keeps.",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAME",
        show_default="limen",
        help="What every key in the store begins with.",
    ),
]
TlsCertificate = Annotated[
    str | None,
    typer.Option(
        "--tls-certificate",
        metavar="FILE",
        show_default="no TLS",
        help="The certificate and its chain, in PEM.",
    ),
]
TlsKey = Annotated[
    str | None,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        show_default="no TLS",
        help="The private key of the certificate, in PEM.",
    ),
]
Checks = Annotated[
    str | None,
    typer.Option(
        "--checks",
        metavar="WHO",
        show_default="auto",
        help="Whether /v1 needs a token: open, token, or auto: open on loopback only.",
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        show_default="info",
        help="The least that is logged: debug, info, warning or error.",
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        metavar="FORMAT",
        show_default="auto",
        help="How a line of the log looks: text, json, or auto: text on a terminal.",
    ),
]

SETTINGS: dict[str, str] = {
    "config": "config",
    "bind": "bind",
    "grpc_bind": "grpc.bind",
    "store": "store.url",
    "rules": "rules",
    "workers": "workers",
    "data_dir": "data_dir",
    "namespace": "namespace",
    "tls_certificate": "tls.certificate",
    "tls_key": "tls.key",
    "checks": "auth.checks",
    "log_level": "log.level",
    "log_format": "log.format",
}
"""The parameters of a command that takes these options, and the setting that each is."""


def flags_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a command for `settings.load`, from the `params` of its context.

    Parameters that are no settings are left out; None is one that was not given.
    """
    return {SETTINGS[name]: value for name, value in parameters.items() if name in SETTINGS}


def settings_of(context: typer.Context) -> Settings:
    """Return the settings of `limen serve`, as limen.toml, the environment and the options say.

    Every command that needs a setting takes it from here, so that it means the same store, rules
    and data directory as the service. Raises `ConfigurationError`.
    """
    from limen.server.settings import load

    return load(flags_of(context.params))


def valid_settings_of(context: typer.Context) -> tuple[Settings, int]:
    """Return the same settings, without those that are wrong; print these on stderr.

    For the kill switch, which works whatever else is broken. Also returns the exit code so far: 1
    if a setting was ignored, because processes may then have another store or data directory.
    """
    from limen.cli import draw
    from limen.server.settings import load_valid

    settings, problems = load_valid(flags_of(context.params))
    for problem in problems:
        draw.complain(f"limen: ignored: {problem}")
    return settings, 1 if problems else 0
