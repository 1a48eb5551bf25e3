"""Compare the time per request of two trees of limen: another checkout and this one.

It is the CPU time of the worker, except where a row says wall time.

Both trees run at once, one worker each. For each row, blocks of the old and the new tree alternate,
so that a ratio is between neighbours in time. Other processes on the machine only add to CPU times;
if the median of the ratios and the ratio of the two minima disagree, run again.

Run as `python -m bench.compare OLD_TREE`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from statistics import median
from struct import pack
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from tests.servers import free_port

from bench import server
from bench.harness import BenchError, rotated
from bench.report import table
from bench.service import CLIENTS, load, process, until_ready

NEW_TREE = Path(__file__).resolve().parents[1]
_USERS = 500
_WARM_UP_S = 0.5
_METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
_CONNECTIONS, _STREAMS = 4, 8
_DESCRIPTORS = 10
_OK, _QUOTA_VARINT = b"\x08\x01", b"\x80\xc2\xd7\x2f"
"""In a RateLimitResponse: overall_code is OK; requests_per_unit is 100,000,000."""
# A busy machine must not cause fallback decisions, which cost less or more than others.
_PATIENT = {"LIMEN_STORE__DEADLINE": "1", "LIMEN_GATEWAY__DEADLINE": "1"}


@dataclass(frozen=True, slots=True)
class Service:
    """A service that runs, with one worker."""

    port: int
    grpc_port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Tree:
    """A checkout of limen, with its services."""

    path: Path
    services: dict[str, Service]
    """By the kind of store: `memory` and `redis`."""
    redis_url: str


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    name: str
    """The name for `--only`."""
    title: str
    bound: float
    """The largest acceptable ratio of new to old."""
    block: Callable[[Tree, float], float]
    """Send requests for some seconds; return the CPU time of one in µs."""


def check_row(store: str, rules: int, distinct: bool) -> Row:
    """Return a row of `POST /v1/check`."""
    arguments = ["--path", f"/match-{rules}", *(["--distinct"] if distinct else [])]
    heads = "every head different" if distinct else "same head"
    return Row(
        f"check-{store}-{rules}{'-distinct' if distinct else ''}",
        f"check, {store}, {rules} rule{'s' if rules > 1 else ''}, {heads}",
        0.8 if distinct else 1.5,
        lambda tree, seconds: http_us(tree.services[store], seconds, *arguments),
    )


def auth_row(store: str) -> Row:
    """Return a row of `GET /v1/auth`."""
    return Row(
        f"auth-{store}",
        f"/v1/auth from nginx, {store}, 1 rule",
        0.6,
        lambda tree, seconds: http_us(
            tree.services[store], seconds, "--auth", "--path", "/match-address"
        ),
    )


def grpc_row(descriptors: int) -> Row:
    """Return a row of Envoy's rate limit service."""
    return Row(
        f"grpc-{descriptors}",
        f"gRPC, redis, {descriptors} descriptor{'s' if descriptors > 1 else ''}",
        1.1,
        lambda tree, seconds: grpc_us(tree.services["redis"], seconds, descriptors),
    )


def threads_row(threads: int) -> Row:
    """Return a row of `Limiter` on Redis. The time that passes, because threads wait for it."""
    return Row(
        f"threads-{threads}",
        f"`Limiter`, redis, {threads} thread{'s' if threads > 1 else ''}, wall time",
        1.2 if threads <= 16 else 1.5,
        lambda tree, _: library_us(tree, tree.redis_url, f"--threads={threads}"),
    )


ROWS = (
    *(
        check_row(store, rules, distinct)
        for store in ("memory", "redis")
        for distinct in (False, True)
        for rules in (1, 3)
    ),
    auth_row("memory"),
    auth_row("redis"),
    grpc_row(1),
    grpc_row(_DESCRIPTORS),
    Row("library-memory", "`Limiter`, memory, 1 limit", 1.1, lambda tree, _: library_us(tree)),
    Row(
        "library-redis",
        "`AsyncLimiter`, redis, 64 tasks",
        1.1,
        lambda tree, _: library_us(tree, tree.redis_url),
    ),
    *(threads_row(threads) for threads in (1, 4, 16, 64, 200)),
)


