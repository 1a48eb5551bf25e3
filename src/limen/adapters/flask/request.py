"""`FlaskRequest`: a request of Flask's, as limits see it."""

from __future__ import annotations

import sys
from typing import ClassVar

import flask
from flask import Request
from werkzeug.exceptions import HTTPException

from limen.adapters.flask.routes import Routes
from limen.adapters.request import UNMATCHED
from limen.adapters.wsgi import WsgiRequest
from limen.http import ClientAddresses


class FlaskRequest(WsgiRequest):
    """A request of Flask's. Functions of the user's get Flask's own."""

    __slots__ = ("_endpoints",)

    address_setting: ClassVar[str] = (
        "trusted_proxies of addresses=AddressSettings(trusted_proxies=..., header=...), or of "
        "LIMEN_ADDRESSES"
    )

    def __init__(self, request: Request, addresses: ClientAddresses, routes: Routes) -> None:
        super().__init__(request.environ, addresses, native=request)
        self._endpoints = routes

    @property
    def path(self) -> str:
        """The path, without where the application is mounted."""
        found: str = self.native.path
        return found

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
