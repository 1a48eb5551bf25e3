"""`RateLimit`: what is asked about a request, in the one vocabulary of all adapters. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, Self, get_args

from msgspec import Struct

from limen._internal.functions import is_async, name_of
from limen.adapters.keys import Key, KeyFunction, Missing, key_of
from limen.errors import ConfigurationError, InvalidInput, shown
from limen.limiter.plan import distinct
from limen.model import Check, Concurrency, Limit, OnError, valid_cost

Cost = int | Callable[[Any], Any]
Attributes = Callable[[Any], Any]
When = Callable[[Any], Any]


class RateLimit:
    """Limits on a request: whom they count, what it costs, and when they do not apply.

    ```python
    RateLimit("100/minute", "1000/day")                       # by address
    RateLimit("10/second", Concurrency(5, lease=30), key="user")
    RateLimit("5/minute", deduct_when=lambda response: response.status_code == 401)
    RateLimit()                                               # the rules of an engine or a service
    ```

    Functions get the framework's own request; for asyncio, `key`, `cost`, `attributes` and
    `exempt_when` may be async. Those that come after the response get the framework's own response,
    or a `Response` where it has none.
    """

    def __init__(  # noqa: PLR0913  # it is the value object that many parameters become
        self,
        *limits: str | Limit | Concurrency,
        key: Key | str | tuple[Key | str, ...] | KeyFunction = "ip",
        cost: Cost = 1,
        scope: str | None = None,
        exempt_when: When | None = None,
        deduct_when: When | None = None,
        settle: Callable[[Any], int | Mapping[str, int]] | None = None,
        missing: Missing | None = None,
        on_error: OnError | None = None,
        attributes: Attributes | None = None,
    ) -> None:
        self.limits: tuple[Limit | Concurrency, ...] = _limits(limits)
        """What is allowed; nothing when rules decide."""
        self.key: Key = key_of(key)
        """Whom it counts apart: `"ip"`, a tuple such as `("user", "route")`, or a function."""
        self.cost: Cost = cost if callable(cost) else valid_cost(cost)
        """How many units a request takes, or a function that says so."""
        self.scope: str | None = _scope(scope)
        """What shares one count: everything of the same scope. None is where it stands: each
        endpoint that it is put on; the whole application, for a middleware."""
        self.exempt_when: When | None = _function("exempt_when", exempt_when)
        """Whether a request is not limited at all."""
        self.deduct_when: When | None = _after("deduct_when", deduct_when)
        """Whether a response counts, such as a failed login. Until it is there the request does
        count, so that nobody gets past by asking many times at once."""
        self.settle: Callable[[Any], int | Mapping[str, int]] | None = _after("settle", settle)
        """What a request cost in the end, once its response is sent."""
        self.missing: Missing | None = _missing(missing)
        """What happens to a request without a key: `deny` refuses it with 403, `skip` does not
        limit it, `error` raises `ConfigurationError`. None is the default of the key: `error` for
        `ip` and `route`, which only a wrong set-up lacks, and `deny` for all others."""
        self.on_error: OnError | None = on_error
        """What happens when the store is away; None is the limiter's own setting."""
        self.attributes: Attributes | None = _function("attributes", attributes)
        """More attributes for rules: `lambda request: {"plan": request.user.plan}`."""
        self.has_slots: bool = any(isinstance(limit, Concurrency) for limit in self.limits)
        self.is_corrected: bool = deduct_when is not None or settle is not None
        before = [self.key.function, cost, exempt_when, attributes]
        self.is_async: bool = any(map(is_async, before))
        """Whether one of these functions is async."""
        self.identities: frozenset[str] = frozenset([limit.identity for limit in self.limits])
        self._at: dict[str, Self] = {}
        if attributes is not None and self.limits:
            raise ConfigurationError("attributes are for rules; limits of your own count by key")
        # Whatever is wrong with on_error, it is better said now than with the first request.
        for check in self.item("any", 1).checks:
            check.validated()

    def at(self, place: str | None) -> Self:
        """Return the same limit for one place, which is its scope if it names none itself."""
        if self.scope is not None or place is None:
            return self
        placed = self._at.get(place)
        if placed is None:
            placed = copy(self)
            placed.scope = place
            self._at[place] = placed
        return placed

    def item(self, key: str, cost: int) -> Item:
        """Return what is asked about a request of a key: each limit put on it."""
        text = key if self.scope is None else f"{self.scope} {key}"
        on_error = self.on_error
        checks = [
            # A slot has no cost.
            Check(limit, text, cost if type(limit) is Limit else 1, None, True, on_error)
            for limit in self.limits
        ]
        return Item(self, cost, tuple(checks))

    def counts_with(self, other: RateLimit) -> bool:
        """Return whether another one, at the same place, would count with it. Rules always do."""
        return (
            self.scope == other.scope
            and self.key.label == other.key.label
            and (self.identities == other.identities or bool(self.identities & other.identities))
        )

    def is_like(self, other: RateLimit) -> bool:
        """Return whether another one asks for the same in the same manner."""
        return bool(self.limits) and self._charging == other._charging

    @property
    def _charging(self) -> tuple[object, ...]:
        return (self.limits, self.cost, self.deduct_when, self.settle, self.on_error)

    def __repr__(self) -> str:
        limits = "; ".join(map(str, self.limits)) or "the rules"
        return f"<RateLimit {limits} by {self.key.name}>"