def http_us(service: Service, seconds: float, *arguments: str) -> float:
    """Return the worker's CPU time per HTTP request in µs."""
    before = cpu_s(service.pid)
    seen = load(
        service.port, seconds, "--clients", str(CLIENTS), "--users", str(_USERS), *arguments
    )
    spent = cpu_s(service.pid) - before
    if seen.failed or not seen.answers:
        raise BenchError(f"{seen.failed} of {seen.answers} HTTP requests failed")
    return 1e6 * spent / seen.answers


def grpc_us(service: Service, seconds: float, descriptors: int) -> float:
    """Return the worker's CPU time per gRPC call in µs."""
    message = rate_limit_request(descriptors)
    with TemporaryDirectory() as folder:
        body = Path(folder) / "body"
        body.write_bytes(pack(">BL", 0, len(message)) + message)
        command = [
            *("h2load", "-D", f"{seconds * 1e3:.0f}ms"),
            *("-c", str(_CONNECTIONS), "-m", str(_STREAMS), "-d", str(body)),
            *("-H", "content-type: application/grpc", "-H", "te: trailers"),
            f"http://127.0.0.1:{service.grpc_port}{_METHOD}",
        ]
        before = cpu_s(service.pid)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        spent = cpu_s(service.pid) - before
    counts = re.search(r"(\d+) succeeded, (\d+) failed", done.stdout)
    if done.returncode or counts is None or not int(counts[1]) or int(counts[2]):
        raise BenchError(f"h2load failed: {done.stderr.strip() or done.stdout[-500:]}")
    return 1e6 * spent / int(counts[1])


def library_us(tree: Tree, *arguments: str) -> float:
    """Return the time of one decision of the library in µs; see `bench.decide`."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.decide", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **python_path(tree.path)},
    )
    if done.returncode:
        raise BenchError(f"bench.decide failed in {tree.path}: {done.stderr[-500:]}")
    return float(done.stdout)


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its children so far, in seconds.

    /proc/PID/stat has ticks of 10 ms. The CPU clock of the process has nanoseconds.
    """
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    # clock_getcpuclockid(3): ~pid in the upper bits, 2 for the time of all threads.
    own_s = time.clock_gettime((~pid << 3) | 2)
    return own_s + sum(cpu_s(int(child)) for child in children)


def rate_limit_request(descriptors: int) -> bytes:
    """Return a RateLimitRequest, encoded without limen's code: its modules differ by tree."""

    def field(number: int, value: bytes) -> bytes:
        return bytes([number << 3 | 2, len(value)]) + value

    message = field(1, b"bench")
    for number in range(descriptors):
        entry = field(1, b"by-%d" % number) + field(2, b"10.0.0.%d" % number)
        message += field(2, field(1, entry))
    return message


def document() -> dict[str, Any]:
    """Return rules for all rows, besides 100 rules that do not match any request."""

    def rule(name: str, match: dict[str, str], key: str, limit: str) -> dict[str, Any]:
        return {"name": name, "match": match, "key": [key], "limits": limit}

    gateway, own = "100000000/hour fixed_window", "100000/minute packed_window"
    rules = [rule("address", {"path": "/match-address"}, "ip", gateway)]
    for count in (1, 3):
        names = [f"match-{count}-{number}" for number in range(count)]
        rules += [rule(name, {"path": f"/match-{count}"}, "user", own) for name in names]
    for number in range(_DESCRIPTORS):
        name = f"by-{number}"
        rules.append(rule(name, {"domain": "bench", "descriptor": name}, name, gateway))
    rules += [rule(f"other-{n}", {"path": f"/other-{n}/*"}, "user", own) for n in range(100)]
    return {"rules": rules}


def python_path(tree: Path) -> dict[str, str]:
    """Return the environment in which `import limen` uses a tree."""
    return {"PYTHONPATH": f"{tree / 'src'}"}


@contextmanager
def started_service(tree: Path, store: str, folder: Path) -> Iterator[Service]:
    """Start a service of a tree; yield it when it decides as the rows need it."""
    folder.mkdir(parents=True)
    rules = folder / "rules.json"
    rules.write_text(json.dumps(document()))
    port, grpc_port = free_port(), free_port()
    command = [
        *(sys.executable, "-m", "limen", "serve", "--bind", f"127.0.0.1:{port}"),
        *("--grpc-bind", f"127.0.0.1:{grpc_port}", *admin_bind(tree)),
        *("--store", store, "--rules", str(rules), "--data-dir", str(folder / "data")),
        *("--namespace", f"compare-{folder.parent.name}", "--log-level", "error"),
    ]
    with process(command, {**_PATIENT, **python_path(tree)}) as running:
        until_ready(f"http://127.0.0.1:{port}/readyz", running)
        service = Service(port, grpc_port, running.pid)
        verify(service)
        yield service


