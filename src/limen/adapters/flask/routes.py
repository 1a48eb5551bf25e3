"""Which limits hold for the requests of a route: those of all that it lies in. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from flask import Blueprint, Flask, Request
from msgspec import Struct
from werkzeug.routing import Rule

from limen.adapters.limit import RateLimit
from limen.errors import ConfigurationError

_LIMITS, _EXEMPT = "__limen_limits__", "__limen_exempt__"
"""What a view or a blueprint carries. `functools.wraps` takes it along to whatever lies around a
view."""


def not_installed() -> ConfigurationError:
    """Return what to raise where limits are met that this application knows nothing of."""
    return ConfigurationError(
        "these limits are not installed in this application; call init_app(app)"
    )


class Mark(Struct, eq=False):
    """What one use of `limit` puts on a view."""

    by: Marks
    limits: tuple[RateLimit, ...]
    first: int
    """The number of its first limit among all that are put on the same view, from 1."""

    def at(self, place: str) -> list[RateLimit]:
        """Give its limits their place: in one and the same, two that are alike would be one."""
        return [
            limit.at(place if number == 1 else f"{place} #{number}")
            for number, limit in enumerate(self.limits, self.first)
        ]


class Marks:
    """Which views and blueprints have limits of one extension, and which are exempt."""

    def limit(self, target: object, limits: tuple[RateLimit, ...]) -> Mark:
        """Put limits on a view, a class or method of views, or a blueprint."""
        before = self.of(target)
        mark = Mark(self, limits, 1 + sum(len(each.limits) for each in before))
        # Also on the function that is wrapped then: a route may have it already.
        setattr(target, _LIMITS, (*getattr(target, _LIMITS, ()), mark))
        return mark

    def exempt(self, target: object) -> None:
        """Let only its own limits hold for it."""
        setattr(target, _EXEMPT, (*getattr(target, _EXEMPT, ()), self))

    def of(self, target: object) -> list[Mark]:
        """Return what was put on it, in the order in which that was done."""
        marks: tuple[Mark, ...] = getattr(target, _LIMITS, ())
        own = [mark for mark in marks if mark.by is self]
        # A blueprint may be for several applications, each with an extension of its own.
        if len(own) < len(marks) and not isinstance(target, Blueprint):
            raise not_installed()
        return own

    def is_exempt(self, target: object) -> bool:
        """Return whether only its own limits hold for it."""
        return self in getattr(target, _EXEMPT, ())


class Plan(NamedTuple):
    """What is asked about a request, and which marks that sees to."""

    limits: Sequence[RateLimit] = ()
    marks: Sequence[Mark] = ()


class Routes:
    """The routes of an application, each with its limits. What was found once is remembered."""

    def __init__(
        self,
        app: Flask,
        marks: Marks,
        limits: tuple[RateLimit, ...],
        per_route: tuple[RateLimit, ...],
    ) -> None:
        self._app = app
        self._marks = marks
        self._unmatched = Plan(limits)
        self._per_route = per_route
        self._plans: dict[tuple[str, str], Plan] = {}
        self._endpoints: dict[str, str] = {}

    def forget(self) -> None:
        """Look again who has which limits."""
        self._plans.clear()

    def plan(self, request: Request) -> Plan:
        """Return what to ask about a request."""
        rule = request.url_rule
        if rule is None:
            return self._unmatched
        asked = (rule.endpoint, request.method)
        plan = self._plans.get(asked)
        if plan is None:
            plan = self._plans[asked] = self._planned(request, rule)
        return plan

    def endpoint_of(self, endpoint: str) -> str:
        """Return what tells endpoints apart: methods and template, `"GET /users/<id>"`."""
        found = self._endpoints.get(endpoint)
        if found is None:
            rules = self._rules(endpoint)
            methods = {method for rule in rules for method in rule.methods or ()}
            names = "|".join(sorted(methods - {"HEAD", "OPTIONS"} or methods))
            found = self._endpoints[endpoint] = f"{names} {_template(rules)}"
        return found

    def _rules(self, endpoint: str) -> list[Rule]:
        return list(self._app.url_map.iter_rules(endpoint))

    def _planned(self, request: Request, rule: Rule) -> Plan:
        """Go from the view outwards, up to what is exempt from all that lies around it."""
        app, marks = self._app, self._marks
        if _is_static(app, rule.endpoint) or _is_automatic(request, rule):
            return Plan()
        view = app.view_functions.get(rule.endpoint)
        of_class = getattr(view, "view_class", None)
        of_method = _method(of_class, request.method)
        place = self.endpoint_of(rule.endpoint)
        template = _template(self._rules(rule.endpoint))
        method = "GET" if request.method == "HEAD" else request.method
        own = [
            *_at(place, marks.of(view)),
            *_at(f"{template} class", marks.of(of_class)),
            *_at(f"{template} {method}", marks.of(of_method)),
        ]
        is_exempt = any(marks.is_exempt(each) for each in (view, of_class, of_method))
        for name in request.blueprints:
            if is_exempt:
                break
            blueprint = cast(Blueprint, app.blueprints[name])
            own = [*_at(f"{name} {place}", marks.of(blueprint)), *own]
            is_exempt = marks.is_exempt(blueprint)
        if not is_exempt:
            default = () if own else [limit.at(place) for limit in self._per_route]
            own = [*self._unmatched.limits, *default, *own]
        return Plan(own, [*marks.of(view), *marks.of(of_method)])


def _at(place: str, marks: Iterable[Mark]) -> list[RateLimit]:
    return [limit for mark in marks for limit in mark.at(place)]


def _template(rules: list[Rule]) -> str:
    """Return the template of an endpoint. One that has several URLs is known by the shortest."""
    rule = min(rules, key=lambda rule: (len(rule.rule), rule.rule))
    return f"{rule.host or rule.subdomain or ''}{rule.rule}"


def _method(of_class: object, method: str) -> object:
    """Return what a class of views calls for a method; for HEAD, GET's if there is no other."""
    found: object = getattr(of_class, method.lower(), None)
    return getattr(of_class, "get", None) if found is None and method == "HEAD" else found


def _is_static(app: Flask, endpoint: str) -> bool:
    """Return whether Flask sends a file, of the application's folder or of a blueprint's."""
    blueprint, _, name = endpoint.rpartition(".")
    owner = app.blueprints.get(blueprint) if blueprint else app
    return name == "static" and owner is not None and owner.has_static_folder


def _is_automatic(request: Request, rule: Rule) -> bool:
    """Return whether Flask answers by itself which methods there are, as browsers ask first."""
    return request.method == "OPTIONS" and getattr(rule, "provide_automatic_options", False)
