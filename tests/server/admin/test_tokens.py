"""`/tokens`: they hold and end at once, and their secrets are told once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.admin.driving import ADMIN, CHECK, Driven


def create(service: Driven, **sent: Any) -> Any:
    return service.ask("POST", "/tokens", {"role": "viewer", "name": "grafana", **sent})


def test_a_token_holds_from_its_creation_to_its_end(service: Driven) -> None:
    made = create(service)
    assert made.status == 201
    secret, id = made.json["secret"], made.json["id"]
    assert service.ask("GET", "/rules", token=secret).status == 200
    ended = service.ask("DELETE", f"/tokens/{id}")
    assert (ended.json["state"], ended.json["revoked_by"]) == (
        "revoked",
        "the admin token of this host",
    )
    assert service.ask("GET", "/rules", token=secret).status == 401
    assert service.ask("DELETE", f"/tokens/{id}").json == ended.json


def test_a_token_expires(service: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = datetime.now(UTC) + timedelta(hours=1)
    secret = create(service, expires_at=ends.isoformat()).json["secret"]
    assert service.ask("GET", "/rules", token=secret).status == 200
    assert service.ask("GET", "/tokens").json["tokens"][0]["state"] == "active"
    monkeypatch.setattr("limen.server.auth.tokens.time", SimpleNamespace(time=ends.timestamp))
    monkeypatch.setattr("limen.server.admin.tokens.now", lambda: ends)
    assert service.ask("GET", "/rules", token=secret).status == 401
    assert service.ask("GET", "/tokens").json["tokens"][0]["state"] == "expired"


def test_a_secret_is_told_once_and_nowhere_else(service: Driven) -> None:
    secret = create(service).json["secret"]
    for path in ("/tokens", "/audit", "/rules", "/instances", "/stats", "//openapi.json", "//docs"):
        body = service.ask("GET", path).body.decode()
        assert not any(each in body for each in (secret, ADMIN, CHECK)), path
    listed = service.ask("GET", "/tokens").json["tokens"][0]
    assert set(listed) == {
        *("id", "role", "name", "state", "created_at", "created_by", "expires_at"),
        *("revoked_at", "revoked_by"),
    }
    row = service.ask("GET", "/audit?limit=1").json["rows"][0]
    assert (row["action"], row["subject"]) == ("token-create", f"token {listed['id']} (viewer)")


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"role": "root"}, "role: "),
        ({"name": ""}, "name: "),
        ({"name": " "}, "name must say what the token is for"),
        ({"name": "x" * 101}, "name: "),
        ({"expires_at": "2001-01-01"}, "expires_at must be in the future"),
        ({"expires_at": "soon"}, "expires_at: "),
        ({"secret": "mine"}, "unknown field 'secret'"),
    ],
)
def test_a_token_that_makes_no_sense_is_not_created(
    calm: Driven, sent: dict[str, Any], said: str
) -> None:
    refused = create(calm, **sent)
    assert (refused.status, said in refused.detail) == (422, True), refused.detail
    assert calm.ask("GET", "/tokens").json == {"tokens": []}


def test_no_error_repeats_the_secret_of_a_token(service: Driven) -> None:
    secret = create(service).json["secret"]
    answers = [
        create(service, role=secret),
        create(service, name=f"of {secret}"),
        create(service, expires_at=secret),
        create(service, **{secret: 1}),
        service.ask("DELETE", f"/tokens/{secret}"),
        service.ask("GET", f"/rules/{secret}"),
        service.ask("GET", f"/rules?{secret}=1"),
        service.ask("GET", f"/{secret}"),
        service.ask("PUT", "/kill-switch", {"on": True, "rules": [secret]}),
        service.ask("POST", "/keys/reset", {"attributes": {}, "rule": secret[:64]}),
        service.ask("POST", "/explain", {"attributes": {"user": {"x": secret}}}),
        service.ask("PUT", "/rules", f'{{"{secret}": 1, "{secret}": 2}}'.encode()),
        service.ask("GET", "/rules", token=secret + "x"),
    ]
    for answer in answers:
        assert 400 <= answer.status < 500
        assert secret[15:50] not in answer.body.decode(), answer
        assert answer.detail


def test_a_token_that_is_not_there_is_not_found(calm: Driven) -> None:
    missing = calm.ask("DELETE", "/tokens/00000000")
    assert (missing.status, missing.detail) == (404, "there is no token 00000000")
    assert calm.ask("DELETE", "/tokens/xyz").status == 422
