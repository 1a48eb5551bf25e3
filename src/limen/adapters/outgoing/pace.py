"""How long a request has to wait, and whether it may: for its server, and for its limits.

Reads no clock and never sleeps: time is an argument. Knows no headers and no HTTP library.
"""

from __future__ import annotations

import math
import threading

from limen import fork
from limen.chance import CHANCE
from limen.errors import LimenError
from limen.model import Decision
from limen.wire import Verdict

MAX_PAUSES = 4_096
"""For how many keys a pause is remembered at once."""
_JITTER = 0.1
"""By which part of a pause some come later than others, so that not all come back at one moment."""
_OVER_S = 1e-6
"""What is left of a pause when it is over: clocks that are set by hand know no less."""
_LONGER = "wait that long, or give the transport a longer wait="


class RateLimited(LimenError):
    """Say that a request was not sent: its time would come later than it may wait.

    `retry_after` is in how many seconds it would be sent, if nobody else comes; None is never. Each
    transport raises one that is an error of its own library too.
    """

    def __init__(self, message: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.retry_after: float | None = retry_after

    def __reduce__(self) -> tuple[type[RateLimited], tuple[str, float | None]]:
        return (type(self), (str(self), self.retry_after))


class Pauses:
    """Until when servers want no more requests, by key. Safe to share between threads.

    A pause only ever gets longer: of two responses the later one may be the older. No server is
    left alone for more than `longest` seconds at a time, whatever it says.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._until: dict[str, float] = {}
        self.after_fork()
        fork.watch(self)

    def after_fork(self) -> None:
        """Make anew what two processes must not share. Not for you to call."""
        self._lock = threading.Lock()

    def begin(self, key: str, seconds: float, now: float) -> None:
        """Send nothing more of a key for some seconds."""
        until = now + min(seconds, self._longest)
        with self._lock:
            if until <= self._until.get(key, -math.inf):
                return
            if key not in self._until and len(self._until) >= MAX_PAUSES:
                self._make_room(now)
            self._until[key] = until

    def left(self, key: str, now: float) -> float:
        """Return for how many seconds nothing of a key is to be sent; 0.0 when it may be."""
        until = self._until.get(key)
        if until is None:
            return 0.0
        left = until - now
        return left if left > _OVER_S else 0.0

    def _make_room(self, now: float) -> None:
        """Forget what is over; when nothing is, the pause that is over first."""
        for key in [key for key, until in self._until.items() if until <= now]:
            del self._until[key]
        if len(self._until) >= MAX_PAUSES:
            del self._until[min(self._until, key=self._until.__getitem__)]


class Turn:
    """One request that wants to be sent, and how long it may wait for that.

    What does not fit into that time is raised as `error` at once, and nobody waits in vain.
    """

    def __init__(
        self, pauses: Pauses, key: str, error: type[RateLimited], wait: float | None, now: float
    ) -> None:
        self._pauses = pauses
        self._key = key
        self._error = error
        self._ends = math.inf if wait is None else now + wait

    def left(self, now: float) -> float | None:
        """Return how many seconds it may still wait; None is without end."""
        return None if self._ends == math.inf else max(self._ends - now, 0.0)

    def is_held(self, now: float) -> bool:
        """Return whether its server wants no more requests for now."""
        return self._pauses.left(self._key, now) > 0

    def pause(self, now: float) -> float:
        """Return how long to sleep for the sake of its server; 0.0 when it may go on."""
        left = self._pauses.left(self._key, now)
        if not left:
            return 0.0
        if now + left > self._ends:
            raise self._error(
                f"not sent: its server wants no more for {left:.6g} s; {_LONGER}", left
            )
        return min(left * (1 + _JITTER * CHANCE.random()), self._ends - now)

    def delay(self, answer: Decision | Verdict, now: float) -> float:
        """Return how long to sleep for the sake of its limits: before it goes, or asks again."""
        seconds = answer.delay if answer.allowed else answer.retry_after
        if seconds is None or now + seconds > self._ends:
            raise self.refusal(answer)
        return seconds

    def refusal(self, answer: Decision | Verdict) -> RateLimited:
        """Return what to raise when its limits have no room for it in time."""
        seconds = answer.delay if answer.allowed else answer.retry_after
        # The key stays out of the message: it may be somebody's API key, and messages get logged.
        over = f"not sent: over the limit of {answer.limit}"
        if answer.source == "closed":
            over = "not sent: nobody can count it, and on_error is 'closed'"
        if seconds is None:
            return self._error(f"{over}: it never fits; lower the cost, or raise the limit", None)
        return self._error(f"{over} for {seconds:.6g} s; {_LONGER}", seconds)
