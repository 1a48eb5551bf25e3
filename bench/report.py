"""What the tables look like, what machine they were made on, and how they get into README.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.harness import BenchError
from bench.libraries import LIMEN, PEERS

BEGIN = "<!-- bench:begin -->"
END = "<!-- bench:end -->"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as GitHub shows it: the first column is text, numbers stand right."""
    marks = ["---" if not _numeric(rows, column) else "--:" for column in range(len(head))]
    lines = [head, marks, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _numeric(rows: Sequence[Sequence[str]], column: int) -> bool:
    return bool(rows) and all(
        row[column].lstrip("*-")[:1].isdigit() or not row[column] for row in rows
    )


def machine() -> str:
    """Return one line that says where and with what the figures were made, and when."""
    packages = ", ".join(f"{name} {_version(name)}" for name in (LIMEN, *PEERS))
    return (
        f"{_cpu()}, {os.cpu_count()} cores; {_system()}; "
        f"{platform.python_implementation()} {platform.python_version()}; {packages}; "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        raise BenchError(f"{name} is not installed; run: make bench") from None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform(terse=True)
    return f"{name}, {platform.system()} {platform.release()}"


def read_marked(path: Path) -> tuple[str, str]:
    """Return what of a file stands before and after the tables, markers included."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}") from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"{path} needs a line {BEGIN} and, below it, a line {END}")
    return before + begin, end + after


def write_marked(path: Path, tables: str) -> None:
    """Put the tables between the two markers of a file, in place of what was there."""
    before, after = read_marked(path)
    path.write_text(f"{before}\n{tables}\n{after}", encoding="utf-8")
