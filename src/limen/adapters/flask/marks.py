"""`Marks`: which views and blueprints have limits of their own, and which are exempt."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Blueprint

from limen.adapters.limit import RateLimit
from limen.errors import ConfigurationError

_LIMITS, _EXEMPT = "__limen_limits__", "__limen_exempt__"
"""What a view carries. `functools.wraps` takes it along to whatever lies around the view."""


def not_installed() -> ConfigurationError:
    """Return what to raise where limits are met that this application knows nothing of."""
    return ConfigurationError(
        "these limits are not installed in this application; call init_app(app)"
    )


class Mark:
    """What one use of `limit` puts on a view."""

    __slots__ = ("_first", "_limits", "by")

    def __init__(self, by: Marks, limits: tuple[RateLimit, ...], before: Sequence[Mark]) -> None:
        self.by: Marks = by
        self._limits = limits
        self._first = 1 + sum(len(mark._limits) for mark in before)

    def at(self, place: str) -> list[RateLimit]:
        """Give its limits their place: in one and the same, two that are alike would be one."""
        return [
            limit.at(place if number == 1 else f"{place} #{number}")
            for number, limit in enumerate(self._limits, self._first)
        ]


class Marks:
    """The marks of one extension."""

    def __init__(self) -> None:
        self._of_blueprints: dict[Blueprint, list[Mark]] = {}
        self._exempt_blueprints: set[Blueprint] = set()

    def limit(self, target: object, limits: tuple[RateLimit, ...]) -> Mark:
        """Put limits on a view, a class or method of views, or a blueprint."""
        mark = Mark(self, limits, self.of(target))
        if isinstance(target, Blueprint):
            self._of_blueprints[target] = [*self.of(target), mark]
        else:
            # Also on the function that is wrapped then: a route may have it already.
            setattr(target, _LIMITS, (*getattr(target, _LIMITS, ()), mark))
        return mark

    def exempt(self, target: object) -> None:
        """Let only its own limits hold for it."""
        if isinstance(target, Blueprint):
            self._exempt_blueprints.add(target)
        else:
            setattr(target, _EXEMPT, (*getattr(target, _EXEMPT, ()), self))

    def of(self, target: object) -> list[Mark]:
        """Return what was put on it, in the order in which that was done."""
        if isinstance(target, Blueprint):
            return self._of_blueprints.get(target, [])
        found: list[Mark] = list(getattr(target, _LIMITS, ()))
        if any(mark.by is not self for mark in found):
            raise not_installed()
        return found

    def is_exempt(self, target: object) -> bool:
        """Return whether only its own limits hold for it."""
        if isinstance(target, Blueprint):
            return target in self._exempt_blueprints
        return self in getattr(target, _EXEMPT, ())
