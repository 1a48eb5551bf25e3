"""`Finding`: what one check came to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct, structs

from limen.doctor.facts import Node

Status = Literal["ok", "skip", "warn", "FAIL"]
_GRAVITY: tuple[Status, ...] = ("ok", "skip", "warn", "FAIL")

LOOK_AS_ADMIN = "run it once as a user who may run INFO and CONFIG GET"


class Finding(Struct, frozen=True):
    """What one check came to."""

    check: str
    status: Status
    """`skip` is a check that was not permitted to look; it is no failure."""
    found: str
    advice: str = ""
    """What to do. Commands to type stand on lines of their own, after the first."""


def across(nodes: Sequence[Node], judge_one: Callable[[Node], Finding]) -> Finding:
    """Judge every node. The gravest finding speaks for all, and says of whom it is."""
    findings = [judge_one(node) for node in nodes]
    worst = max(findings, key=lambda finding: _GRAVITY.index(finding.status))
    if all(finding.found == worst.found for finding in findings):
        return worst
    same = [finding.status for finding in findings].count(worst.status)
    others = f" (and {same - 1} more like it)" if same > 1 and worst.status != "ok" else ""
    where = nodes[findings.index(worst)].where
    return structs.replace(worst, found=f"{where}: {worst.found}{others}")


def counted(number: int, noun: str) -> str:
    """Return `1 replica`, `2 replicas`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
