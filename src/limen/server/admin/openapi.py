"""The OpenAPI document of the service: `/openapi.json`.

It joins FastAPI's description of `/admin/v1` with the decisions of `/v1`, whose messages describe
themselves. The control plane serves it, so paths are relative to the control plane; the paths of
the data plane name its address in `servers`.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, get_args, get_type_hints

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from msgspec import Struct, structs

from limen import wire
from limen.http.problem import CONTENT_TYPE
from limen.rules.spec import json_schema
from limen.server.http import ProblemDocument
from limen.server.settings import Settings
from limen.server.worker.container import Health

SCHEME = "token"
"""What the description calls the way in."""
REFERENCE = "x-limen-schema"
"""Stands in a schema for one that is made here."""
QUERY_OF_ATTRIBUTES: dict[str, Any] = {
    "name": "attributes",
    "in": "query",
    "description": "Attributes by their names, each once: `?user=42&path=/search`.",
    "style": "form",
    "explode": True,
    "schema": {
        "type": "object",
        "maxProperties": 100,
        "additionalProperties": True,
    },
    "example": {"user": "42"},
}

_DESCRIPTION = """
Decides, for every request, whether it may pass; and keeps the rules by which it does.

Decisions, under `/v1`, are served by the data plane at {data_plane}. Behind a proxy this address
differs. All other paths in this document are served by the control plane, as is the document
itself. `/healthz` and `/readyz` are served by both.

Times are seconds, or ISO 8601. Every error is `application/problem+json`, and says what to do.
"""
_ERRORS = {
    400: "The body is not JSON.",
    401: "There is no token, or none that holds.",
    403: "The role of the token is too low.",
    404: "There is no such thing.",
    409: "It cannot be changed as things stand: they were changed meanwhile, or are elsewhere.",
    413: "The body is too long.",
    422: "The request is not as it should be. `problems` says what, and where.",
    429: "The token has too many requests in progress.",
    503: "The database or the store is away, or rules are not loaded yet. Nothing was changed.",
}
_RETRY_AFTER = ("Retry-After", {"type": "integer", "minimum": 1})
_HEADERS = {
    401: ("WWW-Authenticate", {"type": "string"}),
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}
_MESSAGES = (
    wire.Question,
    wire.Verdict,
    wire.SlotQuestion,
    wire.SlotVerdict,
    wire.RefundQuestion,
    wire.SettleQuestion,
    wire.Done,
    Health,
    ProblemDocument,
)
_QUESTION = {"attributes": {"user": "42", "path": "/search"}, "cost": 1}
_OWN = {"key": "user:42", "limits": "100/minute; 1000/day"}
_RECEIPT = "aG93IG11Y2ggd2FzIGNoYXJnZWQ"


def errors(statuses: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Describe the answers to what went wrong, by their statuses."""
    found = {}
    for status in sorted(statuses):
        found[status] = content("ProblemDocument", _ERRORS[status], CONTENT_TYPE)
        if status in _HEADERS:
            name, schema = _HEADERS[status]
            found[status]["headers"] = {name: {"schema": schema}}
    return found


def content(schema: str, description: str, kind: str = "application/json") -> dict[str, Any]:
    """Describe an answer by the name of its schema."""
    return {"description": description, "content": {kind: {"schema": _ref(schema)}}}


def describe(app: FastAPI, settings: Settings, events: Iterable[type[Struct]]) -> dict[str, Any]:
    """Return the description of the service, as the settings have it.

    `events` are the messages of the live stream, which no route returns.
    """
    whole = get_openapi(
        title=app.title,
        version=app.version,
        description=_DESCRIPTION.strip().format(data_plane=settings.data_plane_url),
        routes=app.routes,
        servers=[{"url": "/", "description": "The control plane."}],
    )
    whole["paths"] = {**_health(), **_decisions(settings), **whole["paths"]}
    components = whole.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **_schemas(app, events)}
    components["securitySchemes"] = {
        SCHEME: {
            "type": "http",
            "scheme": "bearer",
            "description": "A token, whose role says how much it may: check asks under `/v1`; "
            "viewer looks, editor changes rules and keys, admin tokens too.",
        }
    }
    found: dict[str, Any] = json.loads(json.dumps(whole), object_hook=_resolved)
    return found


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _resolved(value: dict[str, Any]) -> dict[str, Any]:
    name = value.get(REFERENCE)
    if name is None:
        return value
    more = {key: inner for key, inner in value.items() if key in ("description", "title")}
    return {**_ref(name), **more}


def _schemas(app: FastAPI, events: Iterable[type[Struct]]) -> dict[str, Any]:
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    responses = [get_type_hints(route.endpoint)["return"] for route in routes]
    messages = [kind for kind in responses if isinstance(kind, type) and issubclass(kind, Struct)]
    roots = (*_MESSAGES, *messages, *events)
    _, schemas = msgspec.json.schema_components(roots, ref_template="#/components/schemas/{name}")
    kinds: dict[type[Struct], None] = {}
    for root in roots:
        _collect_structs(root, kinds)
    for kind in kinds:
        _describe_fields(kind, schemas[kind.__name__]["properties"])
    written = json.dumps(json_schema()).replace("#/$defs/", "#/components/schemas/")
    rules = json.loads(written)
    parts = rules.pop("$defs")
    del rules["$schema"]
    return {**schemas, **parts, "RuleSet": rules}


