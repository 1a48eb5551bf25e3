"""`limen serve`: what a user types, and is told at the start. The work is in `limen.server`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from limen.cli import serving

if TYPE_CHECKING:
    from pathlib import Path

    from limen.server.run import Started
    from limen.server.settings import Settings

_QUESTION = '{"attributes": {"path": "/login", "ip": "203.0.113.7"}}'


def serve(  # noqa: PLR0913  # a parameter for each option; they are taken from the context
    context: typer.Context,
    config: serving.Config = None,
    bind: serving.Bind = None,
    grpc_bind: serving.GrpcBind = None,
    store: serving.Store = None,
    rules: serving.Rules = None,
    workers: serving.Workers = None,
    data_dir: serving.DataDir = None,
    namespace: serving.Namespace = None,
    tls_certificate: serving.TlsCertificate = None,
    tls_key: serving.TlsKey = None,
    checks: serving.Checks = None,
    log_level: serving.LogLevel = None,
    log_format: serving.LogFormat = None,
) -> None:
    """Answer for every gateway and every language whether a request may pass.

    With nothing said it counts in memory, keeps rules in SQLite in ./.limen
    and listens on this host alone, with a few rules to begin with:

        limen serve
        curl localhost:8080/v1/check -d '{"attributes": {"path": "/login", "ip": "::1"}}'

    With a store on Redis, any number of workers and hosts share the limits:

        limen serve --store redis://localhost:6379 --workers 4
        limen serve --store redis://cache --rules postgresql://db/limen --bind :8080

    Ctrl-C, or SIGTERM, ends it without losing a request. SIGHUP loads the
    certificate anew, and replaces workers one by one. SIGUSR1 turns the kill
    switch. `limen config show` tells what holds, and from where.
    """
    from limen.server.supervise import parent

    # First of all, because it is told by variables that are no settings.
    worker_of = parent()
    settings = serving.settings_of(context)
    from limen.server.run import run

    code = run(settings, sys.argv[1:], worker_of, lambda started: _tell(settings, started))
    raise typer.Exit(code)


def _tell(settings: Settings, started: Started) -> None:
    """Say where things are. The token itself is for a terminal, and not for a log."""
    from limen import __version__
    from limen.cli import draw

    address, prepared = started.address, started.prepared
    workers = f", {settings.workers} workers" if settings.workers > 1 else ""
    draw.line(f"limen {__version__} serves at {address}{workers}", "bold green")
    rows = [("dashboard", f"{address}/")]
    if settings.checks_are_open and not settings.rules:
        rows += [("try it", f"curl {address}/v1/check -d '{_QUESTION}'")]
    elif not settings.checks_are_open:
        rows += [("decisions", "need a token: limen token create --role check --name NAME")]
    first = " (the starter rules)" if prepared.is_first else ""
    if started.grpc is not None:
        rows.append(("gRPC", f"{started.grpc}, for Envoy's rate limit filter"))
    rows += [
        ("rules", f"{settings.rules_place!r}{first}"),
        ("store", _store(settings)),
        ("API", f"{address}/docs"),
        ("metrics", f"{address}/metrics"),
        ("admin token", _token(prepared.admin_token)),
    ]
    for name, value in rows:
        # As it is: whatever else prints would mask the token, which is meant to be read here.
        print(f"  {name:<12} {value}")
    if not settings.is_loopback and not settings.tls.is_on:
        draw.line(
            "  note         tokens travel unencrypted; add --tls-certificate and --tls-key, or put "
            "a proxy with TLS in front"
        )
    if not settings.is_loopback and settings.checks_are_open:
        draw.line(
            "  note         whoever can connect may use up quotas; --checks token asks who it is"
        )
    sys.stdout.flush()


def _store(settings: Settings) -> str:
    shown = repr(settings.store.url)
    if shown.startswith("memory"):
        return f"{shown} (this process alone; share it by --store redis://...)"
    return shown


def _token(path: Path | None) -> str:
    if path is None:
        return "from the settings"
    if sys.stdout.isatty():
        return f"{path.read_text('utf-8').strip()} (kept in {path})"
    return f"in {path}"