AnyLimit = str | Limit | Concurrency | RateLimit
"""A limit as the arguments of an adapter have it."""


class Item(Struct, frozen=True):
    """What one `RateLimit` asks about one request."""

    limit: RateLimit
    cost: int
    checks: tuple[Check, ...] = ()
    """For limits of one's own."""
    attributes: Mapping[str, str] | None = None
    """For rules."""
    lacks: tuple[str, ...] = ()
    """What the request does not say, and is refused for."""


def rate_limits(limits: Iterable[AnyLimit], **terms: Any) -> tuple[RateLimit, ...]:
    """Return the limits that some arguments name: plain limits are one `RateLimit`.

    `terms` are the keyword arguments of the one for plain limits.
    """
    given = tuple(limits)
    plain = [limit for limit in given if not isinstance(limit, RateLimit)]
    made = (RateLimit(*plain, **terms),) if plain else ()
    return (*made, *[limit for limit in given if isinstance(limit, RateLimit)])


def cost_from(function: Callable[[Any], Any], cost: object) -> int:
    """Return the result of a cost function, or raise `ConfigurationError` with its name."""
    try:
        return valid_cost(cost)
    except InvalidInput as error:
        raise ConfigurationError(f"the cost function {name_of(function)}: {error}") from None


def listed(limits: object) -> tuple[Any, ...]:
    """Return a list of limits, or a single limit, as a tuple."""
    if isinstance(limits, AnyLimit):
        return (limits,)
    if isinstance(limits, Iterable) and not isinstance(limits, set | dict):
        return tuple(limits)
    raise ConfigurationError(
        f'expected a list of limits such as ["100/minute"], got {type(limits).__name__}'
    )


def _limits(limits: tuple[object, ...]) -> tuple[Limit | Concurrency, ...]:
    found: list[Limit | Concurrency] = []
    for limit in limits:
        if isinstance(limit, str):
            found.extend(Limit.parse_all(limit))
        elif isinstance(limit, Limit | Concurrency):
            found.append(limit)
        else:
            raise ConfigurationError(
                "a limit must be text such as '100/minute', a Limit or a Concurrency, "
                f"got {shown(limit)}"
            )
    distinct([Check(limit, "any") for limit in found])
    return tuple(found)


def _scope(scope: object) -> str | None:
    if scope is None or (isinstance(scope, str) and scope and " " not in scope):
        return scope
    raise ConfigurationError(f"scope must be text without blanks, got {shown(scope)}")


def _missing(missing: object) -> Missing | None:
    if missing is None or missing in get_args(Missing):
        return missing  # type: ignore[return-value]  # it is one of them
    raise ConfigurationError(
        f"missing must be {', '.join(get_args(Missing))} or None, got {shown(missing)}"
    )


def _after(name: str, function: Any) -> Any:
    if is_async(function):
        raise ConfigurationError(f"{name} cannot be async: the response waits for it")
    return _function(name, function)


def _function(name: str, function: Any) -> Any:
    if function is None or callable(function):
        return function
    raise ConfigurationError(f"{name} must be a function, got {shown(function)}")
