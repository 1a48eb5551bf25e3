"""`RateLimits`: the extension, as an application sees it. What it does then is `Installed`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypedDict, TypeVar, Unpack, cast
from weakref import WeakSet

import flask
import msgspec
from flask import Blueprint, Flask

from limen.adapters.deciders import Source
from limen.adapters.door import Door
from limen.adapters.flask.installed import ENABLED, EXTENSION, Installed
from limen.adapters.flask.routes import Mark, Marks, not_installed
from limen.adapters.keys import Key, KeyFunction, Missing
from limen.adapters.limit import AnyLimit, Attributes, Cost, RateLimit, When, listed, rate_limits
from limen.adapters.manner import Options
from limen.errors import ConfigurationError, did_you_mean, shown
from limen.http import AddressSettings
from limen.limiter import Limiter
from limen.model import OnError

_PREFIX = "LIMEN_"
_LIMITER = ("store", "namespace", "on_error", "instances", "deadline")
"""The arguments of a limiter."""
_OPTIONS = ("headers", "addresses", "expose", "status")
"""The options of all adapters."""
_SETTINGS = ("enabled", "limits", "per_route", *_LIMITER, *_OPTIONS)
Target = TypeVar("Target", bound=Callable[..., Any] | Blueprint)


class Terms(TypedDict, total=False):
    """What `RateLimits.limit` can be told by keyword: the same as `RateLimit`."""

    key: Key | str | tuple[Key | str, ...] | KeyFunction
    cost: Cost
    scope: str | None
    exempt_when: When | None
    deduct_when: When | None
    settle: Callable[[Any], int | Mapping[str, int]] | None
    missing: Missing | None
    on_error: OnError | None
    attributes: Attributes | None


class RateLimits:
    """Limits the requests of applications. One may be for several of them.

    Limits that are given here count by address, over the whole application, and those of
    `per_route` for each route that has none of its own; `RateLimit` says more. Without a limiter,
    and for whatever else is not given, the configuration of the application is asked: `LIMEN_STORE`
    and so on. The visit of a request is in `flask.g.limen`.
    """

    def __init__(
        self,
        limiter: Source | None = None,
        *limits: AnyLimit,
        per_route: Iterable[AnyLimit] = (),
        app: Flask | None = None,
        **options: Unpack[Options],
    ) -> None:
        if isinstance(limiter, Flask):
            raise ConfigurationError(
                "a limiter comes first; give the application as app=..., or call init_app(app)"
            )
        if "routes" in options:
            raise ConfigurationError("Flask knows its routes itself; leave the option routes out")
        self._limiter = limiter
        self._limits = limits
        self._per_route = listed(per_route)
        self._options = options
        self._marks = Marks()
        self._made: list[RateLimit] = []
        self._installed: WeakSet[Installed] = WeakSet()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Let limits work in an application.

        They are asked about after the `before_request` functions that it has by now.
        """
        if EXTENSION in app.extensions:
            raise ConfigurationError(f"limen is installed in {app!r} already")
        settings = _settings_of(app.config)
        limiter = self._limiter
        if limiter is None:
            limiter = Limiter(**_chosen(settings, _LIMITER))
        limits = self._limits or listed(settings.get("limits", ()))
        options = cast(Options, {**_chosen(settings, _OPTIONS), **self._options})
        door = Door(limiter, *limits, **options)
        per_route = door.take(*(self._per_route or listed(settings.get("per_route", ()))))
        door.take(*self._made)
        app.config.setdefault(ENABLED, True)
        installed = Installed(app, limiter, door, per_route, self._marks)
        app.extensions[EXTENSION] = installed
        self._installed.add(installed)
        app.before_request(installed.enter)
        # Not by `after_request` and `teardown_request`: of those, others may come later, with
        # another response or with an error.
        flask.request_finished.connect(installed.respond, app, weak=False)
        around = installed.around(app.wsgi_app)
        app.wsgi_app = around  # type: ignore[assignment,method-assign]  # as Flask says

    def limit(self, *limits: AnyLimit, **terms: Unpack[Terms]) -> Callable[[Target], Target]:
        """Limit a view, a class of views or one of its methods, or all routes of a blueprint.

        Without a `scope`, each route counts apart, by its template. Also limits any other function
        that views call, each time that it is called; it counts by its own name.
        """
        plain = [limit for limit in limits if not isinstance(limit, RateLimit)]
        if terms and len(plain) < len(limits):
            raise ConfigurationError("a RateLimit says all by itself; give no keywords beside it")
        made = (RateLimit(*plain, **terms),) if terms or not limits else rate_limits(limits)
        for installed in self._installed:
            installed.take(made)
        self._made.extend(made)

        def decorate(target: Target) -> Target:
            mark = self._marks.limit(target, made)
            if isinstance(target, Blueprint | type):
                return target
            return cast(Target, self._passing(target, mark))

        return decorate

    def exempt(self, target: Target) -> Target:
        """Let no limits that lie around it hold for a view or a blueprint: only its own do."""
        self._marks.exempt(target)
        for installed in self._installed:
            installed.forget()
        return target

    def _passing(self, function: Callable[..., Any], mark: Mark) -> Callable[..., Any]:
        """Return a function that sees to it that its limits were asked about.

        For a view they were, unless a decorator hides that it is marked.
        """
        if iscoroutinefunction(function):

            @wraps(function)
            async def passing_async(*args: Any, **kwargs: Any) -> Any:
                self._pass(mark, function)  # keeps nobody waiting: the loop is this request's own
                return await function(*args, **kwargs)

            return passing_async

        @wraps(function)
        def passing(*args: Any, **kwargs: Any) -> Any:
            self._pass(mark, function)
            return function(*args, **kwargs)

        return passing

    def _pass(self, mark: Mark, function: Callable[..., Any]) -> None:
        if not flask.has_request_context():
            return
        installed = flask.current_app.extensions.get(EXTENSION)
        if not isinstance(installed, Installed) or installed not in self._installed:
            raise not_installed()
        installed.pass_by(mark, function)


def _settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the configuration says, by names such as `store`; or raise an error."""
    known = [f"{_PREFIX}{name.upper()}" for name in _SETTINGS]
    settings: dict[str, Any] = {}
    for name, value in config.items():
        if name in known:
            settings[name.removeprefix(_PREFIX).lower()] = value
        elif name.startswith(_PREFIX):
            raise ConfigurationError(
                f"unknown setting {name}{did_you_mean(name, known)}; there are: {', '.join(known)}"
            )
    enabled = settings.get("enabled", True)
    if not isinstance(enabled, bool):
        raise ConfigurationError(f"{ENABLED} must be True or False, got {shown(enabled)}")
    if isinstance(settings.get("addresses"), dict):  # as it is written in the environment
        try:
            settings["addresses"] = msgspec.convert(settings["addresses"], AddressSettings)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"{_PREFIX}ADDRESSES: {error}") from None
    return settings


def _chosen(settings: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: settings[name] for name in names if name in settings}
