"""Spellings of a request that the application takes for the same one do not bypass a limit.

Each test sends the request through a real gateway, with the files of `examples/gateways`.
"""

from __future__ import annotations

import uuid

import pytest

from tests.gateways.app import Answer
from tests.gateways.gateways import WRITES_PER_KEY, Gateway
from tests.gateways.places import new_address


def write(gateway: Gateway, *keys: str) -> Answer:
    """Send a write from a new address, with an X-Api-Key line for each of the keys."""
    headers = [("X-Api-Key", key) for key in keys]
    return gateway.ask("/orders", *headers, of=new_address(), method="POST")


def reached(answers: list[Answer]) -> int:
    """Return the number of requests that reached the application."""
    return sum("x-app" in answer.headers for answer in answers)


@pytest.fixture
def key(gateway: Gateway) -> str:
    """Return a key whose limit is not used yet."""
    return f"{gateway}-{uuid.uuid4()}"


SPACES = ("\t", "\t\t", " ", " \t", "\t ", "\t \t")


def test_whitespace_around_a_key_does_not_make_a_new_key(gateway: Gateway, key: str) -> None:
    values = [key + space for space in SPACES]
    values += [space + key for space in SPACES]
    values += [f"{space}{key}{space}" for space in SPACES]
    answers = [write(gateway, value) for value in values]
    assert reached(answers) == WRITES_PER_KEY
    assert {answer.status for answer in answers} == {200, 429}


def test_repeated_key_headers_are_refused(gateway: Gateway, key: str) -> None:
    assert reached([write(gateway, key) for _ in range(WRITES_PER_KEY)]) == WRITES_PER_KEY
    listed = [f"{key}, junk", f"junk,{key}", f"{key},", f",{key}", f"{key}\t,\tjunk"]
    answers = [write(gateway, value) for value in listed]
    assert [answer.problem["status"] for answer in answers] == [400] * len(listed)
    repeated = [(key, "junk"), ("junk", key), (key, key), (key, "junk", "more"), ("a,b", key)]
    answers = [write(gateway, *values) for values in repeated]
    if gateway.kind.is_grpc:
        # Envoy counts the first line. The application must not see another.
        lines = [answer.reached["lines"] for answer in answers if "x-app" in answer.headers]
        assert [[value for name, value in each if name == "x-api-key"] for each in lines] == [
            ["junk"]
        ]
        return
    assert [answer.problem["status"] for answer in answers] == [400] * len(repeated)
    if gateway.kind.bodies:
        assert "X-Api-Key header is repeated" in answers[0].problem["detail"]


def test_an_empty_line_beside_a_key_does_not_make_a_new_key(gateway: Gateway, key: str) -> None:
    assert reached([write(gateway, key) for _ in range(WRITES_PER_KEY)]) == WRITES_PER_KEY
    answers = [write(gateway, key, ""), write(gateway, key, " "), write(gateway, key, "\t")]
    assert reached(answers) == 0
    # Some gateways remove an empty line. The key that is left has no requests left.
    assert {answer.status for answer in answers} <= {400, 429}


def test_keys_that_are_not_utf_8_are_counted_apart(gateway: Gateway, key: str) -> None:
    for byte in ("\x85", "\xfe", "\xff", "!"):
        answers = [write(gateway, key + byte) for _ in range(WRITES_PER_KEY + 1)]
        assert [answer.status for answer in answers] == [200] * WRITES_PER_KEY + [429]
        assert answers[0].reached["headers"]["x-api-key"] == key + byte


SPELLINGS = (
    *("/internal;x/a", "/internal;x", "/;/internal/a", "/;x/internal/a", "/internal;x=1;y=2/a;z"),
    *("/internal%3bx/a", "/internal%3Bx", "/%3b/internal/a", "//;//internal//a"),
    *("/x/..;/internal/a", "/x/..;y/internal/a", "/x/..%3b/internal/a", "/.;/internal/a"),
    *("/x/%2e%2e;/internal/a", "/x/%2e%2e%3b/internal/a", "/x/.%2e%3B/internal/a"),
    *("/internal\\a", "/x\\..\\internal\\a", "/x/..\\internal/a", "/\\internal", "/.\\internal"),
    *("/internal%5ca", "/internal%5Ca", "/x%5c..%5cinternal%5ca", "/x/%2e%2e%5cinternal;y\\a"),
)


def test_path_parameters_and_backslashes_do_not_bypass_a_rule(auth_gateway: Gateway) -> None:
    client = new_address()
    for path in SPELLINGS:
        # Some gateways redirect to the normal path, or refuse the request themselves.
        answer = auth_gateway.ask(path, of=client)
        assert answer.status in (auth_gateway.kind.blocked, 307, 400), path
        assert "x-app" not in answer.headers


AMBIGUOUS = (
    *("/internal;x=%2f..%2fpublic/a", "/internal;x%5c..%5c../a", "/a%3bx%2F..%2F../b"),
    *("/internal/a%2f..%2f..%2fpublic", "/internal/a%5c..%5c..%5cpublic"),
)


def test_an_ambiguous_path_is_refused(auth_gateway: Gateway) -> None:
    client = new_address()
    for path in AMBIGUOUS:
        answer = auth_gateway.ask(path, of=client)
        assert answer.status in (307, 400), path
        assert "x-app" not in answer.headers
