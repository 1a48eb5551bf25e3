"""The description of the service, and how every answer is framed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.server.admin.driving import Driven


@pytest.fixture(scope="module")
def described(calm: Driven) -> Any:
    return calm.ask("GET", "//openapi.json", role=None).json


def test_every_reference_leads_somewhere(described: Any) -> None:
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(described)))
    assert names <= set(described["components"]["schemas"])
    assert "x-limen" not in json.dumps(described)


def test_every_operation_says_what_it_is_for_and_what_goes_wrong(described: Any) -> None:
    for path, methods in described["paths"].items():
        for method, told in methods.items():
            if method in ("parameters", "servers") or told["tags"] == ["health"]:
                continue
            assert told["summary"], path
            statuses = set(told["responses"])
            assert {"401", "403", "422"} <= statuses, path
            assert method not in ("put",) or {"400", "413"} <= statuses, path
            for status in statuses - {"200", "201"}:
                assert list(told["responses"][status]["content"]) == ["application/problem+json"]
            body = told.get("requestBody")
            if body:
                assert method in ("post", "put"), path


def test_decisions_are_at_the_data_plane_and_the_rest_at_the_control_plane(described: Any) -> None:
    assert [server["url"] for server in described["servers"]] == ["/"]
    for path, item in described["paths"].items():
        servers = [server["url"] for server in item.get("servers", [])]
        assert servers == (["http://127.0.0.1:8080"] if path.startswith("/v1/") else []), path
    assert "http://127.0.0.1:8080" in described["info"]["description"]


def test_the_page_lists_every_operation_and_needs_nothing_from_elsewhere(
    calm: Driven, described: Any
) -> None:
    answer = calm.ask("GET", "//docs", role=None)
    page = answer.body.decode()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert all(f"<code>{path}</code>" in page for path in described["paths"])
    assert "<script" not in page
    assert "<td>base</td><td></td><td>The newest version when the edit began" in page
    assert not re.search(r'(src|href)="(https?:)?//', page)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/rules", 200), ("GET", "/nothing", 404), ("PATCH", "/rules", 405)],
)
def test_every_answer_is_framed(calm: Driven, method: str, path: str, status: int) -> None:
    answer = calm.ask(method, path, headers={"x-request-id": "mine-7"})
    assert answer.status == status
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-request-id"] == "mine-7"
    if status != 200:
        assert answer.detail
        assert answer.json["instance"] == "urn:limen:mine-7"


def test_a_wrong_method_tells_all_the_right_ones(calm: Driven) -> None:
    assert calm.ask("POST", "/rules").headers["allow"] == "GET, PUT"
    assert calm.ask("DELETE", "/rules/validate").headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/rules/", "", "/", "//admin", "//docs/x", "//adminx"])
def test_what_is_not_there_is_not_found(calm: Driven, path: str) -> None:
    assert calm.ask("GET", path).status == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "expecting property name"),
        (b'{"on": NaN}', "NaN is not a number"),
        (b'{"on": true, "on": false}', "the key 'on' stands twice"),
        (b'{"comment": "\\ud800"}', "is half a letter"),
        (b"\xff", "not text in UTF-8"),
        (b"[" * 60_000, "nested too deep"),
        (b"[" * 60 + b"]" * 60, "nested deeper than 40 levels"),
        (b'{"on": ' + b"9" * 5_000 + b"}", "a number in it is too long"),
    ],
)
def test_what_is_no_json_is_a_bad_request(calm: Driven, body: bytes, said: str) -> None:
    answer = calm.ask("PUT", "/kill-switch", body)
    assert (answer.status, said in answer.detail) == (400, True), answer.detail


def test_a_body_is_json_whatever_it_says_it_is(calm: Driven) -> None:
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; x"):
        asked = b'{"attributes": {"user": "42"}}'
        answer = calm.ask("POST", "/keys/inspect", asked, headers={"content-type": kind})
        assert answer.status == 200


def test_a_body_that_is_too_long_is_not_read(calm: Driven) -> None:
    answer = calm.ask("PUT", "/rules", b" " * (16 * 2**20 + 1))
    assert answer.status == 413
    assert "16,777,216 bytes" in answer.detail


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("limit=0", "limit: "),
        ("limit=1001", "limit: "),
        ("limit=1_0", "limit: expected a whole number"),
        ("limit=1&limit=2", "the parameter 'limit' stands twice"),
        ("before=-1", "before: "),
        ("befor=1", "unknown parameter 'befor' in the query (did you mean 'before'?)"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(calm: Driven, query: str, said: str) -> None:
    answer = calm.ask("GET", f"/audit?{query}")
    assert (answer.status, said in answer.detail) == (422, True), answer.detail
