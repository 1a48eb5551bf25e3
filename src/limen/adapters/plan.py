"""From a request and a `RateLimit` to what is asked. Pure, but for the user's own functions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from limen._internal.functions import name_of
from limen.adapters.keys import Key
from limen.adapters.limit import Attributes, Item, RateLimit, cost_from
from limen.adapters.request import Request
from limen.errors import ConfigurationError
from limen.flow import Flow

_logger = logging.getLogger("limen")
_Place = tuple[str, str]
"""Where something is counted: the identity of a limit, and a key."""
_RULES: _Place = ("rules", "")
_UNKNOWN_CLIENT = (
    "the request has no address to count by, as on a socket in the file system; let the proxy in "
    "front say it, by addresses=AddressSettings(trusted_proxies=('unix',), header='...'), and see "
    "that it always does; or choose another key"
)


def item_of(limit: RateLimit, request: Request, call: Callable[..., Any]) -> Flow[Item | None]:
    """Return what to ask; None when the request is not limited. `call` calls a user's function."""
    native = request.native
    if limit.exempt_when is not None and (yield call(limit.exempt_when, native)):
        return None
    cost = limit.cost
    if not isinstance(cost, int):
        cost = cost_from(cost, (yield call(cost, native)))
    if not limit.limits:
        attributes = request.attributes()
        if limit.attributes is not None:
            _add(attributes, limit.attributes, (yield call(limit.attributes, native)))
        return Item(limit, cost, attributes=attributes)
    key = limit.key
    answer: object = None
    if key.function is None:
        text = key.text(request)
    else:
        try:
            answer = yield call(key.function, native)
        except ConfigurationError:
            raise  # no answer of the function's, but a function that cannot be asked here
        except Exception as error:
            if request.passes(error):
                raise
            return _without_key(limit, cost, request, None, error)
        text = key.answered(answer)
    if text is None:
        return _without_key(limit, cost, request, answer, None)
    return limit.item(text, cost)


def unasked(items: list[Item], store: object, before: Iterable[tuple[object, Item]]) -> list[Item]:
    """Return what is left to ask in a store, where some was asked before: nothing is charged twice.

    The same limits in the same place, and in the same manner, were asked already. Raises
    `ConfigurationError` for others that would share a state with them.
    """
    taken: dict[_Place, Item] = {}
    for where, item in before:
        if where is store:
            taken |= dict.fromkeys(_places(item), item)
    found: list[Item] = []
    for item in items:
        places = _places(item)
        others = [taken[place] for place in places if place in taken]
        if not others:
            taken |= dict.fromkeys(places, item)
            found.append(item)
        elif any(not other.limit.is_like(item.limit) for other in others):
            raise _shared(others[0].limit, item.limit)
    return found


def apart(limits: Sequence[RateLimit]) -> None:
    """Raise `ConfigurationError` where two of some limits, asked together, would share a state."""
    for number, limit in enumerate(limits):
        for other in limits[:number]:
            if other.counts_with(limit) and not other.is_like(limit):
                raise _shared(other, limit)


def _places(item: Item) -> list[_Place]:
    if item.attributes is not None:
        return [_RULES]
    return [(check.limit.identity, check.key) for check in item.checks]


def _shared(first: RateLimit, second: RateLimit) -> ConfigurationError:
    if not second.limits:
        return ConfigurationError(
            "two layers ask the rules about the same request, which would charge it twice; let one "
            "of them do it"
        )
    return ConfigurationError(
        f"{first!r} and {second!r} would share one state; give one of them a scope of its own, or "
        "its limits a name"
    )


def _without_key(
    limit: RateLimit, cost: int, request: Request, answer: object, error: Exception | None
) -> Item | None:
    """Refuse a request without a key, or do not limit it, as `missing` says."""
    key = limit.key.lacking(request)
    missing = limit.missing or key.missing
    why = key.why(answer)
    if error is not None:
        why = f"the key function {key.name} raised {type(error).__name__}"
    if missing == "error":
        if key.name == "ip":
            raise ConfigurationError(_UNKNOWN_CLIENT) from None
        raise ConfigurationError(
            f"{why}; fix it, or set missing='deny' or missing='skip'"
        ) from error
    if key.function is not None and key.is_first_report(why):
        _logger.warning(
            "%s; such requests are %s (missing=%r). This is logged once.",
            why,
            _DONE[missing],
            missing,
            exc_info=error,
        )
    return None if missing == "skip" else Item(limit, cost, lacks=_lacks(key))


def _lacks(key: Key) -> tuple[str, ...]:
    """Return what a client is told that it lacks: not the name of a function, which is ours."""
    return key.per or (("client",) if key.function is not None else (key.name,))


_DONE = {"skip": "not limited", "deny": "refused"}


def _add(found: dict[str, str], function: Attributes, more: object) -> None:
    """Add the attributes that a function returned; None removes one."""
    name = name_of(function)
    if not isinstance(more, Mapping | None):
        raise ConfigurationError(
            f"the attributes function {name} returned {type(more).__name__}, and not a mapping"
        )
    for attribute, value in (more or {}).items():
        if value is None:
            found.pop(attribute, None)
        elif isinstance(value, str):
            found[attribute] = value
        else:
            raise ConfigurationError(
                f"the attributes function {name} returned {type(value).__name__} for "
                f"{attribute!r}, and not text"
            )
