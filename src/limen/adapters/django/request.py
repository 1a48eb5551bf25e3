"""`DjangoRequest`: an `HttpRequest`, as limits see it. Asks nobody, but for who is logged in.

The view of a request is found before Django looks for it, so that all limits which hold for a
request are asked about at once; what Django then finds is what counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.conf import settings
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.core.exceptions import (
    BadRequest,
    PermissionDenied,
    SuspiciousOperation,
    SynchronousOnlyOperation,
)
from django.http import Http404, HttpRequest
from django.urls import Resolver404, ResolverMatch, resolve
from django.urls.resolvers import LocalePrefixPattern
from django.utils.functional import LazyObject

from limen.adapters.asgi import values_of
from limen.adapters.manner import Manner
from limen.adapters.request import UNMATCHED, Request
from limen.adapters.wsgi import value_of

_NOT_READ: Any = object()


class DjangoRequest(Request):
    """A request of Django's, as limits see it.

    `native` is what the user's functions get, if that is something else than the request itself.
    """

    __slots__ = ("_found", "_user", "http")

    address_setting: ClassVar[str] = (
        "LIMEN['TRUSTED_PROXIES'], and name the header in LIMEN['ADDRESS_HEADER']"
    )

    def __init__(self, http: HttpRequest, manner: Manner, native: Any = None) -> None:
        super().__init__(manner, http if native is None else native)
        self.http: HttpRequest = http
        """The request itself."""
        self._found: ResolverMatch | None = _NOT_READ
        self._user: str | None = _NOT_READ

    @property
    def method(self) -> str:
        """The method."""
        return self.http.method or "GET"

    @property
    def path(self) -> str:
        """The path, with the prefix of the script."""
        return self.http.path

    @property
    def peer(self) -> str | None:
        """The address of who connected, as the server has it."""
        return self.http.META.get("REMOTE_ADDR") or None

    def header(self, name: str) -> Sequence[str]:
        """Return the values of a header. By WSGI, those of one name come as one."""
        scope = getattr(self.http, "scope", None)
        if scope is not None:
            return values_of(scope["headers"], name)
        return value_of(self.http.META, name)

    @property
    def match(self) -> ResolverMatch | None:
        """Which view answers, under which route; None when there is none."""
        known = self.http.resolver_match
        if known is not None:
            return known
        if self._found is _NOT_READ:
            try:
                self._found = resolve(self.http.path_info, getattr(self.http, "urlconf", None))
            except Resolver404:
                self._found = None
        return self._found

    @property
    def route(self) -> str | None:
        """The route as it stands in the URLconf: `"/users/<int:pk>/"`."""
        match = self.match
        return None if match is None else template_of(match, self.http)

    @property
    def endpoint(self) -> str:
        """The route and the name of its view: no two endpoints have both in common.

        All paths that match no route are one endpoint.
        """
        match = self.match
        return UNMATCHED if match is None else f"{template_of(match, self.http)} {match.view_name}"

    @property
    def user(self) -> str | None:
        """The primary key of who is logged in. May ask the database."""
        if self._user is _NOT_READ:
            self._user = _key_of(getattr(self.native, "user", None))
        return self._user

    def passes(self, error: Exception) -> bool:
        """Return whether Django has a response for an error, or the user has to be read first.

        See `read_user`: after it, the same error is one of the function itself.
        """
        if isinstance(error, SynchronousOnlyOperation):
            return self._user is _NOT_READ
        return isinstance(error, _WITH_RESPONSE)

    async def read_user(self) -> None:
        """Find out who is logged in without holding up the loop, for functions of the user's too.

        Afterwards `request.user` is no longer lazy: who looks at it asks no database.
        """
        http = self.http
        auser = getattr(http, "auser", None)
        if self.native is http and auser is not None:
            http.user = await auser()
        user = getattr(self.native, "user", None)
        if isinstance(user, LazyObject):
            self._user = await sync_to_async(_key_of)(user)
        else:
            self._user = _key_of(user)


def template_of(match: ResolverMatch, http: HttpRequest) -> str:
    """Return a route, the same in every language: without what `i18n_patterns` puts before it."""
    route: str = match.route or ""
    urlconf = getattr(http, "urlconf", None) or settings.ROOT_URLCONF
    is_prefixed, also_default = is_language_prefix_patterns_used(urlconf)
    if is_prefixed:
        route = route.removeprefix(LocalePrefixPattern(also_default).language_prefix)
    return f"/{route}"


def _key_of(user: Any) -> str | None:
    if user is None or not getattr(user, "is_authenticated", False):
        return None
    key = getattr(user, "pk", None)
    return None if key is None else str(key)


_WITH_RESPONSE = (Http404, PermissionDenied, BadRequest, SuspiciousOperation)
"""The errors that Django answers with a 4xx, wherever they are raised."""
