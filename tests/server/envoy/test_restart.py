"""Workers on one gRPC port, replaced under load: no call fails, and every count is exact."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import grpc

from limen.server.envoy.schema import SHOULD_RATE_LIMIT, RateLimitResponse
from tests.server.envoy.describing import OK, described, request
from tests.server.hammering import Load
from tests.server.product import Product, product
from tests.servers import HOST, Server
from tests.waiting import wait_until

RULES = """
rules:
  - {name: wide, match: {domain: d, descriptor: wide}, key: [wide], limits: 9000/day}
  - {name: tight, match: {domain: d, descriptor: tight}, key: [tight], limits: 300/day}
"""
ASKED = {name: request({name: "x"}).SerializeToString() for name in ("wide", "tight")}
BOTH = request({"wide": "x"}, {"tight": "x"}).SerializeToString()
LOOK = request(described({"wide": "x"}, 0), described({"tight": "x"}, 0)).SerializeToString()


def calling(port: int) -> tuple[grpc.Channel, Any]:
    # A pool of its own: else all channels would share one connection, and one worker.
    channel = grpc.insecure_channel(
        f"{HOST}:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
    )
    path = SHOULD_RATE_LIMIT.decode()
    return channel, channel.unary_unary(path, request_serializer=None, response_deserializer=None)


def asking(port: int) -> Load:
    """Return clients: some keep their channel, some take a new one now and then."""

    def ask(load: Load, keeps: bool) -> None:
        channel, call = calling(port)
        with channel:
            for _ in range(10**9 if keeps else 20):
                if load.is_over:
                    return
                for names, raw in ((["wide"], ASKED["wide"]), (["wide", "tight"], BOTH)):
                    found = RateLimitResponse.FromString(call(raw, timeout=20))
                    assert all(status.HasField("current_limit") for status in found.statuses), found
                    load.count(names, found.overall_code == OK)
                time.sleep(0.01)

    return Load(ask, keeping=4, changing=2, steps=300)


def test_a_rolling_restart_fails_no_call_and_counts_each(valkey: Server, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    url = f"redis://{HOST}:{valkey.port}"
    flags = ("--store", url, "--workers", "2", "--log-format", "json", "--rules", str(rules))
    settings = {"store__deadline": "5.0", "gateway__deadline": "5.0"}
    with product(tmp_path, *flags, **settings) as served:
        wait_until(lambda: served.ask("/readyz").status == 200, 30)
        wait_until(lambda: len(served.workers) == 2)
        port = served.grpc_port
        with asking(port) as load:
            old = served.workers
            served.signal(signal.SIGHUP)
            wait_until(lambda: _is_replaced(served), 60)
            wait_until(lambda: not set(served.workers) & set(old), 60)
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
    lines = [json.loads(line) for line in served.complained]
    # That much is refused, it tells; that is what it is for.
    levels = {line["level"] for line in lines if line["logger"] != "limen.alerts"}
    assert levels <= {"info"}, served.complained


def _is_replaced(served: Product) -> bool:
    assert not served.has_ended, served.complained
    return any("all workers were replaced" in line for line in served.complained)
