"""How a decorated function finds its key in its own arguments. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from limen._internal.functions import name_of
from limen.errors import ConfigurationError, InvalidInput, shown

KeyFunction = Callable[..., str | bytes]


def key_function(function: Callable[..., Any], key: str | KeyFunction | None) -> KeyFunction:
    """Return what gives the key of a call of `function`.

    A callable is called with the arguments, and its answer is the key as it is. The name of an
    argument counts each of its values apart, for this function alone. None counts all calls of
    this function together.
    """
    if callable(key):
        return key
    scope = name_of(function)
    if key is None:
        return lambda *args, **kwargs: scope
    if not isinstance(key, str):
        raise ConfigurationError(
            f"key must be the name of an argument or a function, got {shown(key)}"
        )
    return _argument(function, key, scope)


def _argument(function: Callable[..., Any], name: str, scope: str) -> KeyFunction:
    parameters = list(inspect.signature(function).parameters.values())
    names = [parameter.name for parameter in parameters]
    if name not in names:
        raise ConfigurationError(f"{scope} has no argument {name!r}; it has: {', '.join(names)}")
    place = names.index(name)
    parameter = parameters[place]
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise ConfigurationError(f"{name!r} of {scope} holds many values; name a single argument")
    by_place = parameter.kind is not parameter.KEYWORD_ONLY
    # Under **kwargs a caller may send anything by the name of a positional-only argument.
    by_name = parameter.kind is not parameter.POSITIONAL_ONLY
    default = parameter.default

    def key_of_call(*args: Any, **kwargs: Any) -> str:
        if by_name and name in kwargs:
            value = kwargs[name]
        elif by_place and place < len(args):
            value = args[place]
        elif default is not parameter.empty:
            value = default
        else:
            raise TypeError(f"{scope}() missing the argument {name!r}")
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise InvalidInput(
                f"the key argument {name!r} of {scope} must be text, bytes or a whole number, "
                f"got {shown(value)}"
            )
        return f"{scope}:{value}"

    return key_of_call
