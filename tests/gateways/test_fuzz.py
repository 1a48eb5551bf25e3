"""Random headers and paths through real gateways: limen counts what the application sees.

The rules allow one POST for each key and one PUT for each path. A GET is not counted, and shows how
the application sees the request. A POST must pass if no POST with the same key has passed before,
through any of the gateways, and must be refused otherwise. The same holds for a PUT and its path.
If a gateway or limen refuses the GET, the request is not sent again.

Short in `make test`. With `LIMEN_FUZZ=1` it runs for ten minutes, with another seed each time, and
prints its figures.
"""

from __future__ import annotations

import http.client
import json
import os
import posixpath
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest

from tests.faults.figures import say
from tests.gateways import gateways, limens
from tests.gateways.gateways import KINDS, SHIPPED
from tests.gateways.limens import Limen
from tests.servers import HOST

LONG = bool(os.environ.get("LIMEN_FUZZ"))
SECONDS = 600.0 if LONG else 12.0
SEED = random.SystemRandom().getrandbits(32) if LONG else 1
RULES = """
rules:
  - {name: key, match: {method: POST}, key: [api_key], missing: deny, limits: 1/day}
  - {name: path, match: {method: PUT}, key: [path], limits: 1/day}
  - {name: internal, match: {path: [/internal, /internal/*]}, mode: block}
"""
FUZZED = ("nginx", "caddy", "envoy-ext-authz")
PATIENCE_S = 20.0

SPACES = (b" ", b"\t", b"  ", b"\t\t", b" \t ", b"\xa0", b"\xc2\xa0", b"\x85", b"\x0b", b"\x0c")
CONTROLS = (b"\x00", b"\x01", b"\x08", b"\r", b"\n", b"\r\n ", b"\r\n\t", b"\x1c", b"\x1f", b"\x7f")
MARKS = (b",", b", ", b";", b":", b'"', b"'", b"\\", b"%", b"%20", b"%2c", b"{uri}", b"$uri", b"=")
LETTERS = (b"\xff", b"\xfe\xff", b"\xc3\xa9", b"\xe9", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"0", b"K")
NAMES = (b"X-Api-Key", b"x-api-key", b"X-API-KEY", b"X_Api_Key", b"X-Api-Key2")
AROUND_COLON = (b": ", b":", b":\t", b": \t", b":   ", b" : ")

SEGMENTS = (
    *(b"a", b"b", b"A", b"%61", b"%41", b"a b", b"a%20b", b"\xff", b"%ff", b"\xc3\xa9", b"%c3%a9"),
    *(
        b"..",
        b".",
        b"%2e%2e",
        b".%2E",
        b"%2e",
        b"...",
        b"..;",
        b"..;a",
        b"..%3b",
        b"%2e%2e;",
        b".;",
    ),
    *(b"internal", b"%69nternal", b"internal;a", b"internal%3ba", b"Internal", b"internal%00"),
    *(b"", b";", b"%3b", b";a=%2f", b";a=%5c..", b"a;b=c", b"a%2fb", b"a%5Cb", b"a\\b", b"a,b"),
    *(b"%252e%252e", b"%2561", b"%", b"%zz", b"%2", b"~", b"*", b"a#b", b"%23", b"%3f", b"&", b"="),
)
SEPARATORS = (b"/", b"/", b"/", b"/", b"/", b"//", b"\\", b"%2f", b"%2F", b"%5c", b"/./", b"/;/")