def admin_bind(tree: Path) -> list[str]:
    """Return the option for the control plane, if the tree has a separate one."""
    sources = (tree / "src" / "limen" / "cli").glob("*.py")
    if not any("--admin-bind" in source.read_text("utf-8") for source in sources):
        return []
    return ["--admin-bind", f"127.0.0.1:{free_port()}"]


def verify(service: Service) -> None:
    """Raise `BenchError` unless requests of all rows are allowed by the expected rules."""
    for count in (1, 3):
        body = {"attributes": {"user": "1", "path": f"/match-{count}"}}
        url = f"http://127.0.0.1:{service.port}/v1/check"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=5) as response:
            decision = json.load(response)
        if not decision["allowed"] or len(decision["parts"]) != count:
            raise BenchError(f"expected a decision by {count} rules, got {decision}")
    with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
        call: Any = channel.unary_unary(_METHOD)
        message: bytes = call(rate_limit_request(_DESCRIPTORS), timeout=5)
    if not message.startswith(_OK) or message.count(_QUOTA_VARINT) != _DESCRIPTORS:
        raise BenchError(f"expected OK with {_DESCRIPTORS} limits over gRPC, got {message!r}")


@contextmanager
def started_tree(path: Path, redis_url: str, folder: Path) -> Iterator[Tree]:
    """Start the services of a tree."""
    with ExitStack() as stack:
        services = {
            kind: stack.enter_context(started_service(path, store, folder / kind))
            for kind, store in (("memory", "memory://"), ("redis", redis_url))
        }
        yield Tree(path, services, redis_url)


def measure(row: Row, trees: Sequence[Tree], rounds: int, seconds: float) -> list[list[float]]:
    """Return µs per request of each tree, one figure for each round."""
    figures: list[list[float]] = [[] for _ in trees]
    for tree in trees:
        row.block(tree, min(seconds, _WARM_UP_S))
    for round_ in range(rounds):
        for number in rotated(range(len(trees)), round_):
            figures[number].append(row.block(trees[number], seconds))
    return figures


def cells(row: Row, old: Sequence[float], new: Sequence[float]) -> list[str]:
    """Return the line of the table."""
    ratios = [after / before for before, after in zip(old, new, strict=True)]
    ratio = median(ratios)
    return [
        row.title,
        f"{median(old):.1f}",
        f"{median(new):.1f}",
        f"{ratio:.2f}x",
        f"{min(ratios):.2f}..{max(ratios):.2f}",
        f"{min(new) / min(old):.2f}x",
        f"{row.bound:g}x",
        "met" if ratio <= row.bound else "MISSED",
    ]


def selected(only: str) -> list[Row]:
    """Return the rows whose names match one of the comma-separated patterns."""
    rows = [row for row in ROWS if any(fnmatch(row.name, name) for name in only.split(","))]
    if shutil.which("h2load") is None:
        _say("gRPC rows are skipped: h2load is missing (apt-get install nghttp2-client)")
        rows = [row for row in rows if not row.name.startswith("grpc")]
    if not rows:
        raise BenchError(f"no such row; rows: {', '.join(row.name for row in ROWS)}")
    return rows


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Compare the time per request of OLD_TREE and of this tree."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=main.__doc__)
    parser.add_argument("old_tree", type=Path, metavar="OLD_TREE")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.8, help="the length of a block")
    parser.add_argument("--only", default="*", metavar="NAME,...", help="rows, such as check-*")
    options = parser.parse_args()
    head = ["row", "old µs", "new µs", "new/old", "min..max", "of minima", "bound", ""]
    lines = []
    rows = selected(options.only)
    with TemporaryDirectory() as folder, server.started() as redis, ExitStack() as stack:
        paths = {"old": options.old_tree.resolve(), "new": NEW_TREE}
        trees = [
            stack.enter_context(started_tree(path, redis.url, Path(folder) / name))
            for name, path in paths.items()
        ]
        for row in rows:
            old, new = measure(row, trees, options.rounds, options.seconds)
            lines.append(cells(row, old, new))
            _say("  ".join(lines[-1]))
    print(table(head, lines))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"bench.compare: {error}")
