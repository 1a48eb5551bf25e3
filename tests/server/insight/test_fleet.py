"""What the whole product tells of itself: sums that survive a worker, sizes that survive any number
of keys, and one key that floods, found and told.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.server.product import Product, product
from tests.server.raw import Raw, request
from tests.servers import HOST, Server
from tests.waiting import FULL, wait_until

ADMIN = "canary-admin-token-0123456789abcdef"
SECRET = "canary-webhook-secret-0123456789"
RULES = """
rules:
  - name: per-user
    key: user
    limits: {limits}
"""
LISTS = 100 if FULL else 40
"""A thousand keys in each."""
CALM = LISTS * 3 // 10
"""In so many of them there is no flood yet."""
FLOOD = 1_000 * (LISTS - CALM)
_SUM = re.compile(r'^limen_requests_total\{outcome="(allowed|denied)"\} ([0-9.e+]+)$', re.MULTILINE)


@contextmanager
def serving(folder: Path, valkey: Server | None, limits: str, **settings: str) -> Iterator[Product]:
    """Start the product with one rule: with a store two workers, and without one."""
    (folder / "rules.yaml").write_text(RULES.format(limits=limits))
    flags = ["--rules", str(folder / "rules.yaml"), "--log-format", "json"]
    if valkey is not None:
        flags += ["--store", f"redis://{HOST}:{valkey.port}", "--workers", "2"]
    given = {"auth__admin_token": ADMIN, "store__deadline": "5.0", **settings}
    with product(folder, *flags, **given) as served:
        wait_until(lambda: served.ask("/readyz").status == 200, 30)
        if valkey is not None:
            wait_until(lambda: len(served.workers) == len(pids(served)) == 2, 30)
        yield served


def told(served: Product, path: str) -> Any:
    """Ask the administration, by a connection of its own."""
    answer = served.ask(f"/admin/v1{path}", f"Authorization: Bearer {ADMIN}")
    assert answer.status == 200, answer
    return json.loads(answer.body)


def pids(served: Product) -> set[int]:
    """Return the processes that tell of themselves and are there."""
    return {one["pid"] for one in told(served, "/instances")["instances"]} & set(served.workers)


def ask(raw: Raw, users: list[str]) -> None:
    """Ask for decisions, all in one list."""
    body = json.dumps([{"attributes": {"user": user}} for user in users]).encode()
    raw.send(request("/v1/check", method="POST", body=body))
    assert raw.response().status == 200


def metrics(served: Product) -> str:
    return served.ask("/metrics").body.decode()


def asked_in_all(served: Product) -> set[int]:
    """Return the sums that are told, whichever worker is asked: all of them should be the same."""
    sums = {sum(int(float(number)) for _, number in _SUM.findall(metrics(served))) for _ in "x" * 6}
    for _ in range(6):
        requests = told(served, "/insight?window=300")["requests"]
        sums.add(requests["allowed"] + requests["denied"])
    return sums


def test_sums_are_of_all_workers_and_stay_when_one_is_killed(
    valkey: Server, tmp_path: Path
) -> None:
    with serving(tmp_path, valkey, "10/day") as served:
        asked = until_both_have_answered(served, "often", "often", "often")
        wait_until(lambda: asked_in_all(served) == {asked})
        before = set(told(served, "/insight?window=300")["instances"])

        killed = min(pids(served))
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: killed not in served.workers)
        assert asked_in_all(served) == {asked}
        wait_until(lambda: len(served.workers) == len(pids(served)) == 2, 30)
        assert asked_in_all(served) == {asked}

        asked += until_both_have_answered(served, "again")
        wait_until(lambda: asked_in_all(served) == {asked})
        wait_until(lambda: before < set(told(served, "/insight?window=300")["instances"]))
        found = told(served, "/insight?window=300")
        denied = found["requests"]["denied"]
        assert found["top_denied"][0]["key"] == "user=often"
        assert found["rules"][0]["denied"] == denied > 0
        line = f'limen_decisions_total{{outcome="denied",rule="per-user"}} {denied}.0'
        assert {line in metrics(served) for _ in range(6)} == {True}


def until_both_have_answered(served: Product, *users: str) -> int:
    """Ask by many connections, until each worker has decided something; return how often."""
    asked, before = 0, decisions(served)

    def have_both() -> bool:
        nonlocal asked
        with connections(served.port) as raws:
            for raw in raws:
                ask(raw, [f"user {asked}", *users])
                asked += 1 + len(users)
        now = decisions(served)
        return all(now[pid] > before[pid] for pid in served.workers)

    wait_until(have_both)
    return asked


def decisions(served: Product) -> dict[int, int]:
    """Return the number of decisions of each worker, by process id."""
    by_pid = dict[int, int]()

    def have_all() -> bool:
        with connections(served.admin_port) as raws:
            for raw in raws:
                raw.send(request("/admin/v1/stats", f"Authorization: Bearer {ADMIN}"))
                stats = json.loads(raw.response().body)
                by_pid[stats["pid"]] = stats["allowed"] + stats["refused"]
        return set(by_pid) == set(served.workers)

    wait_until(have_all)
    return by_pid


@contextmanager
def connections(port: int) -> Iterator[list[Raw]]:
    """Open ten connections at the same time, so that both workers accept some of them."""
    with ExitStack() as stack:
        yield [stack.enter_context(Raw(port)) for _ in range(10)]


@pytest.mark.slow
def test_any_number_of_keys_makes_neither_more_series_nor_more_memory(tmp_path: Path) -> None:
    with serving(tmp_path, None, "1000/second") as served, Raw(served.port, timeout=30) as raw:

        def ask_many(start: int, lists: int) -> None:
            for number in range(start, start + lists):
                ask(raw, [f"user {number} {place}" for place in range(1_000)])

        first, more = (80, 140) if FULL else (80, 80)
        ask_many(0, first)
        series, size = _series(served), _resident(served)
        ask_many(first, more)
        assert _series(served) == series < 150
        assert (_resident(served) - size) / 2**20 < 8
        assert _sum_of(served) == 1_000 * (first + more)
        found = wait_until(lambda: _keys(served))
        assert found["keys"] > 1_000
        assert f"user {first + more - 1} 999" not in metrics(served)


def _series(served: Product) -> int:
    return sum(1 for line in metrics(served).splitlines() if line and line[0] != "#")


def _resident(served: Product) -> int:
    status = Path(f"/proc/{served.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def _sum_of(served: Product) -> int:
    return sum(int(float(number)) for _, number in _SUM.findall(metrics(served)))


def _keys(served: Product) -> Any:
    rules = told(served, "/insight?window=300")["rules"]
    return rules[0] if rules else None


class Load:
    """Thousands of keys, and from some moment on one that comes as often as all others."""

    def __init__(self, served: Product) -> None:
        self._served = served
        self._next = iter(range(LISTS))
        self._lock = threading.Lock()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(3)]
        self.is_bursting = threading.Event()

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(60)
        assert not self._failures, self._failures

    @property
    def is_over(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        try:
            with Raw(self._served.port, timeout=30) as raw:
                while True:
                    with self._lock:
                        number = next(self._next, None)
                    if number is None:
                        return
                    if number >= CALM:
                        self.is_bursting.set()
                        ask(raw, ["flood"] * 1_000)
                    # Some others are refused too.
                    others = [f"often {place % 10}" for place in range(50)]
                    ask(raw, [f"user {number} {place}" for place in range(1_000)] + others)
        except BaseException as error:
            self._failures.append(error)


@contextmanager
def webhook() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A server that takes every POST; yields its address, and the signature and body of each."""
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.headers["limen-signature"], body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((HOST, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/hook", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _alerts(served: Product, state: str) -> list[Any]:
    alerts: list[Any] = told(served, "/alerts")[state]
    return [one for one in alerts if (one["kind"], one["rule"]) == ("key", "per-user")]


@pytest.mark.slow
def test_one_key_that_floods_is_found_among_many_and_told_from_begin_to_end(
    valkey: Server, tmp_path: Path
) -> None:
    with webhook() as (url, got):
        settings = {
            "alerts__webhook": url,
            "alerts__webhook_secret": SECRET,
            "alerts__webhook_private": "true",
            # What is slow on a busy machine is not what this is about.
            "alerts__store_latency": "0",
            "alerts__fallback_share": "0",
            "alerts__key_share": "0.3",
            "http__max_batch": "2000",
        }
        with serving(tmp_path, valkey, "3/minute", **settings) as served:
            with Load(served) as load:
                assert load.is_bursting.wait(30)
                wait_until(lambda: _first(served, 10)["key"] == "user=flood")
                alert = wait_until(lambda: _alerts(served, "open"))[0]
                assert alert["top"][0][0] == "user=flood"
            wait_until(lambda: _first(served, 60)["count"] >= FLOOD - 10)
            first = _first(served, 60)
            assert (first["rule"], first["key"]) == ("per-user", "user=flood")
            assert first["count"] <= FLOOD + first["at_most_too_high"]
            found = wait_until(
                lambda: [] if _alerts(served, "open") else _alerts(served, "ended"), 40
            )
            assert found[0]["ended"] > found[0]["started"]
            messages = wait_until(lambda: len(_told_of(got)) >= 2 and _told_of(got))
            assert messages == ["began", "ended"]
            lines = [json.loads(line) for line in served.complained]
        logged = [
            line["message"] for line in lines if re.match(r"alert \w+: one key", line["message"])
        ]
        assert [line.split(":")[0] for line in logged] == ["alert began", "alert ended"]
        assert "flood" not in "".join(served.complained)
        for signature, body in got:
            _verify(signature, body)


def _first(served: Product, window: int) -> Any:
    """Return who is refused most often."""
    found = told(served, f"/insight?window={window}")["top_denied"]
    return found[0] if found else {"key": None}


def _told_of(got: list[tuple[str, bytes]]) -> list[str]:
    """Return what the webhook was told of the key that floods, in order."""
    return [
        change
        for _, body in list(got)
        for change in ("began", "ended")
        for one in json.loads(body)[change]
        if one["kind"] == "key"
    ]


def _verify(signature: str, body: bytes) -> None:
    found = re.fullmatch(r"t=(\d+),v1=([0-9a-f]{64})", signature)
    assert found
    signed = hmac.new(SECRET.encode(), found[1].encode() + b"." + body, hashlib.sha256)
    assert hmac.compare_digest(signed.hexdigest(), found[2])


class Trickle:
    """About 200 requests a second, in lists of 20 by a new connection each, to both workers."""

    def __init__(self, served: Product) -> None:
        self._served = served
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Trickle:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            with Raw(self._served.port, timeout=30) as raw:
                ask(raw, [f"user {place}" for place in range(20)])


@pytest.mark.slow
def test_an_outage_of_the_store_is_one_alert_which_ends_when_the_store_is_back(
    valkey: Server, tmp_path: Path
) -> None:
    settings = {"store__deadline": "0.25", "alerts__store_latency": "0.2", "alerts__key_share": "0"}
    with serving(tmp_path, valkey, "5000/second", **settings) as served, Trickle(served):
        valkey.pause()
        wait_until(lambda: all(told(served, "/alerts")["open"] for _ in range(6)))
        back = time.time() + 2

        def ends() -> bool:
            """Ask both workers: none shows two alerts, or an end before the store is back."""
            answers = [told(served, "/alerts") for _ in range(6)]
            is_away = time.time() < back
            for answer in answers:
                assert len(answer["open"]) <= 1, answer
                assert not (is_away and answer["ended"]), answer
            return all(answer["ended"] and not answer["open"] for answer in answers)

        while time.time() < back:
            assert not ends()
            time.sleep(0.2)
        valkey.resume()
        wait_until(ends, 40)
        # The answers before may have come from one worker, and this one from the other.
        (ended,) = wait_until(lambda: told(served, "/alerts")["ended"])
    assert ended["kind"] == "fallback"
    assert ended["ended"] > back
    logged = [json.loads(line) for line in served.complained]
    changes = [line for line in logged if line["logger"] == "limen.alerts"]
    assert [line["message"].split(":")[0] for line in changes] == ["alert began", "alert ended"]
    assert {line["alert"] for line in changes} == {ended["id"]}
