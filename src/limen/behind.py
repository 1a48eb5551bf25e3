"""Work behind a caller's back: in a thread of its own, for which nobody waits."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import TypeVarTuple

Ts = TypeVarTuple("Ts")


def start(work: Callable[[*Ts], object], *arguments: *Ts) -> None:
    """Have something done, without waiting for it. Raises `RuntimeError` if there is no thread.

    Not by `threading.Thread`, whose `start` waits until the thread has begun. On Python 3.11, what
    is thrown into the caller's thread at that moment, such as a worker's time-out, may hit the new
    one instead: it dies at birth, and the caller would wait for ever. So it has no name, and is
    no daemon that anybody lists; like one, it ends with the process.
    """
    _thread.start_new_thread(work, arguments)
