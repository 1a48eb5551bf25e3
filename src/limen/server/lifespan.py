"""The start and the end of an app, told to it as ASGI has it. Knows nothing of requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from limen.errors import LimenError

App = Callable[..., Awaitable[None]]
"""An ASGI app (version 3), which speaks the lifespan protocol."""
_logger = logging.getLogger("limen.server")


class NotStarted(Exception):
    """The app did not start: why, for people."""


class Lifespan:
    """The start and the end of an app, told to it as ASGI has it."""

    def __init__(self, app: App) -> None:
        self.state: dict[str, Any] = {}
        self._app = app
        self._events: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._started = asyncio.get_running_loop().create_future()
        self._ended = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live())

    async def start(self) -> None:
        """Start the app. Raises `NotStarted`."""
        self._events.put_nowait({"type": "lifespan.startup"})
        reason = await self._started
        if reason:
            raise NotStarted(reason)

    async def stop(self) -> bool:
        """End the app; say whether it ended well."""
        self._events.put_nowait({"type": "lifespan.shutdown"})
        reason = await self._ended
        if reason:
            _logger.error("the app did not end well: %s", reason)
        return not reason

    async def call_off(self) -> None:
        """End the app in the middle of whatever it does."""
        self._task.cancel()
        await asyncio.wait([self._task], timeout=1.0)

    async def _live(self) -> None:
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self.state,
        }
        reason = ""
        try:
            await self._app(scope, self._events.get, self._hear)
            if not self._started.done():
                reason = "the app ended before it had started"
        except LimenError as error:
            reason = str(error)
        except Exception as error:
            reason = in_a_line(error)
            level = logging.ERROR if self._started.done() else logging.DEBUG
            _logger.log(level, "a mistake in the lifespan of the app", exc_info=error)
        finally:
            # Only who still waits is told.
            _tell(self._started, reason)
            _tell(self._ended, reason)

    async def _hear(self, message: MutableMapping[str, Any]) -> None:
        reason = ""
        if message["type"].endswith(".failed"):
            reason = message.get("message", "") or "the app did not say why"
        _tell(self._started if ".startup." in message["type"] else self._ended, reason)


def _tell(future: asyncio.Future[str], reason: str) -> None:
    if not future.done():
        future.set_result(reason)


def in_a_line(error: Exception) -> str:
    """Return what an error says, for people: its kind and its first line."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
