"""`Installed`: what the extension does with the requests of one application."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import flask
from flask import Flask, Request, Response

from limen._internal.functions import name_of
from limen.adapters.flask.marks import Mark, Marks
from limen.adapters.flask.refused import refused
from limen.adapters.flask.request import FlaskRequest
from limen.adapters.flask.routes import Routes
from limen.adapters.flask.settings import ENABLED
from limen.adapters.limit import RateLimit
from limen.adapters.sync import Door
from limen.adapters.visit import Visit
from limen.adapters.wsgi import Body, Stay

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from limen.adapters.deciders import Source

EXTENSION = "limen"
_STAY = "limen.flask"
_EXPOSE = "Access-Control-Expose-Headers"


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
        visit = door.visit(FlaskRequest(request, door.manner.addresses, routes))
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
        exposed = ", ".join(headers.getlist(_EXPOSE)) if visit.manner.expose else None
        for name, value in visit.headers(exposed):
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
