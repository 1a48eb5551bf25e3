"""`Installed`: what the extension does with the requests of one application."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, cast

import flask
from flask import Flask, Request, Response
from werkzeug.exceptions import HTTPException, default_exceptions

from limen._internal.functions import name_of
from limen.adapters.deciders import Source
from limen.adapters.door import Door
from limen.adapters.flask.routes import Mark, Marks, Routes
from limen.adapters.limit import RateLimit
from limen.adapters.manner import Manner
from limen.adapters.request import UNMATCHED
from limen.adapters.visit import Visit
from limen.adapters.wsgi import Body, Stay, WsgiRequest
from limen.http import Refusal

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

EXTENSION = "limen"
ENABLED = "LIMEN_ENABLED"
"""Whether anything is limited. Looked at anew for each request."""
_STAY = "limen.flask"
_EXPOSE = "Access-Control-Expose-Headers"


class FlaskRequest(WsgiRequest):
    """A request of Flask's. Functions of the user's get Flask's own."""

    __slots__ = ("_endpoints",)

    address_setting: ClassVar[str] = (
        "trusted_proxies of addresses=AddressSettings(trusted_proxies=..., header=...), or of "
        "LIMEN_ADDRESSES"
    )

    def __init__(self, request: Request, manner: Manner, routes: Routes) -> None:
        super().__init__(request.environ, manner, request)
        self._endpoints = routes

    @property
    def path(self) -> str:
        """The path, without where the application is mounted."""
        return str(self.native.path)

    @property
    def route(self) -> str | None:
        """The template: `"/users/<int:id>"`."""
        rule = self.native.url_rule
        return None if rule is None else rule.rule

    @property
    def endpoint(self) -> str:
        """The methods and the template. All that matches no route is one endpoint."""
        found: str | None = self.native.endpoint
        return UNMATCHED if found is None else self._endpoints.endpoint_of(found)

    def passes(self, error: Exception) -> bool:
        """Return whether it is an `abort`. A header or a field that is not there is a missing key.

        Werkzeug raises a `BadRequest` for that too, which is also a `KeyError`.
        """
        return isinstance(error, HTTPException) and not isinstance(error, KeyError)

    @property
    def user(self) -> str | None:
        """Who is logged in by Flask-Login, where the application has it; else `REMOTE_USER`."""
        login = sys.modules.get("flask_login")
        if login is not None and hasattr(flask.current_app, "login_manager"):
            user = login.current_user
            found = user.get_id() if user and user.is_authenticated else None
            if found is not None:
                return str(found)
        return super().user


class Refused(HTTPException):
    """Stop a request that is refused. Also a `TooManyRequests`, or what else has its status.

    Its response is the one that tells why; `description` has that in a sentence.
    """

    def __init__(self, visit: Visit, refusal: Refusal) -> None:
        response = Response(refusal.body, refusal.status, refusal.headers)
        HTTPException.__init__(self, refusal.detail, response)
        self.visit = visit
        """What was said to the request."""
        self.retry_after: int | None = response.headers.get("Retry-After", None, int)
        """Seconds until it would pass; None when waiting does not help."""


def refused(visit: Visit) -> Refused:
    """Return what to raise for a request that is refused."""
    refusal = visit.refusal()
    return _class_of(refusal.status)(visit, refusal)


@cache
def _class_of(status: int) -> type[Refused]:
    """Return the `Refused` of a status. Flask looks for handlers by class, not by instance."""
    bases = (Refused, default_exceptions.get(status, HTTPException))
    found = type("Refused", bases, {"code": status, "__doc__": Refused.__doc__})
    return cast(type[Refused], found)


class Installed:
    """Limits in an application: `app.extensions["limen"]`."""

    def __init__(
        self,
        app: Flask,
        limiter: Source,
        door: Door,
        per_route: tuple[RateLimit, ...],
        marks: Marks,
    ) -> None:
        self.limiter = limiter
        """Who decides. One that was made from the configuration can be closed here."""
        self._app = app
        self._door = door
        self._routes = Routes(app, marks, door.limits, per_route)

    def take(self, limits: tuple[RateLimit, ...]) -> None:
        """Make sure that limits can be asked about, before somebody has them."""
        self._door.take(*limits)
        self.forget()

    def forget(self) -> None:
        """Look again who has which limits, and who is exempt."""
        self._routes.forget()

    def enter(self) -> None:
        """Let a request through, or raise `Refused`."""
        # What the user's functions get is the request itself, which they may keep.
        request: Request = flask.request._get_current_object()  # type: ignore[attr-defined]
        door, routes = self._door, self._routes
        visit = Visit(FlaskRequest(request, door.manner, routes))
        # Not in `g` alone: several requests of a test may have the same.
        stay = request.environ[_STAY] = _Stay(door, visit)
        flask.g.limen = visit
        if not self._app.config[ENABLED]:
            return
        plan = routes.plan(request)
        stay.passed = list(plan.marks)
        if not door.enter(visit, plan.limits):
            raise refused(visit)

    def pass_by(self, mark: Mark, function: Callable[..., Any]) -> None:
        """Ask about the limits of a function that is about to be called, unless that was done."""
        stay: _Stay | None = flask.request.environ.get(_STAY)
        if stay is None:  # a test that calls the view itself
            return
        if mark in stay.passed:
            stay.passed.remove(mark)
            return
        limits = mark.at(name_of(function))
        if self._app.config[ENABLED] and not self._door.enter(stay.visit, limits, again=True):
            raise refused(stay.visit)

    def respond(self, app: Flask, response: Response, **more: object) -> None:
        """Put the headers on a response, when nobody changes it any more."""
        stay: _Stay | None = flask.request.environ.get(_STAY)
        if stay is None:
            return
        visit, headers = stay.visit, response.headers
        stay.own = response
        if response.is_streamed and _is_whole(response):
            response.make_sequence()
        if visit.is_due:
            visit.responded(response)
        for name, value in visit.headers(headers.getlist(_EXPOSE)):
            headers[name] = value
        # What is streamed may still say what it costs; a file does not.
        stay.is_streamed = response.is_streamed and (
            visit.is_due or not response.direct_passthrough
        )

    def around(self, app: WSGIApplication) -> WSGIApplication:
        """Return an application that also ends what was begun with a request, whatever fails.

        A response that is all there is as good as sent: the next request may come at once, and
        shall find everything given back.
        """

        def around(environ: WSGIEnvironment, start_response: StartResponse, /) -> Iterable[bytes]:
            try:
                body = app(environ, start_response)
            except BaseException:
                _end(environ)
                raise
            stay: _Stay | None = environ.get(_STAY)
            if stay is not None and stay.is_streamed:
                return Body(body, stay)
            _end(environ)
            return body

        return around


def _is_whole(response: Response) -> bool:
    """Return whether it only looks like a stream, as what error pages are made into."""
    return response.content_length is not None and not response.direct_passthrough


class _Stay(Stay):
    """A request, until its response is sent."""

    __slots__ = ("is_streamed", "own", "passed")

    def __init__(self, door: Door, visit: Visit) -> None:
        super().__init__(door, visit)
        self.passed: list[Mark] = []
        """What was asked about, and whose function was not called yet."""
        self.own: Response | None = None
        """Flask's own response."""
        self.is_streamed = False

    @property
    def response(self) -> Response:
        """What is sent; without anything, that the application failed."""
        return Response(status=500) if self.own is None else self.own


def _end(environ: WSGIEnvironment) -> None:
    stay: _Stay | None = environ.get(_STAY)
    if stay is not None:
        stay.end()
