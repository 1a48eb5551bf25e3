"""Verdicts whose gateway did not wait for them are counted apart: through real sockets."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from limen.server.envoy.schema import SHOULD_RATE_LIMIT
from tests.server.envoy.describing import request as described
from tests.server.product import Product, product
from tests.server.raw import Raw, request
from tests.waiting import wait_until

RULES = """
rules:
  - {name: address, key: [ip], limits: 2/day}
  - {name: user, match: {domain: d}, key: [user], limits: 2/day}
"""
ASK = ("X-Forwarded-For: 203.0.113.9", "X-Forwarded-Method: GET", "X-Forwarded-Uri: /")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Product]:
    (tmp_path / "rules.yaml").write_text(RULES)
    with product(tmp_path, rules="rules.yaml") as started:
        assert started.ask("/v1/auth", *ASK).status == 200
        yield started


@contextmanager
def frozen(served: Product) -> Iterator[None]:
    """Hold the service up for longer than a gateway waits."""
    stopped = [served.pid, *served.workers]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in stopped:
            os.kill(pid, number)
        if number == signal.SIGSTOP:
            yield


def undelivered(served: Product, surface: str) -> tuple[int, int]:
    """Return how many verdicts that allow, and how many that deny, were not delivered."""
    lines = dict(
        line.rsplit(" ", 1)
        for line in served.ask("/metrics").body.decode().splitlines()
        if line.startswith("limen_undelivered_decisions_total")
    )
    name = 'limen_undelivered_decisions_total{outcome="%s",surface="%s"}'
    allowed, denied = (lines[name % (outcome, surface)] for outcome in ("allowed", "denied"))
    return int(float(allowed)), int(float(denied))


def test_verdict_is_counted_if_the_gateway_has_closed_the_connection(served: Product) -> None:
    assert undelivered(served, "auth") == (0, 0)
    with frozen(served):
        for _ in range(3):
            with Raw(served.port) as gateway:
                gateway.send(request("/v1/auth", *ASK))
    wait_until(lambda: undelivered(served, "auth") == (1, 2))


def test_verdict_is_counted_if_envoy_has_given_up_the_call(served: Product) -> None:
    raw = described({"user": "1"}).SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        call: Any = channel.unary_unary(SHOULD_RATE_LIMIT.decode())
        call(raw, timeout=10)
        assert undelivered(served, "envoy") == (0, 0)
        with frozen(served):
            for _ in range(2):
                with pytest.raises(grpc.RpcError):
                    call(raw, timeout=0.1)
        wait_until(lambda: undelivered(served, "envoy") == (1, 1))
