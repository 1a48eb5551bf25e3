"""Workers on one gRPC port, replaced under load: no call fails, and every count is exact."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from limen.server.envoy.schema import SHOULD_RATE_LIMIT, RateLimitResponse
from tests.server.envoy.describing import OK, described, request
from tests.server.product import Product, product
from tests.server.raw import until
from tests.servers import HOST, Server, binaries, process

RULES = """
rules:
  - {name: wide, match: {domain: d, descriptor: wide}, key: [wide], limits: 9000/day}
  - {name: tight, match: {domain: d, descriptor: tight}, key: [tight], limits: 300/day}
"""
ASKED = {name: request({name: "x"}).SerializeToString() for name in ("wide", "tight")}
BOTH = request({"wide": "x"}, {"tight": "x"}).SerializeToString()
LOOK = request(described({"wide": "x"}, 0), described({"tight": "x"}, 0)).SerializeToString()


@pytest.fixture
def valkey() -> Iterator[Server]:
    with process(binaries()["valkey"]) as started:
        yield started


def calling(port: int) -> tuple[grpc.Channel, Any]:
    # A pool of its own: else all channels would share one connection, and one worker.
    channel = grpc.insecure_channel(
        f"{HOST}:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
    )
    path = SHOULD_RATE_LIMIT.decode()
    return channel, channel.unary_unary(path, request_serializer=None, response_deserializer=None)


class Load:
    """Clients that ask on and on: some keep their channel, some take a new one now and then."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_over = threading.Event()
        self.asked: Counter[str] = Counter()
        self.allowed: Counter[str] = Counter()
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._threads = [
            *(threading.Thread(target=self._ask, args=(10**9,)) for _ in range(4)),
            *(threading.Thread(target=self._ask, args=(20,)) for _ in range(2)),
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        until(lambda: self.total > 100 or bool(self.failures))
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(30)

    @property
    def total(self) -> int:
        return sum(self.asked.values())

    def goes_on(self) -> None:
        """Wait until many more have been answered."""
        before = self.total
        until(lambda: self.total > before + 300 or bool(self.failures), 60)

    def _ask(self, most: int) -> None:
        while not self._is_over.is_set():
            channel, call = calling(self._port)
            try:
                for _ in range(most):
                    if self._is_over.is_set():
                        break
                    self._ask_each(call)
                    time.sleep(0.01)
            except Exception as error:  # whatever it is, it is a failed call
                self.failures.append(repr(error))
                return
            finally:
                channel.close()

    def _ask_each(self, call: Any) -> None:
        for names, raw in ((["wide"], ASKED["wide"]), (["wide", "tight"], BOTH)):
            found = RateLimitResponse.FromString(call(raw, timeout=20))
            assert all(status.HasField("current_limit") for status in found.statuses), found
            allowed = found.overall_code == OK
            with self._lock:
                for name in names:
                    self.asked[name] += 1
                    self.allowed[name] += allowed


def test_a_rolling_restart_fails_no_call_and_counts_each(valkey: Server, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    url = f"redis://{HOST}:{valkey.port}"
    flags = ("--store", url, "--workers", "2", "--log-format", "json", "--rules", str(rules))
    settings = {"store__deadline": "5.0", "gateway__deadline": "5.0"}
    with product(tmp_path, *flags, **settings) as served:
        until(lambda: served.ask("/readyz").status == 200, 30)
        until(lambda: len(served.workers) == 2)
        port = served.grpc_port
        with Load(port) as load:
            old = served.workers
            served.signal(signal.SIGHUP)
            until(lambda: _is_replaced(served), 60)
            until(lambda: not set(served.workers) & set(old), 60)
            load.goes_on()
        assert load.failures == []
        channel, call = calling(port)
        with channel:
            found = RateLimitResponse.FromString(call(LOOK, timeout=10))
        served.signal(signal.SIGTERM)
        assert served.code() == 0
    assert load.asked["tight"] > 300
    left = [status.limit_remaining for status in found.statuses]
    assert left == [9_000 - load.allowed["wide"], 300 - load.allowed["tight"]]
    assert load.allowed["tight"] == 300
    levels = {json.loads(line)["level"] for line in served.complained}
    assert levels <= {"info"}, served.complained


def _is_replaced(served: Product) -> bool:
    assert not served.has_ended, served.complained
    return any("all workers were replaced" in line for line in served.complained)
