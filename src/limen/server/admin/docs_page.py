"""`/docs`: the description of the service as a page for people.

HTML without scripts. The style sheet is a file, since the Content-Security-Policy of the service
allows no inline styles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

from limen.server.admin.openapi import SCHEME


def page(description: dict[str, Any]) -> str:
    """Return the description of an API as a page, in HTML."""
    return "".join(_page(description))


def _page(description: dict[str, Any]) -> Iterator[str]:
    info = description["info"]
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(info['title'])}: the API</title>"
        '<link rel="icon" href="/ui/icon.svg">'
        '<link rel="stylesheet" href="/ui/docs.css"></head><body>'
        f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>"
        f"<p>{escape(info['description'])}</p>"
        '<p>For programs: <a href="/openapi.json">openapi.json</a></p>'
    )
    tag = None
    for path, operations in description["paths"].items():
        shared = operations.get("parameters", [])
        for method, operation in operations.items():
            if method in ("parameters", "servers"):
                continue
            if operation["tags"][0] != tag:
                tag = operation["tags"][0]
                yield f"<h2>{escape(tag)}</h2>"
            ways = operation.get("security", [{}])
            yield (
                f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> "
                f"{escape(operation['summary'])} <small>{_whom(ways)}</small></summary>"
            )
            yield from _details(operation, shared, description["components"]["schemas"])
            yield "</details>"
    yield "</body></html>"


def _whom(ways: list[dict[str, list[str]]]) -> str:
    if {} in ways:
        return "no token needed"
    return f"role {', '.join(role for way in ways for role in way[SCHEME])}"


def _details(
    operation: dict[str, Any], shared: list[Any], schemas: dict[str, Any]
) -> Iterator[str]:
    if operation.get("description"):
        yield f"<p>{escape(operation['description'])}</p>"
    parameters = [*shared, *operation.get("parameters", [])]
    yield from _table(
        "Address", ((each["name"], each["in"], each.get("description", "")) for each in parameters)
    )
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    if body:
        yield from _body(body, schemas)
    told = operation["responses"].items()
    yield from _table("Answers", ((status, each["description"]) for status, each in told))


def _body(body: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    schema = _first(body["schema"], schemas)
    required = schema.get("required", ())
    yield from _table(
        "Body",
        (
            (name, "" if name in required else "optional", field.get("description", ""))
            for name, field in schema.get("properties", {}).items()
        ),
    )
    named = [each["value"] for each in body.get("examples", {}).values()]
    for example in named or schema.get("examples", []):
        yield f"<pre>{escape(json.dumps(example, indent=2))}</pre>"


def _first(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return what a schema refers to; of several, the first."""
    if "anyOf" in schema:
        schema = schema["anyOf"][0]
    found: dict[str, Any] = schemas[schema["$ref"].rpartition("/")[2]]
    return found


def _table(title: str, rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    cells = ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows]
    if cells:
        yield f"<h4>{title}</h4><table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
