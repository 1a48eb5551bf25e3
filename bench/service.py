"""The service: `POST /v1/check` on one worker, beside the same HTTP server with a constant.

Who asks, who answers and the store are processes of their own on one machine. The servers take
turns, block by block, and in each round a ratio is taken between neighbours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

from tests.servers import free_port

from bench import server
from bench.harness import BenchError, Target, rotated
from bench.load import Seen
from bench.report import table

MATCHING = (1, 3, 10)
CONSTANT, MEMORY, TRACED = 0, -1, -2
TARGETS = {
    MEMORY: Target(3, 2, less_is_better=True),
    1: Target(4, 3, less_is_better=True),
}
"""How many times the CPU of the constant a check may take."""
CLIENTS = 64
LISTED = 100
_ROUNDS, _QUICK_ROUNDS = 7, 2
_SECONDS, _QUICK_SECONDS = 1.5, 0.5
_PATIENCE_S = 30.0
_NAMES = {
    MEMORY: "1 matching rule, memory",
    1: "1 matching rule, Redis",
    TRACED: "the same, with request id and trace",
    3: "3 matching rules, Redis",
    10: "10 matching rules, Redis",
}
Name = TypeVar("Name")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Block:
    """One turn of one server."""

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """What the server's process spent for one answer, in its own code and in the kernel."""
    store_us: float = 0.0
    """What the store's process spent for it."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A server that runs."""

    port: int
    pid: int
    store: int | None = None
    """The process of the store, if it has one."""
    is_traced: bool = False
    """Whether each request has an id and a trace of its own."""
    admin_port: int | None = None
    """The port of the control plane, if it is on."""

    def block(self, seconds: float, listed: int = 0) -> Block:
        """Let a crowd ask for a while."""
        pids = (self.pid,) if self.store is None else (self.pid, self.store)
        before = [cpu_s(pid) for pid in pids]
        arguments = ["--clients", str(CLIENTS if not listed else 4), "--list", str(listed)]
        arguments += ["--traced"] if self.is_traced else []
        seen = load(self.port, seconds, *arguments)
        spent = [cpu_s(pid) - then for pid, then in zip(pids, before, strict=True)]
        if seen.failed or not seen.answers:
            raise BenchError(f"{seen.failed} of {seen.answers} answers were no answers")
        answers = seen.answers * max(1, listed)
        each_us = [1e6 * seconds / answers for seconds in spent]
        return Block(answers / seen.seconds, seen.p50_ms, seen.p99_ms, *each_us)


def run(quick: bool, say: Callable[[str], None]) -> str:
    """Measure; return the tables."""
    rounds, seconds = (_QUICK_ROUNDS, _QUICK_SECONDS) if quick else (_ROUNDS, _SECONDS)
    with server.started() as redis, TemporaryDirectory() as folder, ExitStack() as stack:
        say(f"service: {CLIENTS} connections on one worker, {', '.join(map(str, MATCHING))} rules")
        contenders = {CONSTANT: stack.enter_context(_constant())}
        contenders[MEMORY] = stack.enter_context(_service(Path(folder) / "memory", 1, "memory://"))
        for number in MATCHING:
            place = Path(folder) / str(number)
            started = stack.enter_context(_service(place, number, redis.url))
            contenders[number] = replace(started, store=redis.pid)
        contenders[TRACED] = replace(contenders[1], is_traced=True)
        blocks = measure(contenders, rounds, seconds)
        say(f"service: lists of {LISTED}")
        lists = [contenders[1].block(seconds, LISTED) for _ in range(rounds)]
    return service_table(blocks, lists)


class Asked(Protocol):
    """Whoever can be asked for a while."""

    def block(self, seconds: float) -> Block:
        """Let a crowd ask for a while."""


def measure(
    contenders: Mapping[Name, Asked], rounds: int, seconds: float
) -> dict[Name, list[Block]]:
    """Let the servers take turns; one round is run before, and forgotten."""
    blocks: dict[Name, list[Block]] = {name: [] for name in contenders}
    for round_ in range(rounds + 1):
        for name in rotated(list(contenders), round_):
            block = contenders[name].block(seconds)
            if round_:
                blocks[name].append(block)
    return blocks