def _collect_structs(annotation: Any, kinds: dict[type[Struct], None]) -> None:
    """Add the messages in an annotation, and those in their fields."""
    for inner in get_args(annotation):
        _collect_structs(inner, kinds)
    if isinstance(annotation, type) and issubclass(annotation, Struct) and annotation not in kinds:
        kinds[annotation] = None
        for hint in get_type_hints(annotation).values():
            _collect_structs(hint, kinds)


def _describe_fields(kind: type[Struct], properties: dict[str, Any]) -> None:
    """Add the docstrings of the fields, which msgspec leaves out."""
    docstrings = dict(_docstrings(kind))
    for field in structs.fields(kind):
        if field.name in docstrings:
            properties[field.encode_name]["description"] = docstrings[field.name]


def _docstrings(kind: type[Struct]) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of each field, those of base classes first."""
    for base in reversed(kind.__mro__[: kind.__mro__.index(Struct)]):
        [body] = ast.parse(inspect.getsource(base)).body
        assert isinstance(body, ast.ClassDef)
        for field, text in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                sentences = " ".join(ast.literal_eval(text.value).split())
                yield ast.unparse(field.target), sentences


def _health() -> dict[str, Any]:
    ok = {"type": "object", "required": ["status"], "properties": {"status": {"const": "ok"}}}
    alive = {"description": "It is.", "content": {"application/json": {"schema": ok}}}
    return {
        "/healthz": {"get": _operation("Say whether the process is alive", "health", {200: alive})},
        "/readyz": {
            "get": _operation(
                "Say whether the process can decide, by which rules, and what does not work",
                "health",
                {
                    200: content("Health", "It can, perhaps without something it should have."),
                    503: content("Health", "It has no rules yet."),
                },
            )
        },
    }


def _decisions(settings: Settings) -> dict[str, Any]:
    way: list[dict[str, list[str]]] = [{SCHEME: ["check"]}]
    if settings.checks_are_open:
        way.append({})

    def decides(summary: str, answer: dict[str, Any], *also: int, **more: Any) -> dict[str, Any]:
        told = {200: answer, **errors({401, 403, 413, 422, *also})}
        return _operation(summary, "decisions", told, security=way, **more)

    def asks(
        name: str, summary: str, answer: dict[str, Any], *examples: Any, schema: Any = None
    ) -> dict[str, Any]:
        body = _body(schema or _ref(name), *examples)
        return {"post": decides(summary, answer, 400, 413, 503, requestBody=body)}

    done = content("Done", "Whether anything changed.")
    one, most = _ref("Question"), settings.http.max_batch
    verdicts = {"anyOf": [_ref("Verdict"), {"type": "array", "items": _ref("Verdict")}]}
    decided = {
        "description": "The verdict, also when it is a refusal; a list of them for a list.",
        "content": {"application/json": {"schema": verdicts}},
    }
    slot = {
        "name": "slot",
        "in": "path",
        "required": True,
        "description": "What `/v1/slots` gave.",
        "schema": {"type": "string", "minLength": 1},
    }
    either = {"anyOf": [one, {"type": "array", "items": one, "maxItems": most}]}
    paths: dict[str, Any] = {
        "/v1/check": asks(
            "check",
            "Decide a request, or a list of them; who is allowed is charged",
            decided,
            _QUESTION,
            _OWN,
            [_QUESTION, {**_QUESTION, "peek": True}],
            schema=either,
        ),
        "/v1/refund": asks(
            "RefundQuestion", "Give back what a verdict charged", done, {"receipt": _RECEIPT}
        ),
        "/v1/settle": asks(
            "SettleQuestion",
            "Correct what a verdict charged, now that the real cost is known",
            done,
            {"receipt": _RECEIPT, "actual": {"tokens": 731}},
        ),
        "/v1/usage": {
            "get": decides(
                "Say where somebody stands, and charge nothing",
                content("Verdict", "What `/v1/slots` would say, before it is charged."),
                503,
                parameters=[QUERY_OF_ATTRIBUTES],
            )
        },
        "/v1/slots": asks(
            "SlotQuestion",
            "Take a place under every rule that asks for one, and charge the others",
            content("SlotVerdict", "The verdict, and the slot if there is one."),
            {"attributes": {"user": "42", "path": "/export"}},
            {"key": "user:42", "concurrency": {"slots": 3, "lease": 60}},
        ),
        "/v1/slots/{slot}": {
            "parameters": [slot],
            "post": decides("Lengthen the lease of a slot to a full one", done, 503),
            "delete": decides("Free the places of a slot", done),
        },
    }
    servers = [{"url": settings.data_plane_url, "description": "The data plane."}]
    return {path: {"servers": servers, **item} for path, item in paths.items()}


def _operation(
    summary: str, tag: str, responses: dict[int, dict[str, Any]], **more: Any
) -> dict[str, Any]:
    told = {str(status): response for status, response in responses.items()}
    return {"summary": summary, "tags": [tag], "responses": told, **more}


def _body(schema: dict[str, Any], *examples: Any) -> dict[str, Any]:
    named = {str(number): {"value": value} for number, value in enumerate(examples, 1)}
    kind = {"schema": schema, "examples": named}
    return {"required": True, "content": {"application/json": kind}}
