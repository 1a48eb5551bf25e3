"""What has to begin anew in the child of a fork: locks, connections, numbers that must differ."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # see below
import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something of which two processes must not share everything."""

    def after_fork(self) -> None:
        """Make anew what the processes must not share. Called in the child."""
        ...


def watch(what: Forkable) -> None:
    """Have something told of forks, for as long as it lives."""
    _watched.add(what)


def _tell_all() -> None:
    for what in list(_watched):
        what.after_fork()


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    # Who is told may start a thread at once. In the child the order is that of registration, and
    # a thread that waits for a lock which is made anew then waits for ever: so those modules that
    # make locks anew come first.
    os.register_at_fork(after_in_child=_tell_all)
