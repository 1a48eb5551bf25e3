"""Work in the child of a fork."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable


def in_child(work: Callable[[], bool], meanwhile: Callable[[], object] = bool) -> bool:
    """Return what some work comes to in the child of a fork."""
    with warnings.catch_warnings():
        # Python warns of forks beside threads; that they work is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        # A child that waits for a lock for ever does not outlive its test.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        code = 1
        try:
            code = 0 if work() else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    meanwhile()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0
