"""`limen doctor URL`: looks at a store as a limiter would use it, and says what to do.

`collect` finds the facts, and is the only part that connects. `judgement` turns them into findings,
and `rights` knows what a user must be allowed: both are pure. `report` draws. The library needs
none of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from limen.connect import is_shared, parse
from limen.doctor.finding import Finding
from limen.doctor.judgement import judge
from limen.doctor.report import show
from limen.doctor.rights import Role
from limen.limiter import Limiter

__all__ = ["Finding", "Role", "examine", "has_failed", "show"]


def examine(
    url: str, namespace: str = "limen", role: Role = "library", processes: int = 1
) -> tuple[str, list[Finding]]:
    """Return the address without its password, and what was found there.

    `role` says whose rights are tried: those of a limiter, or those of `limen serve`. `processes`
    is the number of processes with a limiter for threads.

    Raises `ConfigurationError` for an address or a namespace that cannot be read. A store that
    does not answer is a finding.
    """
    _validate(url, namespace)
    if not is_shared(url):
        found = "memory of this process: nothing to connect to, and shared with no other process"
        return url, [Finding("reachable", "ok", found)]
    # Only now: it needs redis-py, and `_validate` has said so if that is missing.
    from limen.doctor.collect import collect

    target = parse(url)
    return target.shown, judge(collect(target, namespace, role, processes))


def has_failed(findings: Sequence[Finding]) -> bool:
    """Return whether a limiter cannot rely on the store."""
    return any(finding.status == "FAIL" for finding in findings)


def _validate(url: str, namespace: str) -> None:
    """Raise `ConfigurationError` for what no limiter would take."""
    Limiter(url, namespace=namespace).close()