def service_table(blocks: Mapping[int, Sequence[Block]], lists: Sequence[Block]) -> str:
    """Return what was measured."""
    constant = blocks[CONSTANT]
    rows = [["a constant", *figures(constant), "", "", "", ""]]
    for number, name in _NAMES.items():
        ratio = median(_ratios(blocks[number], constant))
        store_us = median(block.store_us for block in blocks[number])
        target = TARGETS.get(number)
        rows.append(
            [
                name,
                *figures(blocks[number]),
                f"{store_us:.0f}" if store_us else "",
                f"**{ratio:.2f}x**",
                f"at most {target.minimum:g}x, goal {target.goal:g}x" if target else "",
                target.verdict(ratio) if target else "no target",
            ]
        )
    head = ["`POST /v1/check`", "a second", "p50 ms", "p99 ms", "CPU µs", "Redis µs",
            "CPU of the constant", "should be", "target"]  # fmt: skip
    listed = median(block.per_second for block in lists)
    cpu = median(block.cpu_us for block in lists)
    return (
        "### The service\n\n"
        f"One worker and {CLIENTS} connections from another process on the same machine with "
        f"{os.cpu_count()} cores; each rule has one limit. CPU is the CPU time of the worker, and "
        "of Redis, per request. The constant is the same HTTP server with a handler that returns "
        "the same response to every request; the ratio is CPU of the worker to CPU of the "
        "constant.\n\n"
        f"{table(head, rows)}\n\n"
        f"In lists of {LISTED}: **{listed:,.0f}** decisions a second, {cpu:.1f} µs of CPU each."
    )


def _ratios(ours: Sequence[Block], theirs: Sequence[Block]) -> list[float]:
    """Return how many times the CPU one takes for a request as the other, round by round."""
    return [a.cpu_us / b.cpu_us for a, b in zip(ours, theirs, strict=True)]


def figures(blocks: Sequence[Block]) -> list[str]:
    """Return the medians of some blocks, for a row of a table."""
    return [
        f"{median(block.per_second for block in blocks):,.0f}",
        f"{median(block.p50_ms for block in blocks):.2f}",
        f"{median(block.p99_ms for block in blocks):.2f}",
        f"{median(block.cpu_us for block in blocks):.0f}",
    ]


@contextmanager
def _constant() -> Iterator[Contender]:
    port = free_port()
    command = [sys.executable, "-m", "bench.constant", str(port)]
    with _served(command, port) as contender:
        yield contender


@contextmanager
def _service(folder: Path, matching: int, store: str) -> Iterator[Contender]:
    port = free_port()
    folder.mkdir()
    rules = folder / "rules.json"
    rules.write_text(json.dumps(document(matching)))
    command = [
        *(sys.executable, "-m", "limen", "serve", "--bind", f"127.0.0.1:{port}"),
        *("--grpc-bind", "", "--admin-bind", ""),
        *("--store", store, "--rules", str(rules), "--data-dir", str(folder / "data")),
        *("--log-level", "error"),
    ]
    # A block must not fail because this machine was busy for the blink of an eye.
    with _served(command, port, {"LIMEN_STORE__DEADLINE": "1"}) as contender:
        yield contender


def document(matching: int) -> dict[str, Any]:
    """Return so many rules that match every request of the crowd, among others that do not."""
    rules = [
        {"name": f"rule-{n}", "match": {"path": "/api/*"}, "key": ["user"],
         "limits": f"{100_000 + n}/minute packed_window"}
        for n in range(matching)
    ]  # fmt: skip
    others = [
        {"name": f"other-{n}", "match": {"path": f"/other-{n}/*"}, "key": ["user"],
         "limits": "100/minute"}
        for n in range(100)
    ]  # fmt: skip
    return {"rules": [*rules, *others]}


@contextmanager
def process(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process, and end it."""
    started = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env={**os.environ, **(environment or {})}
    )
    try:
        yield started
    finally:
        started.terminate()
        started.wait(_PATIENCE_S)


@contextmanager
def _served(
    command: Sequence[str], port: int, environment: Mapping[str, str] | None = None
) -> Iterator[Contender]:
    with process(command, environment) as started:
        until_ready(f"http://127.0.0.1:{port}/readyz", started)
        yield Contender(port, started.pid)


def until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return when a server answers. Raises `BenchError` if it does not get so far."""
    ends = time.monotonic() + _PATIENCE_S
    while time.monotonic() < ends and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise BenchError("a server did not start")


def load(port: int, seconds: float, *arguments: str) -> Seen:
    """Run `bench.load` in a process of its own; return its report."""
    command = [sys.executable, "-m", "bench.load", str(port), "--seconds", str(seconds), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + _PATIENCE_S, check=False
    )
    if done.returncode:
        raise BenchError(f"the crowd failed: {done.stderr.strip().splitlines()[-1:]}")
    return Seen(**json.loads(done.stdout))


def cpu_s(pid: int) -> float:
    """Return what a process has spent so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
