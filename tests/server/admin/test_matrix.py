"""Who may do what: every operation of the description, times everybody who may come along.

Made of the description, so that a route that is added is here by itself. What each asks for is
said a second time below, by hand: a route that was opened too wide is not described by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from fastapi.routing import APIRoute

from limen.server.admin import PREFIX
from tests.server.admin.driving import RULES, Driven, driven, settings_of

ROLES = ("check", "viewer", "editor", "admin")
STRANGERS = ("nobody", "garbage", "unknown", "basic", "expired", "revoked")
EXPIRY = datetime.now(UTC) + timedelta(hours=1)
LOOKS = ("/rules/validate", "/explain", "/keys/inspect", "/audit/verify")
"""What changes nothing, though it is a POST."""


class Operation(NamedTuple):
    method: str
    path: str
    roles: list[str]
    """Those that the description asks for; none is everybody."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    settings = settings_of(tmp_path_factory.mktemp("matrix"), **{"auth.checks": "token"})
    with driven(settings, RULES, ("viewer", "editor")) as started:
        yield started


@pytest.fixture(scope="module")
def operations(service: Driven) -> list[Operation]:
    found = []
    for path, methods in service.ask("GET", "//openapi.json", role=None).json["paths"].items():
        for method, told in methods.items():
            if method not in ("parameters", "servers"):
                ways: list[dict[str, list[str]]] = told.get("security", [])
                roles = [role for way in ways for role in way.get("token", [])]
                found.append(Operation(method.upper(), path, roles))
    return found


def expected(operation: Operation) -> set[str]:
    """Return the roles that may, as people were told."""
    path = operation.path.removeprefix(PREFIX)
    if operation.path.startswith("/v1"):
        return {"check", "admin"}
    if not operation.path.startswith(PREFIX):
        return {*ROLES, *STRANGERS}
    if path.startswith("/tokens"):
        return {"admin"}
    is_look = operation.method == "GET" or path in LOOKS
    return {"viewer", "editor", "admin"} if is_look else {"editor", "admin"}


def ask(service: Driven, operation: Operation, **who: Any) -> int:
    # What is asked makes no sense: whoever is let in changes nothing.
    path = operation.path.replace("{version}", "0").replace("{id}", "x").replace("{slot}", "x")
    path = path.replace("{name}", "nobody")
    if operation.path == f"{PREFIX}/audit/verify":
        body = None
    else:
        body = b"{" if operation.method in ("POST", "PUT") else None
    status: int = service.ask(operation.method, f"/{path}", body, **who).status
    return status


def test_the_description_has_every_route(service: Driven, operations: list[Operation]) -> None:
    routes = {
        (method, route.path)
        for route in service.app.routes
        if isinstance(route, APIRoute) and route.path not in ("/docs", "/openapi.json")
        for method in route.methods or ()
    }
    described = {(each.method, each.path) for each in operations}
    assert routes <= described
    assert len(described) >= 39


def test_the_description_asks_for_the_roles_that_people_were_told(
    operations: list[Operation],
) -> None:
    lowest = {frozenset(("check", "admin")): "check", frozenset(("admin",)): "admin"}
    lowest[frozenset(("viewer", "editor", "admin"))] = "viewer"
    lowest[frozenset(("editor", "admin"))] = "editor"
    for operation in operations:
        role = lowest.get(frozenset(expected(operation)))
        assert operation.roles == ([role] if role else []), operation


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_do_what_it_should_and_nothing_else(
    service: Driven, operations: list[Operation], role: str
) -> None:
    for operation in operations:
        status = ask(service, operation, role=role)
        assert status != 401, operation
        assert (status != 403) == (role in expected(operation)), (operation, status)


@pytest.mark.parametrize("stranger", STRANGERS)
def test_whoever_has_no_good_token_may_do_nothing(
    service: Driven,
    operations: list[Operation],
    stranger: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    who = credentials(service, stranger)
    if stranger == "expired":
        monkeypatch.setattr("limen.server.auth.tokens.time", SimpleNamespace(time=EXPIRY.timestamp))
    for operation in operations:
        status = ask(service, operation, role=None, **who)
        assert (status != 401) == (stranger in expected(operation)), (operation, status)


def credentials(service: Driven, stranger: str) -> dict[str, Any]:
    if stranger == "nobody":
        return {}
    if stranger == "garbage":
        return {"headers": {"authorization": "what is this"}}
    if stranger == "basic":
        return {"headers": {"authorization": f"Basic {service.tokens['admin']}"}}
    if stranger == "unknown":
        return {"token": f"limen_00000000_{'x' * 43}"}
    token, secret = service.token("admin", EXPIRY if stranger == "expired" else None)
    assert service.ask("GET", "/tokens", token=secret).status == 200
    if stranger == "revoked":
        assert service.ask("DELETE", f"/tokens/{token.id}").status == 200
    return {"token": secret}


def test_a_token_is_looked_at_before_anything_else(service: Driven) -> None:
    for path in ("/rules?no=such", "/rules/versions/x"):
        answer = service.ask("GET", path, role=None)
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == 'Bearer realm="limen"'
    assert service.ask("PUT", "/rules", b"no json", role=None).status == 401
    assert service.ask("PUT", "/rules", b"no json", role="viewer").status == 403


def test_open_checks_need_no_token_and_refuse_a_bad_one(tmp_path: Any) -> None:
    with driven(settings_of(tmp_path, **{"auth.checks": "open"}), RULES, ("viewer",)) as service:
        question = {"attributes": {"user": "42"}}
        assert service.ask("POST", "//v1/check", question, role=None).status == 200
        assert service.ask("POST", "//v1/check", question, token="wrong").status == 401
        assert service.ask("POST", "//v1/check", question, role="viewer").status == 403
        told = service.ask("GET", "//openapi.json", role=None).json["paths"]["/v1/check"]["post"]
        assert told["security"] == [{"token": ["check"]}, {}]
        assert service.ask("GET", "/rules", role=None).status == 401
