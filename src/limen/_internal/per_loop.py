"""One value for each event loop, such as its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """The values of all event loops. Those of loops that have ended are dropped."""

    def __init__(
        self,
        make: Callable[[asyncio.AbstractEventLoop], T],
        close: Callable[[T], object],
    ) -> None:
        self._make = make
        self._close = close
        self._values: dict[asyncio.AbstractEventLoop, T] = {}
        self._last: tuple[asyncio.AbstractEventLoop, T] | None = None
        self._of_parent: list[object] = []

    def after_fork(self) -> None:
        """Start without values in the child of a fork.

        Those of the parent are kept unused: the finalizer of a stream would remove its socket from
        the selector of the parent, which both processes share.
        """
        self._of_parent.append(self._values)
        self._values, self._last = {}, None

    def get(self) -> T:
        """Return the value of the running loop."""
        loop, last = asyncio.get_running_loop(), self._last
        if last is not None and last[0] is loop:
            return last[1]
        if loop not in self._values:
            for ended in [each for each in list(self._values) if each.is_closed()]:
                self._values.pop(ended, None)
            self._values[loop] = self._make(loop)
        value = self._values[loop]
        self._last = (loop, value)
        return value

    def values(self) -> list[T]:
        """Return the values of all loops."""
        return list(self._values.values())

    async def close(self) -> None:
        """Close each value in its own loop."""
        here, values = asyncio.get_running_loop(), self._values
        self._values, self._last = {}, None
        for loop, value in values.items():
            if loop is here:
                self._close(value)
                # The loop closes sockets at its next turn; without one they would be left open.
                await asyncio.sleep(0)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(self._close, value)
