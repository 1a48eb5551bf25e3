"""How many cores this process may keep busy. Linux only; elsewhere, as many as there are.

A container is mostly given a share of the time, and not cores of its own: it sees all of them, and
is stopped when the share is used up.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


def cores(root: Path = _ROOT) -> float:
    """Return how many cores this process may keep busy: by its affinity, and by its cgroups."""
    affinity = getattr(os, "sched_getaffinity", None)
    found: float = len(affinity(0)) if affinity else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # nothing like it here
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            # Version 2 has one tree for all, version 1 one for the CPU.
            if not controllers or "cpu" in controllers.split(","):
                found = min(found, _least(root / "sys/fs/cgroup" / controllers, path))
    return found


def _least(tree: Path, path: str) -> float:
    """Return what a group and those around it leave it. The path may be the host's."""
    own = PurePosixPath(path.lstrip("/"))
    return min([_quota(tree / each) for each in (own, *own.parents)])


def _quota(group: Path) -> float:
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return float("inf") if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        us = int((group / "cpu.cfs_quota_us").read_text())
        return us / int((group / "cpu.cfs_period_us").read_text()) if us > 0 else float("inf")
    return float("inf")
