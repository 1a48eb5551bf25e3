"""Send the same random requests to the services of two trees, and compare the responses.

The old tree is an argument, the new one is the checkout of this file. Two pairs of services run on
memory stores: one is open, the other needs tokens. Run as `python -m tests.differential OLD_TREE`.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from bench.compare import NEW_TREE, admin_bind, python_path
from bench.service import process, until_ready

from tests.differential_requests import (
    ADMIN_TOKEN,
    CHECK_TOKEN,
    HOST,
    MAX_BATCH,
    MAX_BODY,
    Generator,
    Request,
    rules,
)
from tests.servers import free_port

_PATIENCE_S = 3.0
"""Longer than the read timeout of the services, after which they send 408."""
_PAUSE_S = 0.002
_LINGER_S = 2.5
"""Longer than the services keep a connection that the client has closed."""
_SHOWN = 20
_STATUS_LINE, _NOT_HTTP = re.compile(r"HTTP/1\.[01] [1-5][0-9]{2}( |$)"), 999
_JSON_TIMES = {"retry_after", "reset_after", "delay", "retry-after"}
_JSON_TOLERANCE_S, _HEADER_TOLERANCE_S = 3.0, 2
_SECRETS = {"receipt", "slot"}
_LEAST_SECRET, _SHOWN_OF_SECRET = 20, 190
_SECONDS = re.compile(r"(?<=;t=)\d+|^\d+(?=s?$)")
"""Seconds in texts: `t=` in RateLimit, Retry-After, X-RateLimit-Reset, durations of protobuf."""
_TIMED_HEADERS = {"ratelimit", "retry-after", "x-ratelimit-reset"}
_ENVIRONMENT = {
    "LIMEN_HTTP__MAX_BODY": str(MAX_BODY),
    "LIMEN_HTTP__MAX_BATCH": str(MAX_BATCH),
    "LIMEN_HTTP__READ_TIMEOUT": "1",
    "LIMEN_HTTP__DRAIN_TIMEOUT": "2",
    "LIMEN_GATEWAY__ATTRIBUTES": "user=X-User-Id,plan=X-Jwt-Payload:plan,api_key=X-Api-Key",
    "LIMEN_AUTH__CHECK_TOKEN": CHECK_TOKEN,
    "LIMEN_AUTH__ADMIN_TOKEN": ADMIN_TOKEN,
}
_CONTROL_PLANE = re.compile(rb" on the data plane\. .* \(admin\.bind\)")
_MALFORMED = (
    b"This is not HTTP/1.1 as RFC 9112 has it.",
    b"The request is not valid HTTP/1.1 (RFC 9112).",
)
_PROBE = f"GET /healthz HTTP/1.1\r\nHost: {HOST}\r\nX-Request-Id: probe\r\n\r\n".encode()


@dataclass(frozen=True, slots=True)
class Response:
    """A response as it was read.

    Status 0 is no response: the connection closed or timed out. Status 999 is not HTTP.
    """

    status: int
    headers: dict[str, list[str]] = field(default_factory=dict)
    body: bytes = b""

    @property
    def closes(self) -> bool:
        """Whether the service closes the connection behind this response."""
        return not self.status or "close" in self.headers.get("connection", [])

    @property
    def id(self) -> str:
        """The value of X-Request-Id."""
        return ",".join(self.headers.get("x-request-id", []))


class Connection:
    """A connection to a service, which is opened again when it has been closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self._buffer = b""

    def send(self, *packets: bytes) -> None:
        """Send packets with a short pause between them, on a new connection if need be."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), _PATIENCE_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._buffer = b""
        # The service may refuse a request before it has received all of it.
        with suppress(ConnectionError):
            for number, packet in enumerate(packets):
                if number:
                    time.sleep(_PAUSE_S)
                self._socket.sendall(packet)

    def end(self) -> None:
        """Announce that no more requests follow."""
        assert self._socket is not None
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def read(self, method: str = "GET") -> Response:
        """Return the next response. An interim one has no headers and no body."""
        while b"\r\n\r\n" not in self._buffer:
            if not self._receive():
                return Response(0)
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        if not _STATUS_LINE.match(first):
            return Response(_NOT_HTTP, {"connection": ["close"]}, head)
        status = int(first.split()[1])
        if status < 200:
            return Response(status)
        headers: dict[str, list[str]] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers.setdefault(name.lower(), []).append(value.strip())
        length = int(headers.get("content-length", ["0"])[0])
        if method == "HEAD" or status in (204, 304):
            length = 0
        while len(self._buffer) < length and self._receive():
            pass
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return Response(status, headers, body)

    def read_final(self, method: str = "GET") -> Response:
        """Return the next response that is not an interim one."""
        while 0 < (response := self.read(method)).status < 200:
            pass
        return response

    def is_closed(self) -> bool:
        """Return whether the service closes the connection, without sending more."""
        if self._buffer:
            return False
        return not self._receive() and self._ended

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    _ended = False

    def _receive(self) -> bool:
        assert self._socket is not None
        try:
            data = self._socket.recv(65_536)
        except TimeoutError:
            self._ended = False
            return False
        except ConnectionError:
            data = b""
        self._ended = not data
        self._buffer += data
        return bool(data)


@dataclass(frozen=True, slots=True)
class Service:
    """A service that runs."""

    port: int
    pid: int

    def sockets(self) -> int:
        """Return the number of open sockets."""
        files = Path(f"/proc/{self.pid}/fd").iterdir()
        return sum(str(file.readlink()).startswith("socket:") for file in files)


@dataclass(frozen=True, slots=True)
class Pair:
    """The services of both trees with the same settings."""

    generator: Generator
    connections: tuple[Connection, Connection]
    """To the old and to the new service."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference between the responses to a request."""

    request: Request
    delivery: str
    reason: str
    old: Response
    new: Response
    behind: Response | None = None
    """The response of the new service behind `new`, if the old service has sent none."""

    def __str__(self) -> str:
        """Return the request and both responses in full."""
        head, body = self.request.encoded(0)
        lines = [f"{self.request.kind} ({self.delivery}): {self.reason}"]
        lines.append(f"  request {(head + body)[:2_000]!r}")
        responses = {"old": self.old, "new": self.new, "behind it": self.behind}
        for name, response in responses.items():
            if response is None:
                continue
            lines.append(f"  {name} {response.status} {response.headers}")
            lines.append(f"      {response.body[:2_000]!r}")
        return "\n".join(lines)


