"""A rolling restart of the product, under load: no request fails, and every count is exact."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import msgspec

from limen import Limiter, wire
from tests.server.hammering import Load
from tests.server.product import Product, product
from tests.server.raw import Raw, request
from tests.servers import HOST, Server
from tests.waiting import wait_until

WIDE, TIGHT = "10000/day", "400/day"
SECRET = "the same for all workers, 0123456789abcdef"


def asking(port: int) -> Load:
    """Return clients: some keep their connection, some take a new one each time."""

    def ask(load: Load, keeps: bool) -> None:
        more = [] if keeps else ["Connection: close"]
        with Raw(port) as raw:
            while not load.is_over:
                for limit in (WIDE, TIGHT):
                    body = json.dumps({"key": f"load {limit}", "limits": limit}).encode()
                    raw.send(request("/v1/check", *more, method="POST", body=body))
                    response = raw.response()
                    assert response.status == 200, response
                    said = msgspec.json.decode(response.body, type=wire.Verdict)
                    assert not said.degraded, said
                    load.count([limit], said.allowed)
                    if response.closes:
                        return
                time.sleep(0.02)  # so that there is something left of a limit for the next worker

    return Load(ask, keeping=4, changing=3, steps=400)


def test_a_rolling_restart_fails_no_request_and_counts_each(valkey: Server, tmp_path: Path) -> None:
    url = f"redis://{HOST}:{valkey.port}"
    flags = ("--store", url, "--workers", "2", "--log-format", "json")
    with product(tmp_path, *flags, store__deadline="5.0") as served:
        _wait_until_ready(served)
        kept = _reserve(served)
        with asking(served.port) as load:
            for round_ in (1, 2):
                old = served.workers
                served.signal(signal.SIGHUP)
                wait_until(lambda: _replaced(served) == round_, 60)  # noqa: B023
                wait_until(lambda: not set(served.workers) & set(old), 60)  # noqa: B023
                load.goes_on()
        assert load.failures == []
        # What the first workers wrote, the last ones read.
        body = {"receipt": kept, "actual": 3}
        assert served.ask("/v1/settle", method="POST", body=body).body == b'{"changed":true}'
        served.signal(signal.SIGTERM)
        assert served.code() == 0
    assert load.asked[TIGHT] > 400
    with Limiter(url) as limiter:
        wide, tight = (limiter.peek(f"load {each}", each) for each in (WIDE, TIGHT))
        assert not wide.degraded
        assert wide.remaining == 10_000 - load.allowed[WIDE]
        assert tight.remaining == 400 - load.allowed[TIGHT]
        assert limiter.peek("kept", "10/day").remaining == 7
    assert load.allowed[WIDE] == min(10_000, load.asked[WIDE])
    assert load.allowed[TIGHT] == min(400, load.asked[TIGHT])
    assert not [line for line in served.complained if "traceback" in line.lower()]
    lines = [json.loads(line) for line in served.complained]
    # That much is refused, it tells; that is what it is for.
    levels = {line["level"] for line in lines if line["logger"] != "limen.alerts"}
    assert levels <= {"info"}, served.complained


def _wait_until_ready(served: Product) -> None:
    wait_until(lambda: served.ask("/readyz").status == 200, 30)
    wait_until(lambda: len(served.workers) == 2)


def _replaced(served: Product) -> int:
    assert not served.has_ended, served.complained
    return sum("all workers were replaced" in line for line in served.complained)


def _reserve(served: Product) -> str:
    body = {"key": "kept", "limits": "10/day"}
    response = served.ask("/v1/check", method="POST", body=body)
    receipt: str = json.loads(response.body)["receipt"]
    return receipt
