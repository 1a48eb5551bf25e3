"""Shows findings to people: a line for each, with a mark, and below it what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from limen.doctor.finding import Finding, Status, counted

_STYLES: dict[Status, str] = {"ok": "green", "skip": "dim", "warn": "yellow", "FAIL": "bold red"}
_CHECK_COLUMN = 6
_FOUND_COLUMN = 19
_NARROWEST = 30


def show(where: str, findings: Sequence[Finding]) -> None:
    """Print the findings, in colour and folded where there is a terminal; else a line is a line."""
    console = Console(highlight=False)
    width = max(console.width - _FOUND_COLUMN, _NARROWEST) if console.is_terminal else None
    _print(console, Text(f"{where}\n", "bold"))
    for finding in findings:
        first, *more = _folded(finding.found, width)
        line = Text().append(finding.status.ljust(_CHECK_COLUMN), _STYLES[finding.status])
        line.append(finding.check.ljust(_FOUND_COLUMN - _CHECK_COLUMN), "bold")
        _print(console, line.append(first))
        for text in more:
            _print(console, _indented(text))
        if finding.status != "ok":
            _show_advice(console, finding, width)
    for finding in findings:
        if finding.status == "ok" and finding.advice:
            # Good to know, and nothing to do: it stays out of the way of what there is to do.
            _print(console, Text(f"\n{finding.advice}"))
    _print(console, Text("\n").append(_summary(findings)))


def _show_advice(console: Console, finding: Finding, width: int | None) -> None:
    prose, *commands = finding.advice.splitlines() or [""]
    for text in _folded(prose, width):
        _print(console, _indented(text, "dim" if finding.status == "skip" else "cyan"))
    for command in commands:
        # Never folded here: a terminal that folds it still copies it as one line.
        _print(console, _indented(command, "bold"))


def _print(console: Console, line: Text) -> None:
    console.print(line, soft_wrap=True)


def _folded(text: str, width: int | None) -> list[str]:
    if not text:
        return []
    return textwrap.wrap(text, width, break_on_hyphens=False) if width else [text]


def _indented(line: str, style: str = "") -> Text:
    return Text(" " * _FOUND_COLUMN).append(line, style)


def _summary(findings: Sequence[Finding]) -> Text:
    statuses = [finding.status for finding in findings]
    failures, warnings = statuses.count("FAIL"), statuses.count("warn")
    if failures:
        return Text(f"{counted(failures, 'failure')}, {counted(warnings, 'warning')}", "bold red")
    if warnings:
        return Text(f"no failure, {counted(warnings, 'warning')}", "yellow")
    return Text("all is well", "green")
