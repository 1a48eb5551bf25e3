"""Who asks, in the project: by session, by token, and by what a test says in a header."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.backends import BaseBackend
from django.contrib.auth.models import User
from django.db import connection
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request


class ByNumber(BaseBackend):
    """Knows everybody who has a number; asks the database, as a real one does."""

    def get_user(self, user_id: int) -> User:
        with connection.cursor() as cursor:  # Django does not have that on a loop
            cursor.execute("SELECT 1")
        return User(pk=user_id, username=f"user-{user_id}")


class ByToken(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[User, None] | None:
        token = request.META.get("HTTP_X_TOKEN")
        return None if token is None else (User(pk=int(token)), None)


def is_staff(request: HttpRequest) -> bool:
    return request.headers.get("X-Staff") == "yes"


def tenant_of(request: HttpRequest) -> str | None:
    return request.headers.get("X-Tenant")


def name_of(request: HttpRequest) -> str:
    """Asks the database, unless it is known already who is logged in."""
    return str(request.user.get_username())


def broken(request: HttpRequest) -> str:
    raise LookupError("no such tenant")


def hidden(request: HttpRequest) -> str:
    raise Http404


def number(request: HttpRequest) -> Any:
    return 7


def nobody(request: HttpRequest) -> None:
    return None


def only_sync(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Any:
    """A middleware as there are many: it knows threads alone."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        return get_response(request)

    return middleware