def _omits_100(mismatch: Mismatch) -> bool:
    """A request without content gets no 100, as RFC 9110 allows in section 10.1.1."""
    has_content = bool(mismatch.request.encoded(0)[1])
    return mismatch.old.status == 100 and mismatch.new.status >= 200 and not has_content


def _refuses_large_content_first(mismatch: Mismatch) -> bool:
    """A request that announces too much content gets 413 instead of 100."""
    return mismatch.delivery == "expecting" and (mismatch.old.status, mismatch.new.status) == (
        100,
        413,
    )


def _ignores_expect_of_1_0(mismatch: Mismatch) -> bool:
    """Expect is ignored in HTTP/1.0, as RFC 9110 requires in section 10.1.1."""
    return mismatch.delivery == "expecting" and mismatch.request.version == "1.0"


def _continues_before_errors(mismatch: Mismatch) -> bool:
    """Errors behind the check of route, method and token follow the content: 100 comes first."""
    is_expecting = mismatch.delivery == "expecting"
    return is_expecting and mismatch.new.status == 100 and mismatch.old.status >= 400


def _waits_for_content(mismatch: Mismatch) -> bool:
    """A refusal is sent behind the content; if that does not arrive, it is 408 or nothing."""
    is_refused = mismatch.old.status in (400, 401, 403, 404, 405)
    return is_refused and mismatch.new.status in (0, 408) and mismatch.delivery in (
        "half-closed", "with a probe behind it"
    )  # fmt: skip


def _closes_large_content(mismatch: Mismatch) -> bool:
    """A refused request with too much content closes the connection at once."""
    is_large = mismatch.request.kind in ("malformed: large length", "body at the limit")
    return is_large and _is_same_but_for_close(mismatch.old, mismatch)


