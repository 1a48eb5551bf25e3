"""What both clients share, without a service: which failures count, and when to leave it alone."""

from __future__ import annotations

import ssl
import time
from typing import Any

import pytest

from limen import flow
from limen._internal.connection_pool import AllInUse, NotConnected, PoolClosed
from limen._internal.http1 import Garbled
from limen.backends import Fault
from limen.backends.circuit_breaker import FAILURES
from limen.client import questions
from limen.client.flows import ClientFlows, fault_of, late
from limen.client.settings import validate

TIMEOUT_S = 0.2


@pytest.mark.parametrize(
    ("fault", "took_s", "leaves_alone"),
    [
        (late(unsent=False), 0.12, True),
        (late(unsent=False), 0.0, False),
        (late(unsent=True), 0.12, False),
        (Fault("connection", "connection refused"), 0.0, True),
        (fault_of(NotConnected(PoolClosed("closed"))), 0.12, False),
    ],
    ids=["had its time", "had little time", "had no connection", "refused", "client closed"],
)
def test_only_a_call_that_had_its_time_tells_something_about_the_service(
    fault: Fault, took_s: float, leaves_alone: bool
) -> None:
    sent = 0

    def send(_: Any) -> Fault:
        nonlocal sent
        sent += 1
        time.sleep(took_s)
        return fault

    settings = validate("http://localhost", None, TIMEOUT_S, "local", 1, None)
    flows = ClientFlows(settings, None, lambda _: fault, lambda: send)
    for _ in range(FAILURES + 1):
        verdict = flow.run(flows.usage(questions.by_rules({}, peek=True)))
        assert verdict.source == "open"
    assert sent == FAILURES + (not leaves_alone)


@pytest.mark.parametrize(
    ("error", "kind", "unsent"),
    [
        (TimeoutError("timed out"), "timeout", False),
        (NotConnected(TimeoutError("timed out")), "timeout", False),
        (NotConnected(AllInUse()), "timeout", True),
        (NotConnected(PoolClosed("the limiter was closed")), "connection", True),
        (ConnectionRefusedError(111, "Connection refused"), "connection", False),
        (ssl.SSLError("a handshake of another kind"), "connection", False),
        (Garbled("the answer is not HTTP"), "protocol", False),
    ],
)
def test_tells_what_went_wrong(error: Exception, kind: str, unsent: bool) -> None:
    fault = fault_of(error)
    assert (fault.kind, fault.unsent) == (kind, unsent)
