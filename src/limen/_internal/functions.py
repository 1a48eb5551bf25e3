"""Functions supplied by users: their names in messages, and calls from threads and asyncio."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from limen.errors import ConfigurationError


def name_of(function: Callable[..., Any]) -> str:
    """Return `module.qualname` of a function, a partial or a callable object."""
    named = function if hasattr(function, "__qualname__") else getattr(function, "func", None)
    if named is None or not hasattr(named, "__qualname__"):
        named = type(function)
    return f"{named.__module__}.{named.__qualname__}"


def is_async(function: object) -> bool:
    """Return whether the result of a function or a callable object must be awaited."""
    call = getattr(function, "__call__", None)  # noqa: B004  # an object may be one by its class
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def call_sync(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a thread. Raises `ConfigurationError` if it returns an awaitable."""
    result = function(*arguments)
    if not hasattr(result, "__await__"):
        return result
    if hasattr(result, "close"):
        result.close()  # prevents the warning about a coroutine that was never awaited
    raise ConfigurationError(
        f"{name_of(function)} is async, and this adapter runs in threads, which cannot await"
    )


async def call_async(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on asyncio, and await its result if that is an awaitable."""
    result = function(*arguments)
    return await result if hasattr(result, "__await__") else result
