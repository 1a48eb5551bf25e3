"""`limen doctor URL`: looks at a store as a limiter would use it, and says what to do.

`probe` collects the facts, and is the only part that connects. `judgement` and `checks` turn them
into findings, and `rights` lists the rights that a user needs: these are pure. The library does not
need this package.
"""

from __future__ import annotations

from limen.connect import is_shared, parse
from limen.doctor.checks import Finding
from limen.doctor.rights import Role
from limen.limiter import Limiter

__all__ = ["Finding", "Role", "examine"]


def examine(
    url: str, namespace: str = "limen", role: Role = "library", processes: int = 1
) -> tuple[str, list[Finding]]:
    """Return the address of a store without its password, and the findings.

    `role` is the user whose rights are tried: a limiter, or `limen serve`. `processes` is the
    number of processes with a limiter for threads.

    Raises `ConfigurationError` for an address or a namespace that cannot be read. A store that
    does not answer is a finding.
    """
    # Raises the errors that a limiter raises for the arguments, or for a missing package.
    Limiter(url, namespace=namespace).close()
    if not is_shared(url):
        found = "memory of this process: nothing to connect to, and shared with no other process"
        return url, [Finding("reachable", "ok", found)]
    # These need the client of Redis.
    from limen.doctor.judgement import judge
    from limen.doctor.probe import collect

    target = parse(url)
    return target.shown, judge(collect(target, namespace, role, processes))