def _closes_without_content(mismatch: Mismatch) -> bool:
    """A refusal instead of 100 closes the connection: the client may omit the content or not."""
    is_refusal = mismatch.delivery == "expecting" and mismatch.new.status >= 400
    has_content = bool(mismatch.request.encoded(0)[1])
    return is_refusal and has_content and _is_same_but_for_close(mismatch.old, mismatch)


def _answers_malformed(mismatch: Mismatch) -> bool:
    """Malformed bytes behind a request get 400; the old service closes behind that request."""
    behind = mismatch.behind
    is_answered = behind is not None and behind.status == 400 and behind.closes
    return is_answered and _is_same_but_for_close(mismatch.new, mismatch)


EXPECTED: tuple[Callable[[Mismatch], bool], ...] = (
    _omits_100,
    _refuses_large_content_first,
    _ignores_expect_of_1_0,
    _continues_before_errors,
    _waits_for_content,
    _closes_large_content,
    _closes_without_content,
    _answers_malformed,
)
"""Intended differences."""


def _is_same_but_for_close(open_: Response, mismatch: Mismatch) -> bool:
    """Return whether one response is `open_`, and the other has `Connection: close` besides."""
    if open_.closes:
        return False
    closing = replace(open_, headers=open_.headers | {"connection": ["close"]})
    if open_ is mismatch.old:
        return difference(mismatch.request, closing, mismatch.new) is None
    return difference(mismatch.request, mismatch.old, closing) is None


