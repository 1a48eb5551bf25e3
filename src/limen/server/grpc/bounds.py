"""What one client may lean on, and what it is told when it leans too hard. Pure.

- More calls at once: RST_STREAM, REFUSED_STREAM. Work for calls that were cancelled counts, too.
- A message that is too long, by what it says itself: RESOURCE_EXHAUSTED.
- More bytes than there is room for: GOAWAY, FLOW_CONTROL_ERROR.
- Headers that are too long, and too many frames that ask for nothing: GOAWAY, ENHANCE_YOUR_CALM.
- A frame or headers that do not come to an end in time: GOAWAY, ENHANCE_YOUR_CALM.
- A call that does not, or an answer that the client gives no room for: RST_STREAM, CANCEL.
- A client that leaves lie what was sent to it: cut off.

`GrpcLimits` says how long and how much, where that is for others to say.
"""

from __future__ import annotations

from limen.server.grpc.frames import Broken, Error

MOST_CALLS = 1_000
"""How many calls run at once."""
MAX_HEADERS = 16_384
"""How many bytes the headers of a call have, packed or not."""
SMALL = 256
"""A frame with less of a message than this asks for nothing, nor does room for less than this."""
LEAST_ROOM = 4 * 2**20
"""How many bytes of messages may lie here that are not whole yet; more where one is longer."""
_MOST_IDLE_FRAMES = 10_000
"""How many frames a client may send that ask for nothing, beyond ten for every one that does."""


class Room:
    """The bytes of messages that are not whole yet, of all calls of a connection."""

    __slots__ = ("_held", "_owed", "most")

    def __init__(self, most: int) -> None:
        self.most: int = most
        """How many there may be: the window of the connection."""
        self._held = self._owed = 0
        """Bytes that lie here, and bytes that the client may send again and does not know of."""

    def hold(self, size: int) -> None:
        """Hold some more. Raises `Broken` when there is no room for them."""
        self._held += size
        if self._held + self._owed > self.most:
            raise Broken(Error.FLOW_CONTROL_ERROR, "more data than was asked for")

    def free(self, size: int) -> int:
        """Hold some no more; return how much more the client is to be told that it may send."""
        self._held -= size
        self._owed += size
        if self._owed <= self.most // 4:
            return 0  # not worth a frame
        told, self._owed = self._owed, 0
        return told


class Calm:
    """The frames that ask for nothing: a client may send some, and more when it asks for more."""

    __slots__ = ("_idle_frames",)

    def __init__(self) -> None:
        self._idle_frames = 0

    def idle(self) -> None:
        """Count a frame that asks for nothing. Raises `Broken` when it is one too many."""
        self._idle_frames += 1
        if self._idle_frames > _MOST_IDLE_FRAMES:
            raise Broken(Error.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def earn(self) -> None:
        """Count what asks for something: a call that was sent whole, or room that was needed."""
        if self._idle_frames > 0:
            self._idle_frames -= 10
