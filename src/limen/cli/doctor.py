"""`limen doctor`: the choice of the store, and the report: a line for each finding."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from limen.cli import options, output
from limen.errors import InvalidInput, did_you_mean, shown

if TYPE_CHECKING:
    from rich.console import Console

    from limen.doctor import Finding, Role

_STYLES = {"ok": "green", "skip": "dim", "warn": "yellow", "FAIL": "bold red"}
_CHECK_COLUMN = 6
_FOUND_COLUMN = 19
_NARROWEST = 30


@options.with_settings()
def examine_store(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", show_default=False, help="The address of the store."),
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="library|service",
            show_default="library; without URL, service",
            help="The user of the store: a program, or limen serve.",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="limen; for a service, as for limen serve",
            help="The prefix of the keys of the limiter.",
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="How many processes have a limiter for threads."),
    ] = 1,
    as_json: options.AsJson = False,
) -> None:
    """Look at a store as a limiter would use it, and say what to do.

    Connects, tries the rights, decides on a throw-away key, measures, and
    reads the settings that matter to limits. Leaves no key and no setting.

        limen doctor redis://localhost:6379
        limen doctor rediss://user:password@host:6380/1
        limen doctor redis+sentinel://host:26379,host:26380/service
        limen doctor redis+cluster://host:7000,host:7001 --json
        limen doctor redis://localhost:6379 --for service
        limen doctor                the store in the settings of limen serve

    Rights are those of the library, or with --for service those of
    limen serve, which also shares rules and insight by way of the store.

    The exit code is 0 when nothing failed, 1 when something did, and 2
    for a URL that cannot be read.
    """
    store = _choose_store(context, url, role, namespace)
    if store is None:
        print(context.get_help())
        return
    from limen import doctor

    where, findings = doctor.examine(*store, processes=processes)
    if as_json:
        output.print_json(findings)
    else:
        _print_report(where, findings)
    raise typer.Exit(int(any(finding.status == "FAIL" for finding in findings)))


def _choose_store(
    context: typer.Context, url: str | None, role: str | None, namespace: str | None
) -> tuple[str, str, Role] | None:
    """Return URL, namespace and role; None without a URL, if the settings name no shared store.

    A program does not read limen.toml: the settings apply to the role `service` and to a command
    without a URL.
    """
    from limen.doctor import Role

    roles = get_args(Role)
    if role is not None and role not in roles:
        hint = did_you_mean(role, roles)
        raise InvalidInput(f"--for takes {' or '.join(roles)}, got {shown(role)}{hint}")
    if url is not None and role != "service":
        return url, "limen" if namespace is None else namespace, "library"
    try:
        settings = options.settings_of(context)
    except ImportError:
        if role is not None:
            raise
        return None  # the packages of the service are not installed
    url = url or settings.shared_store
    if url is None:
        return None
    return url, settings.namespace, cast("Role", role or "service")


def _print_report(where: str, findings: Sequence[Finding]) -> None:
    """Print the findings, folded if there is a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    width = max(console.width - _FOUND_COLUMN, _NARROWEST) if console.is_terminal else None
    console.print(Text(f"{where}\n", "bold"), soft_wrap=True)
    for finding in findings:
        first, *more = _folded(finding.found, width)
        line = Text().append(finding.status.ljust(_CHECK_COLUMN), _STYLES[finding.status])
        line.append(finding.check.ljust(_FOUND_COLUMN - _CHECK_COLUMN), "bold").append(first)
        console.print(line, soft_wrap=True)
        _print_indented(console, more)
        if finding.status != "ok":
            advice, *commands = finding.advice.splitlines() or [""]
            style = "dim" if finding.status == "skip" else "cyan"
            _print_indented(console, _folded(advice, width), style)
            # Not folded: if the terminal folds a command, it still copies it as one line.
            _print_indented(console, commands, "bold")
    for finding in findings:
        if finding.status == "ok" and finding.advice:
            console.print(Text(f"\n{finding.advice}"), soft_wrap=True)
    console.print(Text("\n").append(*_summary(findings)), soft_wrap=True)


def _folded(text: str, width: int | None) -> list[str]:
    if not text:
        return []
    return textwrap.wrap(text, width, break_on_hyphens=False) if width else [text]


def _print_indented(console: Console, lines: Sequence[str], style: str = "") -> None:
    from rich.text import Text

    for line in lines:
        console.print(Text(" " * _FOUND_COLUMN).append(line, style), soft_wrap=True)


def _summary(findings: Sequence[Finding]) -> tuple[str, str]:
    """Return the last line, and its style."""
    statuses = [finding.status for finding in findings]
    failures = output.pluralize(statuses.count("FAIL"), "failure")
    warnings = output.pluralize(statuses.count("warn"), "warning")
    if "FAIL" in statuses:
        return f"{failures}, {warnings}", "bold red"
    if "warn" in statuses:
        return f"no failure, {warnings}", "yellow"
    return "all is well", "green"
