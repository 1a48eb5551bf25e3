"""Errors of the administration as `application/problem+json`, without secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from limen.errors import Conflict, InvalidInput, InvalidLimit, InvalidRules, LimenError, Problem
from limen.masking import masked
from limen.rules.findings import path_text, unknown_field
from limen.server import http
from limen.server.admin.edits import AlreadyExists, NotFound
from limen.server.http.exchange import RETRY_SOON, Rejected

_MOST = 100
"""How many problems one answer names."""
_DATA_PLANE, _ENVOY = "/v1/", "/json"


def install(app: FastAPI) -> None:
    """Let the app answer every error with a problem document."""
    for kind, answer in (
        (Rejected, _rejected),
        (RequestValidationError, _not_as_described),
        (HTTPException, _of_http),
        (LimenError, _of_limen),
    ):
        app.add_exception_handler(kind, answer)  # type: ignore[arg-type]  # each takes its own kind


def asgi_response(response: http.Response) -> Response:
    """Return a response of the data plane's kind as one of FastAPI's kind."""
    converted = Response(response.body, response.status)
    converted.raw_headers += response.headers
    return converted


def _answer(
    request: Request,
    status: int,
    detail: str,
    *,
    headers: http.Headers | None = None,
    problems: Sequence[Problem] = (),
) -> Response:
    id_ = request.scope.get("limen_id", "")
    values = [
        http.InvalidValue(masked(each.path), masked(each.message)) for each in problems[:_MOST]
    ]
    response = http.problem_response(status, masked(detail), id_, headers or (), tuple(values))
    return asgi_response(response)


async def _rejected(request: Request, error: Rejected) -> Response:
    return _answer(request, error.status, error.detail, headers=error.headers)


async def _not_as_described(request: Request, error: RequestValidationError) -> Response:
    fields = _fields_of(request)
    errors = error.errors()
    # Only the problems that the response names: there can be as many as the body has members.
    problems = list(dict.fromkeys(_problem(each, fields) for each in errors[:_MOST]))
    detail = _told(problems, unnamed=len(errors[_MOST:]))
    return _answer(request, 422, detail, problems=problems)


async def _of_http(request: Request, error: HTTPException) -> Response:
    path = request.url.path[:200]
    if error.status_code == 404:
        url = request.app.state.service.settings.data_plane_url
        return _answer(request, 404, _nothing_at(path, url))
    if error.status_code == 405:
        allowed = ", ".join(_methods(request))
        detail = f"{path} takes {allowed}, not {request.method}"
        return _answer(request, 405, detail, headers=[(b"allow", allowed.encode())])
    return _answer(request, error.status_code, str(error.detail))


async def _of_limen(request: Request, error: LimenError) -> Response:
    match error:
        case InvalidRules():
            found = error.problems
            return _answer(request, 422, _told(found), problems=found)
        case Conflict() | AlreadyExists():
            return _answer(request, 409, str(error))
        case NotFound():
            return _answer(request, 404, str(error))
        case InvalidInput() | InvalidLimit():
            return _answer(request, 422, str(error))
    # A store or a database that is away, or not as it should be: none of the caller's doing.
    return _answer(request, 503, str(error), headers=[RETRY_SOON])


def _nothing_at(path: str, data_plane_url: str) -> str:
    if path.startswith(_DATA_PLANE) or path == _ENVOY:
        return (
            f"there is nothing at {path} on the control plane; decisions are on the data plane, "
            f"at {data_plane_url}"
        )
    return f"there is nothing at {path}; see /docs"


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
