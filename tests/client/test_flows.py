"""What both clients share, without a service: which failures count, and when to leave it alone."""

from __future__ import annotations

import ssl

import pytest

from limen.backends.circuit_breaker import FAILURES
from limen.client import questions
from limen.client.http1 import Garbled
from limen.client.settings import away_of, validate
from limen.client.tickets import Away


@pytest.mark.parametrize(("proves", "is_asking"), [(True, False), (False, True)])
def test_only_a_call_that_had_its_time_tells_something_about_the_service(
    proves: bool, is_asking: bool
) -> None:
    desk = validate("http://localhost", None, 0.25, "local", 1, None).desk
    for _ in range(FAILURES):
        assert desk.is_asking()
        flow = desk.usage(questions.by_rules({}, peek=True))
        assert next(flow).path == "/v1/usage"
        with pytest.raises(StopIteration) as done:
            flow.throw(Away("timeout", "no answer in time", proves=proves))
        assert done.value.value.source == "open"
    assert desk.is_asking() is is_asking


@pytest.mark.parametrize(
    ("error", "had_s", "kind", "proves"),
    [
        (TimeoutError("timed out"), 0.25, "timeout", True),
        (TimeoutError("timed out"), 0.1, "timeout", False),
        (ConnectionRefusedError(111, "Connection refused"), 0.01, "connection", True),
        (ssl.SSLError("a handshake of another kind"), 0.01, "connection", True),
        (Garbled("the answer is not HTTP"), 0.01, "garbage", True),
    ],
)
def test_tells_what_went_wrong(error: Exception, had_s: float, kind: str, proves: bool) -> None:
    away = away_of(error, had_s, 0.25)
    assert (away.kind, away.proves) == (kind, proves)
