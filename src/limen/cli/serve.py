"""`limen serve`: the options of the command, and the start message."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from limen.cli import options, output

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from limen.server.process.main import Started
    from limen.server.settings import Settings

_QUESTION = '{"attributes": {"path": "/login", "ip": "203.0.113.7"}}'


@options.with_settings(*options.SETTINGS)
def serve(context: typer.Context) -> None:
    """Run the service, which decides requests for gateways and for programs in any language.

    The defaults: counters in memory, rules in SQLite in ./.limen, a few
    starter rules, and listeners on loopback addresses only:

        limen serve
        curl localhost:8080/v1/check -d '{"attributes": {"path": "/login", "ip": "::1"}}'

    Decisions are at port 8080, gRPC at 8081. The control plane is at 8082:
    the dashboard at http://localhost:8082/, the admin API and /metrics.

    With a store on Redis, any number of workers and hosts share the limits:

        limen serve --store redis://localhost:6379 --workers 4
        limen serve --store redis://cache --rules postgresql://db/limen --bind :8080

    Ctrl-C, or SIGTERM, stops it without losing a request. SIGHUP reloads the
    certificate, and replaces workers one by one. SIGUSR1 turns the kill
    switch. `limen config show` prints the settings and their sources.
    """
    from limen.server.process.supervisor import parent

    # First, because it comes from variables that are not settings.
    worker_of = parent()
    settings = options.settings_of(context)
    from limen.server.process.main import run

    code = run(settings, sys.argv[1:], worker_of, lambda started: _print_start(settings, started))
    raise typer.Exit(code)


def _print_start(settings: Settings, started: Started) -> None:
    """Print the addresses of the service. The token itself goes to a terminal, not to a log."""
    from limen import __version__

    workers = f", {settings.workers} workers" if settings.workers > 1 else ""
    output.print_line(f"limen {__version__} serves at {started.address}{workers}", "bold green")
    for name, value in _rows(settings, started):
        # Not by `output`, which would mask the token.
        print(f"  {name:<12} {value}")
    for note in _notes(settings):
        output.print_line(f"  {'note':<12} {note}")
    sys.stdout.flush()


def _rows(settings: Settings, started: Started) -> list[tuple[str, str]]:
    address, admin, prepared = started.address, started.admin, started.prepared
    rows = []
    if admin is not None:
        rows.append(("dashboard", f"{admin}/"))
    else:
        rows.append(("dashboard", "off, as is the admin API: --admin-bind is empty"))
    if settings.checks_are_open and not settings.rules:
        rows.append(("try it", f"curl {address}/v1/check -d '{_QUESTION}'"))
    elif not settings.checks_are_open:
        rows.append(("decisions", "need a token: limen token create --role check --name NAME"))
    if started.grpc is not None:
        rows.append(("gRPC", f"{started.grpc}, for Envoy's rate limit filter"))
    starter = " (the starter rules)" if prepared.is_first else ""
    rows += [("rules", f"{settings.rules_place}{starter}"), ("store", _store(settings))]
    if admin is not None:
        rows += [("API", f"{admin}/docs"), ("metrics", f"{admin}/metrics")]
    return [*rows, ("admin token", _token(prepared.admin_token))]


def _notes(settings: Settings) -> Iterator[str]:
    is_local = settings.is_loopback and settings.admin_is_loopback
    if not is_local and not settings.tls.is_on:
        yield (
            "tokens travel unencrypted; add --tls-certificate and --tls-key, or put a proxy with "
            "TLS in front"
        )
    if not settings.is_loopback and settings.checks_are_open:
        yield "any client that can connect may use up quotas; --checks token requires a token"


def _store(settings: Settings) -> str:
    shown = str(settings.store.url)
    if shown.startswith("memory"):
        return f"{shown} (this process alone; share it by --store redis://...)"
    return shown


def _token(path: Path | None) -> str:
    if path is None:
        return "from the settings"
    if sys.stdout.isatty():
        return f"{path.read_text('utf-8').strip()} (kept in {path})"
    return f"in {path}"
