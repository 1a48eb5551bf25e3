"""From the arguments of a call to a question for the service: validated, and as JSON. Pure.

What the service would refuse is refused here, in the same words as in the library, so that one bad
question hardly ever travels in the company of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from limen.errors import InvalidInput, shown
from limen.limiter.plan import Limits, slot_check
from limen.model import Check, Concurrency, Limit, valid_cost
from limen.wire import MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE, Verdict

_encode = msgspec.json.Encoder().encode

Whom = tuple[tuple[str, str], ...]
"""The attributes of a request, as something to remember it by."""
Actual = int | Mapping[str, int]
"""What something cost in the end: a number, or one for each attribute that rules charge by."""


class Asked(Struct, frozen=True):
    """One question: for the service, and for who stands in for it."""

    body: bytes
    """As JSON."""
    cost: int
    charge: bool = True
    whom: Whom | None = None
    """For the rules; None when the caller brought limits along."""
    checks: tuple[Check, ...] = ()
    """The caller's own limits."""


def by_rules(attributes: Mapping[str, str], cost: int = 1, *, peek: bool = False) -> Asked:
    """Ask the rules about a request. Raises `InvalidInput` for what makes no sense."""
    known = valid_attributes(attributes)
    question: dict[str, Any] = {"attributes": known, "cost": valid_cost(cost)}
    if peek:
        question["peek"] = True
    return Asked(_encode(question), cost, not peek, tuple(sorted(known.items())))


def by_rules_each(requests: Iterable[Mapping[str, str]], cost: int) -> list[Asked]:
    """Ask the rules about several requests. Raises `InvalidInput` with the number of a bad one."""
    if isinstance(requests, str | bytes | Mapping) or not isinstance(requests, Iterable):
        raise InvalidInput(f"expected a list of attributes, got {type(requests).__name__}")
    valid_cost(cost)
    found: list[Asked] = []
    for number, attributes in enumerate(requests):
        try:
            found.append(by_rules(attributes, cost))
        except InvalidInput as error:
            raise InvalidInput(f"[{number}]: {error}") from None
    return found


def by_limits(
    known: Limits,
    key: str | bytes,
    limits: tuple[Limit | str, ...],
    cost: int,
    concurrency: Concurrency | None = None,
) -> Asked:
    """Ask for limits of the caller's own, and for a slot if there is a concurrency.

    Raises `InvalidInput` or `InvalidLimit`.
    """
    slots = () if concurrency is None else (slot_check(concurrency, key),)
    checks = known.checks(limits, key, cost) if limits or not slots else ()
    _valid_own((*slots, *checks))
    question: dict[str, Any] = {"key": (*slots, *checks)[0].key, "cost": valid_cost(cost)}
    if concurrency is not None:
        question["concurrency"] = {"slots": concurrency.slots, "lease": concurrency.lease}
    if checks:
        question["limits"] = [str(check.limit) for check in checks]
    return Asked(_encode(question), cost, checks=(*slots, *checks))


def _valid_own(checks: tuple[Check, ...]) -> None:
    key = checks[0].key
    if len(key) > MAX_VALUE or not _is_unicode(key):
        # Not the key itself: it may be somebody's API key.
        raise InvalidInput(f"a service takes keys of up to {MAX_VALUE:,} characters, in Unicode")
    for check in checks:
        if check.limit.name is not None:
            raise InvalidInput(
                f"a service cannot tell limits apart by name, got {check.limit!r}; put the name "
                "into the key"
            )


def valid_attributes(attributes: object) -> dict[str, str]:
    """Return attributes as plain text, or raise `InvalidInput`. Values are never shown."""
    if not isinstance(attributes, Mapping):
        raise InvalidInput(
            "attributes must be a mapping such as {'user': '42'}, "
            f"got {type(attributes).__name__}"
        )
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidInput(f"at most {MAX_ATTRIBUTES} attributes, got {len(attributes)}")
    found: dict[str, str] = {}
    for name, value in attributes.items():
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
            raise InvalidInput(
                f"the name of an attribute must be text of 1 to {MAX_NAME} characters, "
                f"got {shown(name)}"
            )
        if not isinstance(value, str):
            raise InvalidInput(f"attribute {name!r} must be text, got {type(value).__name__}")
        if len(value) > MAX_VALUE:
            raise InvalidInput(f"attribute {name!r} is longer than {MAX_VALUE:,} characters")
        if not (value.isascii() or _is_unicode(value)) or not _is_unicode(name):
            raise InvalidInput(f"attribute {name!a} is not valid Unicode")
        # The text itself: a subclass may print as something else, as an Enum does.
        found[str.__str__(name)] = str.__str__(value)
    return found


def valid_actual(actual: object) -> Actual:
    """Return the real cost of something, or raise `InvalidInput`."""
    if not isinstance(actual, Mapping):
        return valid_cost(actual, "actual_cost")
    if not 1 <= len(actual) <= MAX_ATTRIBUTES:
        raise InvalidInput(f"expected the cost of 1 to {MAX_ATTRIBUTES} attributes")
    for name in actual:
        if not isinstance(name, str) or not _is_unicode(name):
            raise InvalidInput(f"the name of an attribute must be text, got {shown(name)}")
    return {name: valid_cost(cost, f"the cost {name!r}") for name, cost in actual.items()}


def receipt_of(charged: object) -> str | None:
    """Return the receipt of a verdict, or what is one; None when nothing was charged."""
    if isinstance(charged, Verdict):
        return charged.receipt
    if isinstance(charged, str) and charged:
        return charged
    raise InvalidInput(f"expected a Verdict or its receipt, got a {type(charged).__name__}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
