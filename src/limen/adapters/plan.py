"""From a request and a `RateLimit` to what is asked. Pure, but for the user's own functions.

`item_of` is for threads, `item_of_async` for asyncio: the second awaits what the user's functions
return, and is otherwise the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import structs

from limen.adapters.limit import Item, RateLimit
from limen.adapters.request import Request
from limen.errors import ConfigurationError
from limen.limiter.decorate import name_of
from limen.model import Check, Concurrency, Limit

_logger = logging.getLogger("limen")
_Place = tuple[str, str]
"""Where something is counted: the identity of a limit, and a key."""
_UNKNOWN_CLIENT = (
    "the request has no address to count by; name the proxies that say it, by "
    "addresses=AddressSettings(trusted_proxies=..., header=...), or choose another key"
)


def item_of(limit: RateLimit, request: Request) -> Item | None:
    """Return what to ask; None when the request is not limited."""
    native = request.native
    if limit.exempt_when is not None and limit.exempt_when(native):
        return None
    cost = limit.cost
    if not isinstance(cost, int):
        cost = limit.valid_cost(cost(native))
    if not limit.limits:
        more = limit.attributes(native) if limit.attributes is not None else None
        return Item(limit, cost, attributes=_attributes(limit, request, more))
    key = limit.key
    if key.function is None:
        return _item(limit, cost, request, key.text(request), None)
    try:
        answer = key.function(native)
    except Exception as error:
        return _without_key(limit, cost, request, None, error)
    return _item(limit, cost, request, key.answered(answer), answer)


async def item_of_async(limit: RateLimit, request: Request) -> Item | None:
    """Return the same as `item_of`, where the user's functions may be async."""
    native = request.native
    if limit.exempt_when is not None and await _now(limit.exempt_when(native)):
        return None
    cost = limit.cost
    if not isinstance(cost, int):
        cost = limit.valid_cost(await _now(cost(native)))
    if not limit.limits:
        more = await _now(limit.attributes(native)) if limit.attributes is not None else None
        return Item(limit, cost, attributes=_attributes(limit, request, more))
    key = limit.key
    if key.function is None:
        return _item(limit, cost, request, key.text(request), None)
    try:
        answer = await _now(key.function(native))
    except Exception as error:
        return _without_key(limit, cost, request, None, error)
    return _item(limit, cost, request, key.answered(answer), answer)


def beside(items: list[Item], before: Iterable[Item]) -> list[Item]:
    """Return what is left to ask where some was asked before, so that nothing is charged twice.

    What counts in the same place under the same limits was asked already. Under other limits it
    counts beside: both hold, and each has a count of its own.
    """
    taken: dict[_Place, Limit | Concurrency] = {}
    for item in before:
        taken |= _places(item)
    found: list[Item] = []
    for item in items:
        free = _free(item, taken)
        if free is not None:
            taken |= _places(free)
            found.append(free)
    return found


def joined(items: list[Item]) -> tuple[tuple[Check, ...], tuple[tuple[int, ...], ...]]:
    """Return the checks of all items, and for each item where its own stand."""
    checks: list[Check] = []
    places: list[tuple[int, ...]] = []
    for item in items:
        first = len(checks)
        checks += item.checks
        places.append(tuple(range(first, len(checks))))
    return tuple(checks), tuple(places)


def has_slots(items: list[Item]) -> bool:
    """Return whether a place is to be held until the response is sent."""
    for item in items:  # noqa: SIM110  # asked of every request
        if item.limit.has_slots:
            return True
    return False


def _places(item: Item) -> dict[_Place, Limit | Concurrency]:
    return {(check.limit.identity, check.key): check.limit for check in item.checks}


def _free(item: Item, taken: Mapping[_Place, Limit | Concurrency]) -> Item | None:
    """Return an item in places that nobody has taken; None when it was asked already."""
    found, number = item, 1
    places = _places(item)
    while not places.keys().isdisjoint(taken):
        if all(taken.get(place) == limit for place, limit in places.items()):
            return None
        number += 1
        checks = [structs.replace(check, key=f"{check.key} #{number}") for check in item.checks]
        found = structs.replace(item, checks=tuple(checks))
        places = _places(found)
    return found


async def _now(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


def _item(
    limit: RateLimit, cost: int, request: Request, text: str | None, answer: object
) -> Item | None:
    if text is None:
        return _without_key(limit, cost, request, answer, None)
    return limit.item(text, cost)


def _without_key(
    limit: RateLimit, cost: int, request: Request, answer: object, error: Exception | None
) -> Item | None:
    """Do as the limit says with who cannot be told apart: never count him with all others."""
    key = limit.key.lacking(request)
    missing = limit.missing or key.missing
    why = key.why(answer)
    if error is not None:
        why = f"the key function {key.name} raised {type(error).__name__}"
    if missing == "error":
        if key.name == "ip":
            raise ConfigurationError(_UNKNOWN_CLIENT) from None
        raise ConfigurationError(
            f"{why}; mend it, or say what to do then by missing='skip' or missing='deny'"
        ) from error
    if key.function is not None:
        _logger.warning("%s; the request is %s", why, _DONE[missing], exc_info=error)
    return None if missing == "skip" else Item(limit, cost, lacks=key.per or (key.name,))


_DONE = {"skip": "not limited", "deny": "refused"}


def _attributes(limit: RateLimit, request: Request, more: object) -> Mapping[str, str]:
    found = request.attributes()
    if more is None or limit.attributes is None:
        return found
    name = name_of(limit.attributes)
    if not isinstance(more, Mapping):
        raise ConfigurationError(
            f"the attributes function {name} returned {type(more).__name__}, and not a mapping"
        )
    for attribute, value in more.items():
        if value is None:
            found.pop(attribute, None)
        elif isinstance(value, str):
            found[attribute] = value
        else:
            raise ConfigurationError(
                f"the attributes function {name} returned {type(value).__name__} for "
                f"{attribute!r}, and not text"
            )
    return found