class Fuzzer:
    """Sends requests, and compares the decisions with what the application saw."""

    def __init__(self, ports: dict[str, int]) -> None:
        self._ports = ports
        self._random = random.Random(SEED)
        self._bases: list[bytes] = []
        self.keys: dict[bytes, object] = {}
        """The keys of POSTs that have passed, each with its request."""
        self.paths: dict[bytes, object] = {}
        """The same for PUTs."""
        self.figures: Counter[str] = Counter()

    def run(self) -> None:
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            for gateway in self._ports:
                self._try(gateway, self._lines(), self._path())

    def _try(self, gateway: str, lines: bytes, path: bytes) -> None:
        request = (gateway, path, lines)
        seen = self._send(gateway, b"GET", path, lines)
        if seen is None:
            return
        sent = [value.strip(" \t") for name, value in seen["lines"] if name == "x-api-key"]
        [key] = (value.encode("latin-1") for value in sent or [""])  # repeated ones are refused
        assert b"," not in key, request
        is_new = bool(key) and key not in self.keys
        passed = self._send(gateway, b"POST", path, lines) is not None
        assert passed == is_new, ("POST", key, request, self.keys.get(key))
        raw = seen["path"].encode("latin-1")
        here = decoded_first(raw)
        assert here == resolved_first(raw), ("ambiguous", request)
        assert here.split(b"/")[1] != b"internal", request
        is_path_new = here not in self.paths
        passed = self._send(gateway, b"PUT", path, lines) is not None
        assert passed == is_path_new, ("PUT", here, request, self.paths.get(here))
        if is_new:
            self.keys[key] = request
        if is_path_new:
            self.paths[here] = request
        self.figures["keys counted"] += is_new
        self.figures["paths counted"] += is_path_new

    def _send(self, gateway: str, method: bytes, path: bytes, lines: bytes) -> Any | None:
        """Return what the application saw of a request; None if the request was refused."""
        self.figures["requests"] += 1
        length = b"" if method == b"GET" else b"Content-Length: 0\r\n"
        head = b"%b %b HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n%b%b\r\n"
        with socket.create_connection((HOST, self._ports[gateway]), PATIENCE_S) as connection:
            try:
                connection.sendall(head % (method, path, length, lines))
                response = http.client.HTTPResponse(connection)
                response.begin()
                body = response.read()
            except (http.client.HTTPException, ConnectionError):
                self.figures["refused: connection closed"] += 1
                return None
        if response.getheader("X-App") is None:
            self.figures[f"refused: {response.status}"] += 1
            return None
        return json.loads(body)["reached"]

    def _lines(self) -> bytes:
        """Return the lines of headers for one request: mostly one key, in an unusual spelling."""
        choose = self._random.choice
        count = self._random.choices((0, 1, 2, 3), (1, 16, 3, 1))[0]
        lines = [
            (choose(NAMES) if self._random.random() < 0.2 else NAMES[0])
            + (choose(AROUND_COLON) if self._random.random() < 0.3 else b": ")
            + self._value()
            for _ in range(count)
        ]
        return b"".join(line + b"\r\n" for line in lines)

    def _value(self) -> bytes:
        chance, choose = self._random.random, self._random.choice
        if self._bases and chance() < 0.6:
            value = choose(self._bases[-20:])
        else:
            value = b"%x" % self._random.getrandbits(64)
            self._bases.append(value)
        while chance() < 0.5:
            piece = choose(choose((SPACES, SPACES, CONTROLS, MARKS, LETTERS)))
            at = choose((0, len(value), self._random.randrange(len(value) + 1)))
            value = value[:at] + piece + value[at:]
        return b"" if chance() < 0.02 else value

    def _path(self) -> bytes:
        chance, choose = self._random.random, self._random.choice
        path = b""
        for _ in range(self._random.randrange(5)):
            path += choose(SEPARATORS) + choose(SEGMENTS)
        if chance() < 0.3:
            path += b"/%x" % self._random.getrandbits(32)
        query = b"?a=/internal" if chance() < 0.1 else b""
        return (path if path.startswith(b"/") else b"/" + path) + query


def decoded_first(raw: bytes) -> bytes:
    """Return the path as a server sees it that decodes it and resolves dot segments then."""
    plain = unquote_to_bytes(_cut(raw)).replace(b"\\", b"/")
    return b"/" + posixpath.normpath(re.sub(rb";[^/]*", b"", plain)).lstrip(b"/")


def resolved_first(raw: bytes) -> bytes:
    """Return the path as a server sees it that resolves dot segments and decodes it then."""
    kept: list[bytes] = []
    for segment in _cut(raw).split(b"/")[1:]:
        text = unquote_to_bytes(segment.split(b";")[0])
        if text == b"..":
            kept = kept[:-1]
        elif text != b".":
            kept.append(text)
    plain = re.sub(rb";[^/]*", b"", b"/".join(kept).replace(b"\\", b"/"))
    return b"/" + b"/".join(part for part in plain.split(b"/") if part)


def _cut(raw: bytes) -> bytes:
    return re.split(rb"[?#]", raw, maxsplit=1)[0]


@pytest.fixture
def fuzzer(app_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzer]:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "rules.yaml").write_text(RULES)
    limen = Limen(folder / "limen", folder / "rules.yaml", store__url="memory://?max_keys=5000000")
    with ExitStack() as stack:
        stack.enter_context(limens.running(limen))
        ports = {"8080": limen.port, "9000": app_port}
        waiting = {
            kind.name: stack.enter_context(
                gateways.started(
                    kind.command, tuple(SHIPPED / name for name in kind.files), _patient, ports
                )
            )
            for kind in KINDS
            if kind.name in FUZZED
        }
        yield Fuzzer({name: wait() for name, wait in waiting.items()})


def _patient(text: str) -> str:
    """Fail closed, and late: a request that passes without a decision must not go unnoticed."""
    return gateways.waiting(gateways.fail_closed(text), "20000ms", "20s")


@pytest.mark.timeout(SECONDS + 120)
def test_limen_counts_as_many_keys_as_the_application_sees_values(
    fuzzer: Fuzzer, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        fuzzer.run()
    finally:
        fuzzer.figures.update(values=len(fuzzer.keys), paths=len(fuzzer.paths))
        with capsys.disabled() if LONG else nullcontext():
            say("gateways", seed=SEED, **dict(sorted(fuzzer.figures.items())))
    assert fuzzer.figures["keys counted"] == len(fuzzer.keys)
    assert fuzzer.figures["paths counted"] == len(fuzzer.paths)
    assert min(len(fuzzer.keys), len(fuzzer.paths)) > 20
