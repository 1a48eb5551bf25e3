"""Code that threads and asyncio share: a generator, and the two drivers that run it.

A flow calls functions that return a result on threads and an awaitable on asyncio. It yields what
such a call returned, is sent the result, and returns what its caller gets.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")
Flow = Generator[Any, Any, T]


def run(flow: Flow[T]) -> T:
    """Run a flow on threads: its calls returned results, which are sent back to it."""
    result = None
    try:
        while True:
            result = flow.send(result)
    except StopIteration as end:
        returned: T = end.value
        return returned


async def run_async(flow: Flow[T]) -> T:
    """Run a flow on asyncio: its calls returned awaitables, whose results are sent back to it."""
    try:
        call = next(flow)
        while True:
            try:
                result = await call
            except BaseException as error:
                # A cancellation too: the flow may have something to give back.
                call = flow.throw(error)
            else:
                call = flow.send(result)
    except StopIteration as end:
        returned: T = end.value
        return returned
