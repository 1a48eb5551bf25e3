"""What went wrong, as `application/problem+json`: one form for every error of the administration.

Says where and what, and repeats no secret.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from limen.errors import Conflict, InvalidInput, InvalidLimit, InvalidRules, LimenError, Problem
from limen.http.problem import CONTENT_TYPE, phrase
from limen.masking import masked
from limen.rules.findings import path_text, unknown_field
from limen.server.admin.edits import Missing, Taken
from limen.server.exchange import Gone, Rejected

_RETRY_S = "1"
_MOST = 100
"""How many problems one answer names."""
_logger = logging.getLogger("limen.server")


def install(app: FastAPI) -> None:
    """Let the app answer every error with a problem document."""
    for kind, answer in (
        (Rejected, _rejected),
        (Gone, _gone),
        (RequestValidationError, _not_as_described),
        (HTTPException, _of_http),
        (LimenError, _of_limen),
        (Exception, _unexpected),
    ):
        app.add_exception_handler(kind, answer)  # type: ignore[arg-type]  # each takes its own kind


def _answer(
    request: Request,
    status: int,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    problems: Sequence[Problem] = (),
) -> Response:
    id_ = request.scope.get("limen_id", "")
    document: dict[str, Any] = {
        "title": phrase(status),
        "status": status,
        "detail": masked(detail),
    }
    if id_:
        document["instance"] = f"urn:limen:{id_}"
    if problems:
        document["problems"] = [
            {"path": masked(each.path), "message": masked(each.message)}
            for each in problems[:_MOST]
        ]
    body = msgspec.json.encode(document)
    return Response(body, status, {**(headers or {}), "Content-Type": CONTENT_TYPE})


async def _rejected(request: Request, error: Rejected) -> Response:
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return _answer(request, error.status, error.detail, headers=headers)


async def _gone(request: Request, _: Gone) -> Response:
    """Return a response, which a closed connection drops."""
    return _answer(request, 400, "the connection was closed before the end of the body")


async def _not_as_described(request: Request, error: RequestValidationError) -> Response:
    fields = _fields_of(request)
    errors = error.errors()
    # Only the problems that the response names: there can be as many as the body has members.
    problems = list(dict.fromkeys(_problem(each, fields) for each in errors[:_MOST]))
    detail = _told(problems, unnamed=len(errors[_MOST:]))
    return _answer(request, 422, detail, problems=problems)


async def _of_http(request: Request, error: HTTPException) -> Response:
    path, headers = request.url.path[:200], dict(error.headers or {})
    if error.status_code == 404:
        return _answer(request, 404, f"there is nothing at {path}; see /docs")
    if error.status_code == 405:
        allowed = ", ".join(_methods(request))
        detail = f"{path} takes {allowed}, not {request.method}"
        return _answer(request, 405, detail, headers={"Allow": allowed})
    return _answer(request, error.status_code, str(error.detail), headers=headers)


async def _of_limen(request: Request, error: LimenError) -> Response:
    match error:
        case InvalidRules():
            found = error.problems
            return _answer(request, 422, _told(found), problems=found)
        case Conflict() | Taken():
            return _answer(request, 409, str(error))
        case Missing():
            return _answer(request, 404, str(error))
        case InvalidInput() | InvalidLimit():
            return _answer(request, 422, str(error))
    # A store or a database that is away, or not as it should be: none of the caller's doing.
    return _answer(request, 503, str(error), headers={"Retry-After": _RETRY_S})


async def _unexpected(request: Request, error: Exception) -> Response:
    _logger.error("a request failed: %s", type(error).__name__)
    return _answer(request, 500, "this is a mistake in limen; its log says more")


def _problem(error: Mapping[str, Any], fields: list[str]) -> Problem:
    """Return what pydantic found, without the value: it may be a secret."""
    kind, context = error["type"], error.get("ctx", {})
    where = [step for step in error["loc"] if step != "[key]"]
    if where and where[0] in ("body", "query", "path"):
        where = where[1:]
    path = path_text(tuple(where))
    if kind == "missing":
        return Problem(path, "this field is missing" if path else "the body is missing")
    if kind == "extra_forbidden":
        if len(where) == 1 and fields:
            return Problem(path, unknown_field(where[0], fields))
        return Problem(path, "there is no such field")
    if kind == "value_error":
        return Problem(path, str(context["error"]))
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return Problem(path, "expected an object")
    return Problem(path, str(error["msg"]).replace("Input should be", "expected"))


def _fields_of(request: Request) -> list[str]:
    """Return the fields of the body that a route takes."""
    said = getattr(request.scope.get("route"), "body_field", None)
    annotation = None if said is None else said.field_info.annotation
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return [field.alias or name for name, field in kind.model_fields.items()]
    return []


def _told(found: Sequence[Problem], unnamed: int = 0) -> str:
    first = f"{found[0].path}: {found[0].message}" if found[0].path else found[0].message
    more = len(found) - 1 + unnamed
    return f"{first} (and {more:,} more)" if more else first


def _methods(request: Request) -> list[str]:
    """Return every method that a path takes; a route knows its own only."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    paths = [each.path for each in routes if each.matches(request.scope)[0] is not Match.NONE]
    # The first that fits: a rule may be called `validate`, and that is another path.
    fitting = [route.methods or () for route in routes if route.path == paths[0]]
    return sorted({method for methods in fitting for method in methods})
