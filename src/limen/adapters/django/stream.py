"""What is to be done when a stream has ended: at its last part, or wherever it is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from django.http.response import HttpResponseBase

from limen._internal import background
from limen.adapters.door import AsyncDoor, Door
from limen.adapters.visit import Visit


def leave_at_the_end(
    door: Door | AsyncDoor, visit: Visit, response: HttpResponseBase
) -> HttpResponseBase:
    """Let a visit end with the stream of a response, or with the response, whichever is first."""
    leaving = _Leaving(door, visit, response)
    stream: Any = response
    close = stream.close

    def close_and_leave() -> None:
        try:
            close()
        finally:
            leaving.now()

    stream.close = close_and_leave
    # A server may send a file by itself, as long as it finds it there.
    if getattr(stream, "file_to_stream", None) is None:
        passed_on = _passed_on_async if stream.is_async else _passed_on
        stream.streaming_content = passed_on(stream.streaming_content, leaving)
    return response


class _Leaving:
    """Leaves once, from any thread."""

    def __init__(self, door: Door | AsyncDoor, visit: Visit, response: HttpResponseBase) -> None:
        self._leave: Callable[[], Any] = partial(door.leave, visit, response)
        self._loop = asyncio.get_running_loop() if isinstance(door, AsyncDoor) else None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    def now(self) -> None:
        """Leave; on asyncio, as soon as its loop goes on."""
        if not self._ends():
            return
        if self._loop is None:
            self._leave()
        else:
            with suppress(RuntimeError):  # the loop is closed, and nobody can be told any more
                self._loop.call_soon_threadsafe(self._start)

    async def before_the_end(self) -> None:
        """Leave before the client learns that the stream has ended."""
        if self._ends():
            left = self._leave()
            # Threads leave at once: on a loop that waits for this one request alone.
            if self._loop is not None:
                await left

    def __del__(self) -> None:
        # A response that got lost on its way out, when its request was cancelled, is never closed.
        if self._loop is not None:
            self.now()
        elif self._ends():
            # Not here: whoever is interrupted by this may hold the very lock that it takes.
            with suppress(RuntimeError):  # no thread to be had: what is held ends with its lease
                background.start(self._leave)

    def _ends(self) -> bool:
        is_first, self._is_over = not self._is_over, True
        return is_first

    def _start(self) -> None:
        self._task = asyncio.ensure_future(self._leave())


def _passed_on(content: Iterator[bytes], leaving: _Leaving) -> Iterator[bytes]:
    try:
        yield from content
    finally:
        leaving.now()


async def _passed_on_async(
    content: AsyncIterator[bytes], leaving: _Leaving
) -> AsyncIterator[bytes]:
    try:
        async for part in content:
            yield part
    finally:
        await leaving.before_the_end()
