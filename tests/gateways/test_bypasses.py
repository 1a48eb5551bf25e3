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
