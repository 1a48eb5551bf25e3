"""A rolling restart of the product, under load: no request fails, and every count is exact."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from limen import Limiter, wire
from tests.server.product import Product, product
from tests.server.raw import Raw, request, until
from tests.servers import HOST, Server, binaries, process

WIDE, TIGHT = "10000/day", "400/day"
SECRET = "the same for all workers, 0123456789abcdef"


@pytest.fixture
def valkey() -> Iterator[Server]:
    with process(binaries()["valkey"]) as started:
        yield started


class Load:
    """Clients that ask on and on: some keep their connection, some take a new one each time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_over = threading.Event()
        self.asked: Counter[str] = Counter()
        self.allowed: Counter[str] = Counter()
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._threads = [
            *(threading.Thread(target=self._ask, args=(True,)) for _ in range(4)),
            *(threading.Thread(target=self._ask, args=(False,)) for _ in range(3)),
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
        until(lambda: self.total > before + 400 or bool(self.failures), 60)

    def _ask(self, keeps: bool) -> None:
        while not self._is_over.is_set():
            try:
                with Raw(self._port) as raw:
                    self._ask_on(raw, keeps)
            except Exception as error:  # whatever it is, it is a failed request
                self.failures.append(repr(error))

    def _ask_on(self, raw: Raw, keeps: bool) -> None:
        more = [] if keeps else ["Connection: close"]
        while not self._is_over.is_set():
            for limit in (WIDE, TIGHT):
                body = json.dumps({"key": f"load {limit}", "limits": limit}).encode()
                raw.send(request("/v1/check", *more, method="POST", body=body))
                response = raw.response()
                assert response.status == 200, response
                said = msgspec.json.decode(response.body, type=wire.Verdict)
                assert not said.degraded, said
                with self._lock:
                    self.asked[limit] += 1
                    self.allowed[limit] += said.allowed
                if response.closes:
                    return
            time.sleep(0.02)  # so that there is something left of a limit for the next worker


def test_a_rolling_restart_fails_no_request_and_counts_each(valkey: Server, tmp_path: Path) -> None:
    url = f"redis://{HOST}:{valkey.port}"
    flags = ("--store", url, "--workers", "2", "--log-format", "json")
    with product(tmp_path, *flags, store__deadline="5.0") as served:
        _wait_until_ready(served)
        kept = _reserve(served)
        with Load(served.port) as load:
            for round_ in (1, 2):
                old = served.workers
                served.signal(signal.SIGHUP)
                until(lambda: _replaced(served) == round_, 60)  # noqa: B023
                until(lambda: not set(served.workers) & set(old), 60)  # noqa: B023
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
    levels = {json.loads(line)["level"] for line in served.complained}
    assert levels <= {"info"}, served.complained


def _wait_until_ready(served: Product) -> None:
    until(lambda: served.ask("/readyz").status == 200, 30)
    until(lambda: len(served.workers) == 2)


def _replaced(served: Product) -> int:
    assert not served.has_ended, served.complained
    return sum("all workers were replaced" in line for line in served.complained)


def _reserve(served: Product) -> str:
    body = {"key": "kept", "limits": "10/day"}
    response = served.ask("/v1/check", method="POST", body=body)
    receipt: str = json.loads(response.body)["receipt"]
    return receipt
