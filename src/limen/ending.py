"""What is begun is brought to its end, whoever is cancelled meanwhile. For asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_under_way: set[asyncio.Task[Any]] = set()
"""So that they are not forgotten: a loop alone does not hold them."""


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Do something to its end, also when whoever waits for it is cancelled meanwhile.

    Who is cancelled once waits for that; who is cancelled at every turn, as by anyio, does not.
    """
    task = asyncio.create_task(work)
    _under_way.add(task)
    task.add_done_callback(_done)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _done(task: asyncio.Task[Any]) -> None:
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()  # so that asyncio does not complain that nobody has asked