class Comparison:
    """Sends requests to pairs of services and collects the differences."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.requests: Counter[str] = Counter()
        self.statuses: Counter[tuple[str, int]] = Counter()
        """Responses of the old service, by kind and status."""
        self.mismatches: list[Mismatch] = []
        self.expected: Counter[str] = Counter()
        """Intended differences, by the docstrings of `EXPECTED`."""
        self.leaks: list[int] = [0, 0]
        """Sockets of the old and the new services that stay open after the run."""

    def step(self, pair: Pair) -> int:
        """Send one or two requests in a random way; return how many."""
        deliveries = {
            self._send_whole: 60, self._send_new: 12, self._send_pipelined: 8, self._send_split: 8,
            self._send_expecting: 2, self._send_malformed: 5, self._send_mutated: 5,
        }  # fmt: skip
        before = self._differences()
        kinds, weights = list(deliveries), list(deliveries.values())
        count = self._random.choices(kinds, weights)[0](pair)
        if self._differences() > before:
            _close(pair)
        return count

    def _differences(self) -> int:
        return len(self.mismatches) + self.expected.total()

    def _send_whole(self, pair: Pair, delivery: str = "whole") -> int:
        request = pair.generator.request()
        responses = []
        for side, connection in enumerate(pair.connections):
            connection.send(b"".join(request.encoded(side)))
            responses.append(connection.read_final(request.method))
        self._compare(pair, request, delivery, *responses)
        return 1

    def _send_new(self, pair: Pair) -> int:
        _close(pair)
        return self._send_whole(pair, "new connection")

    def _send_pipelined(self, pair: Pair) -> int:
        requests = [pair.generator.request() for _ in range(2)]
        responses: list[list[Response]] = []
        for side, connection in enumerate(pair.connections):
            connection.send(b"".join(b"".join(request.encoded(side)) for request in requests))
            of_side = [connection.read_final(requests[0].method)]
            if not of_side[0].closes:
                of_side.append(connection.read_final(requests[1].method))
            responses.append(of_side)
        if len(responses[0]) != len(responses[1]):
            reason = "number of responses"
            self._report(requests[0], "pipelined", reason, responses[0], responses[1])
        else:
            for request, old, new in zip(requests, *responses, strict=False):
                self._compare(pair, request, "pipelined", old, new)
        return 2

    def _send_split(self, pair: Pair) -> int:
        request = pair.generator.request()
        place = self._random.random() if self._random.random() < 0.5 else None
        responses = []
        for side, connection in enumerate(pair.connections):
            head, body = request.encoded(side)
            packets = [head, body] if body else [head]
            if place is not None:
                whole = head + body
                cut = max(1, int(place * len(whole)))
                packets = [whole[:cut], whole[cut : cut + 50], whole[cut + 50 :]]
            connection.send(*[packet for packet in packets if packet])
            responses.append(connection.read_final(request.method))
        self._compare(pair, request, "split", *responses)
        return 1

    def _send_expecting(self, pair: Pair) -> int:
        """Send `Expect: 100-continue`, and the body when the service asks for it."""
        request = pair.generator.request()
        first, final = [], []
        for side, connection in enumerate(pair.connections):
            head, body = request.encoded(side)
            connection.send(head[:-2] + b"Expect: 100-continue\r\n\r\n")
            response = connection.read(request.method)
            first.append(response)
            if response.status == 100:
                connection.send(body)
                response = connection.read_final(request.method)
            final.append(response)
        if first[0].status != first[1].status:
            self._report(request, "expecting", "first response", first[:1], first[1:])
        self._compare(pair, request, "expecting", *final)
        # A service that refused the request may wait for its body, or not.
        _close(pair)
        return 1

    def _send_malformed(self, pair: Pair) -> int:
        """Send a malformed request on a new connection; then another, if that stays open."""
        request = pair.generator.malformed()
        _close(pair)
        responses: list[list[Response]] = []
        outcomes: list[tuple[list[int], bool]] = []
        for connection in pair.connections:
            connection.send(request.raw)
            of_side = [connection.read_final()]
            if not of_side[0].closes:
                connection.send(_PROBE)
            while not of_side[-1].closes and of_side[-1].id != "probe":
                of_side.append(connection.read_final())
            responses.append(of_side)
            is_closed = of_side[-1].closes and connection.is_closed()
            outcomes.append(([response.status for response in of_side], is_closed))
        self._count("malformed", responses[0][0])
        if outcomes[0] != outcomes[1]:
            reason = f"statuses and closing {outcomes[0]} and {outcomes[1]}"
            self._report(request, "with a probe behind it", reason, *responses)
        _close(pair)
        return 1

    def _send_mutated(self, pair: Pair) -> int:
        """Send a request with random changes, and nothing behind it."""
        request = pair.generator.mutated()
        method = "HEAD" if request.raw.lstrip().startswith(b"HEAD") else "GET"
        _close(pair)
        responses: list[list[Response]] = []
        for connection in pair.connections:
            connection.send(request.raw)
            connection.end()
            of_side = [connection.read_final(method)]
            while of_side[-1].status not in (0, _NOT_HTTP):
                of_side.append(connection.read_final())
            responses.append(of_side)
        self._count("mutated", responses[0][0])
        statuses = [[response.status for response in of_side] for of_side in responses]
        if statuses[0] != statuses[1]:
            reason = f"statuses {statuses[0]} and {statuses[1]}"
            self._report(request, "half-closed", reason, *responses)
        _close(pair)
        return 1

    def _compare(
        self, pair: Pair, request: Request, delivery: str, old: Response, new: Response
    ) -> None:
        self._count(request.kind, old)
        reason = difference(request, old, new)
        if reason is None and (old.closes or new.closes):
            ends = [connection.is_closed() for connection in pair.connections]
            reason = f"connection closed: {ends[0]} and {ends[1]}" if ends[0] != ends[1] else None
        if reason is not None:
            self._report(request, delivery, reason, [old], [new])
        elif old.body:
            with suppress(ValueError):
                pair.generator.learn(json.loads(old.body), json.loads(new.body))
        if old.closes or new.closes:
            _close(pair)

    def _count(self, kind: str, old: Response) -> None:
        self.requests[kind] += 1
        self.statuses[kind, old.status] += 1

    def _report(
        self,
        request: Request,
        delivery: str,
        reason: str,
        old: list[Response],
        new: list[Response],
    ) -> None:
        """Count a difference between the responses as intended, or keep it as a mismatch."""
        extra = new[1] if len(new) > 1 and (len(old) == 1 or not old[1].status) else None
        mismatch = Mismatch(request, delivery, reason, old[0], new[0], extra)
        for is_intended in EXPECTED:
            if is_intended(mismatch):
                self.expected[is_intended.__doc__ or ""] += 1
                return
        self.mismatches.append(mismatch)


def difference(request: Request, old: Response, new: Response) -> str | None:
    """Return the first difference between two responses, in words; None if they are equal."""
    if old.status != new.status:
        return f"status {old.status} and {new.status}"
    names = (old.headers.keys() | new.headers.keys()) - {"date", "content-length"}
    if ("content-length" in old.headers) != ("content-length" in new.headers):
        return "content-length is in one of them"
    for name in sorted(names):
        values = old.headers.get(name), new.headers.get(name)
        if None in values or not _same_header(request, name, *map(_joined, values)):
            return f"header {name}: {values[0]} and {values[1]}"
    return body_difference(*[_neutral_body(request, side, r) for side, r in enumerate((old, new))])


def _joined(values: list[str] | None) -> str:
    return ", ".join(sorted(values or []))


def _same_header(request: Request, name: str, old: str, new: str) -> bool:
    if name == "x-request-id" and not request.has_own_id:
        return bool(old) == bool(new)
    return old == new or (name in _TIMED_HEADERS and _same_seconds(old, new))


def _same_seconds(old: str, new: str) -> bool:
    """Return whether two texts are the same, but for seconds that differ by the tolerance."""
    if _SECONDS.split(old) != _SECONDS.split(new):
        return False
    pairs = zip(_SECONDS.findall(old), _SECONDS.findall(new), strict=True)
    return all(abs(int(a) - int(b)) <= _HEADER_TOLERANCE_S for a, b in pairs)


def _neutral_body(request: Request, side: int, response: Response) -> bytes:
    """Return a body without the parts that differ.

    They are a generated id, a secret in the target, the address of the control plane, and the
    reworded sentence about malformed requests.
    """
    body = response.body.replace(*_MALFORMED)
    if response.status == 404:
        body = _CONTROL_PLANE.sub(b"; see /docs", body)
    secret = request.secrets[side].encode()
    if len(secret) >= _LEAST_SECRET:
        # Errors show the beginning of a long target.
        body = body.replace(secret, b"SECRET").replace(secret[:_SHOWN_OF_SECRET], b"SECRET")
    return body.replace(response.id.encode("latin-1"), b"ID") if response.id else body


def body_difference(old: bytes, new: bytes) -> str | None:
    """Return the first difference between two bodies; None if they are equal."""
    try:
        documents = json.loads(old), json.loads(new)
    except ValueError:
        return None if old == new else "body"
    return _json_difference("body", *documents)


def _json_difference(place: str, old: Any, new: Any) -> str | None:
    name = place.rpartition(".")[2]
    if name == "rules_age":  # the services do not start at the same time
        return None
    if name in _SECRETS and isinstance(old, str) and isinstance(new, str):
        return None
    if type(old) is not type(new):
        return f"{place}: {old!r} and {new!r}"
    if isinstance(old, dict):
        if old.keys() != new.keys():
            return f"{place}: fields {sorted(old)} and {sorted(new)}"
        places = [_json_difference(f"{place}.{each}", old[each], new[each]) for each in old]
    elif isinstance(old, list):
        if len(old) != len(new):
            return f"{place}: {len(old)} and {len(new)} elements"
        pairs = enumerate(zip(old, new, strict=True))
        places = [_json_difference(f"{place}[{number}]", *pair) for number, pair in pairs]
    else:
        is_time = name in _JSON_TIMES and isinstance(old, int | float)
        same = abs(old - new) <= _JSON_TOLERANCE_S if is_time else old == new
        # Only Envoy's JSON has seconds in texts: a duration, and the values of headers.
        if not same and isinstance(old, str) and name in ("value", "durationUntilReset"):
            same = _same_seconds(old, new)
        places = [] if same else [f"{place}: {old!r} and {new!r}"]
    return next((each for each in places if each is not None), None)


def _close(pair: Pair) -> None:
    for connection in pair.connections:
        connection.close()


@contextmanager
def started_service(tree: Path, folder: Path, checks: str) -> Iterator[Service]:
    """Start a service of a tree on a memory store."""
    folder.mkdir(parents=True)
    file = folder / "rules.json"
    file.write_text(json.dumps(rules()))
    port = free_port()
    command = [
        *(sys.executable, "-m", "limen", "serve", "--bind", f"127.0.0.1:{port}"),
        *("--grpc-bind", "", *admin_bind(tree), "--rules", str(file), "--checks", checks),
        *("--data-dir", str(folder / "data"), "--log-level", "error"),
    ]
    styles = "draft-11,x-ratelimit" if checks == "token" else "draft-11"
    environment = {**_ENVIRONMENT, "LIMEN_HTTP__HEADERS": styles, **python_path(tree)}
    with process(command, environment) as running:
        until_ready(f"http://127.0.0.1:{port}/readyz", running)
        yield Service(port, running.pid)


def compare(old_tree: Path, requests: int, seed: int) -> Comparison:
    """Send requests to the services of both trees; return the comparison."""
    random = Random(seed)
    comparison = Comparison(random)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        pairs = []
        services: list[list[Service]] = []
        for checks in ("open", "token"):
            services.append(
                [
                    stack.enter_context(started_service(tree, Path(folder) / checks / name, checks))
                    for name, tree in (("old", old_tree), ("new", NEW_TREE))
                ]
            )
            old, new = [Connection(service.port) for service in services[-1]]
            generator = Generator(random, needs_token=checks == "token")
            pairs.append(Pair(generator, (old, new)))
        before = [[service.sockets() for service in both] for both in services]
        sent = shown = 0
        while sent < requests:
            sent += comparison.step(random.choices(pairs, (3, 1))[0])
            if sent // 1_000 > shown:
                shown = sent // 1_000
                _say(f"{sent} requests, {len(comparison.mismatches)} mismatches")
        for pair in pairs:
            _close(pair)
        time.sleep(_LINGER_S)
        for both, counts in zip(services, before, strict=True):
            for side, service in enumerate(both):
                comparison.leaks[side] += service.sockets() - counts[side]
    return comparison


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  # a command prints


def summary(comparison: Comparison) -> str:
    """Return the requests and mismatches by kind, and the first mismatches in full."""
    wrong = Counter(each.request.kind.partition(":")[0] for each in comparison.mismatches)
    lines = [f"{'kind':20} requests mismatches  statuses of the old service"]
    for kind, count in sorted(comparison.requests.items()):
        statuses = sorted((s, n) for (each, s), n in comparison.statuses.items() if each == kind)
        shown = ", ".join(f"{n} x {status}" for status, n in statuses)
        lines.append(f"{kind:20} {count:8} {wrong[kind]:10}  {shown}")
    total = sum(comparison.requests.values())
    lines.append(f"{'all':20} {total:8} {len(comparison.mismatches):10}")
    lines.append(f"sockets that stay open: old {comparison.leaks[0]}, new {comparison.leaks[1]}")
    groups = Counter(
        f"{each.request.kind.partition(':')[0]} ({each.delivery}): {each.reason.partition(': ')[0]}"
        for each in comparison.mismatches
    )
    lines += [f"{count:8} x {group}" for group, count in groups.most_common()]
    lines += [f"{n:8} x intended: {reason}" for reason, n in comparison.expected.most_common()]
    lines += [f"\n{mismatch}" for mismatch in comparison.mismatches[:_SHOWN]]
    return "\n".join(lines)


def main() -> int:
    """Compare the responses of OLD_TREE and of this tree.

    The status is 1 if there is a mismatch, or if the new services leave more sockets open.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=main.__doc__)
    parser.add_argument("old_tree", type=Path, metavar="OLD_TREE")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    comparison = compare(options.old_tree.resolve(), options.requests, options.seed)
    print(summary(comparison))  # noqa: T201  # a command prints
    has_leak = comparison.leaks[1] > max(0, comparison.leaks[0])
    return 1 if comparison.mismatches or has_leak else 0


if __name__ == "__main__":
    sys.exit(main())
