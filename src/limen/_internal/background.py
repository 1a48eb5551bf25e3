"""Work in the background, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVarTuple

Ts = TypeVarTuple("Ts")


def start(work: Callable[[*Ts], object], *arguments: *Ts) -> None:
    """Start a daemon thread. Raises `RuntimeError` if the system has no more threads."""
    threading.Thread(target=work, args=arguments, name="limen", daemon=True).start()
