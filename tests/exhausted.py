"""A system that has no more threads."""

from __future__ import annotations


def no_thread(*_: object) -> None:
    """Fail as `Thread.start` and `background.start` do when the system has no more threads."""
    raise RuntimeError("can't start new thread")
