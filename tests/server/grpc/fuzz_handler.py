"""Fuzz what speaks gRPC: `python -m tests.server.grpc.fuzz_handler SECONDS FOLDER`.

Bytes go into a connection, frames that make some sense go into one, and messages go into Envoy's
service, by gRPC and as JSON. Nothing may raise, hang, be logged as an error, or be answered by
INTERNAL or UNKNOWN.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from pathlib import Path
from typing import Any

import atheris  # type: ignore[import-untyped]  # it has none

with atheris.instrument_imports(include=["limen.server.grpc", "limen.server.envoy"]):
    from limen.server.envoy.question import decoded
    from limen.server.envoy.schema import SHOULD_RATE_LIMIT, RateLimitResponse, envoy_schema
    from limen.server.envoy.service import RateLimits
    from limen.server.grpc.calls import Call, Code, Failed, Methods, Unary
    from limen.server.grpc.connection import GrpcLimits
    from limen.server.grpc.schema import Schema
    from limen.server.grpc.services import Health, Reflection

from hpack import Encoder

from limen.engine import AsyncEngine
from limen.errors import InvalidInput, InvalidLimit
from limen.limiter import AsyncLimiter
from limen.rules import parse_text
from limen.server.http import Request
from limen.server.http.exchange import Rejected
from limen.server.insight.watch import Watch
from tests.server.admin.driving import StubPeer
from tests.server.grpc.inside import Inside
from tests.server.grpc.wire import PREFACE, Transcript, headers, prefixed, raw

RULES = """
rules:
  - {name: user, match: {domain: d, descriptor: user}, key: [user], limits: [5/minute, 9/hour]}
  - {name: paid, match: {domain: d, descriptor: path}, key: [path], cost: 3, limits: 8/minute}
  - {name: by, match: {domain: d}, key: [descriptor], cost: tokens, limits: 90/day token_bucket}
  - {name: never, match: {domain: d, descriptor: agent}, mode: block}
  - {name: seen, match: {domain: d}, limits: 3/minute, mode: shadow}
  - name: plans
    match: {domain: d, descriptor: plan}
    key: [plan]
    tiers: {by: plan, limits: {gold: unlimited}, default: 2/second}
exemptions:
  - {name: friends, match: {domain: d, user: friend}}
"""
PATHS = [
    SHOULD_RATE_LIMIT.decode(),
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/nothing",
]
RateLimitRequest = envoy_schema().message("envoy.service.ratelimit.v3.RateLimitRequest")
BAD = {2, 13}
SLOW_S = 5.0
SETTINGS = raw(4)


class Errors(logging.Handler):
    """Makes an exception of what is logged as an error."""

    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(self.format(record))


class Target:
    """The service, and how inputs become what is asked of it."""

    def __init__(self) -> None:
        self._limiter = AsyncLimiter()
        engine = AsyncEngine(parse_text(RULES), self._limiter)
        self._limits = RateLimits(
            engine, self._limiter, Watch(), within=1.0, styles=("draft-11", "x-ratelimit")
        )
        schema = Schema()
        self.methods: Methods = {
            SHOULD_RATE_LIMIT: Unary(self._should_rate_limit),
            **Health(schema, lambda: True).methods,
            **Reflection(schema).methods,
        }
        self._inside = Inside(self.methods, GrpcLimits(max_message=20_000))

    async def _should_rate_limit(self, message: bytes, call: Call) -> bytes:
        try:
            return await self._limits.should_limit(message)
        except (InvalidInput, InvalidLimit) as error:
            raise Failed(Code.INVALID_ARGUMENT, str(error)) from None

    async def take(self, data: bytes) -> None:
        """Ask what an input says; the first byte says how."""
        began = time.monotonic()
        provider = atheris.FuzzedDataProvider(data)
        kind = provider.ConsumeIntInRange(0, 5)
        if kind == 0:
            self._look_at(await self._inside.say(provider.ConsumeBytes(2**20)))
        elif kind == 1:
            rest = provider.ConsumeBytes(2**20)
            at = len(rest) // 2
            said = await self._inside.say(PREFACE + SETTINGS, rest[:at], rest[at:])
            self._look_at(said)
        elif kind == 2:
            self._look_at(await self._inside.say(PREFACE + SETTINGS, *frames(provider)))
        elif kind == 3:
            await self._take_message(provider.ConsumeBytes(2**20))
        elif kind == 4:
            await self._take_message(message(provider))
        else:
            await self._take_json(provider)
        took = time.monotonic() - began
        assert took < SLOW_S, f"took {took:.1f} s"

    async def _take_message(self, message: bytes) -> None:
        try:
            answer = await self._limits.should_limit(message)
        except (InvalidInput, InvalidLimit):
            return
        response = RateLimitResponse.FromString(answer)
        request = decoded(message)
        assert len(response.statuses) == len(request.descriptors)
        over = [status.code == 2 for status in response.statuses]
        assert response.overall_code == (2 if any(over) else 1)

    async def _take_json(self, provider: Any) -> None:
        peer: Any = StubPeer()
        request = Request("POST", b"/json", "/json", b"", [], peer)
        request.body = provider.ConsumeBytes(2**20)
        try:
            reply = await self._limits.should_limit_json(request)
        except (InvalidInput, InvalidLimit):
            return
        except Rejected:
            return
        assert reply.status in (200, 429)
        assert reply.body

    def _look_at(self, said: Transcript) -> None:
        for answer in said.answers.values():
            for each in answer.headers:
                assert int(each.get("grpc-status", 0)) not in BAD, each
        assert all(frame.error_code != 2 for frame in said.goaways)


def frames(provider: Any) -> list[bytes]:
    """Return frames that make more sense than noise: calls, with something wrong here and there."""
    encoder = Encoder()
    found = []
    for _ in range(provider.ConsumeIntInRange(1, 12)):
        number = provider.ConsumeIntInRange(0, 7)
        what = provider.ConsumeIntInRange(0, 5)
        if what <= 1:
            path = PATHS[provider.ConsumeIntInRange(0, len(PATHS) - 1)]
            block = encoder.encode(list(headers(path).items()))
            found.append(raw(1, 4 | provider.ConsumeIntInRange(0, 1), number, block))
        elif what == 2:
            message = provider.ConsumeBytes(provider.ConsumeIntInRange(0, 200))
            found.append(raw(0, provider.ConsumeIntInRange(0, 1), number, prefixed(message)))
        elif what == 3:
            flags, payload = provider.ConsumeIntInRange(0, 255), provider.ConsumeBytes(60)
            found.append(raw(0, flags, number, payload))
        else:
            kind, flags = provider.ConsumeIntInRange(0, 10), provider.ConsumeIntInRange(0, 255)
            payload = provider.ConsumeBytes(provider.ConsumeIntInRange(0, 40))
            found.append(raw(kind, flags, number, payload))
    return found


def message(provider: Any) -> bytes:
    """Return a request that makes more sense than noise."""
    request = RateLimitRequest(
        domain=provider.PickValueInList(["d", "e", ""]),
        hits_addend=provider.PickValueInList([0, 1, 2, 2**32 - 1]),
    )
    for _ in range(provider.ConsumeIntInRange(0, 6)):
        descriptor = request.descriptors.add()
        for _ in range(provider.ConsumeIntInRange(0, 3)):
            key = provider.PickValueInList(["user", "path", "plan", "agent", "tokens", "", "é/%"])
            value = provider.PickValueInList(["", "1", "gold", "friend", "99999999999", "∅"])
            descriptor.entries.add(key=key, value=value or provider.ConsumeUnicodeNoSurrogates(9))
        if provider.ConsumeBool():
            descriptor.hits_addend.value = provider.PickValueInList([0, 1, 7, 10**9, 2**64 - 1])
        if provider.ConsumeBool():
            descriptor.limit.requests_per_unit = provider.PickValueInList([0, 1, 9, 2**32 - 1])
            descriptor.limit.unit = provider.ConsumeIntInRange(-1, 8)
        descriptor.is_negative_hits = provider.ConsumeIntInRange(0, 20) == 20
    found: bytes = request.SerializeToString()
    return found


def seeds() -> list[bytes]:
    """Return inputs to begin with, most of them understood."""
    request = RateLimitRequest(domain="d", hits_addend=2)
    for key, value in (("user", "1"), ("path", "/x"), ("plan", "gold"), ("agent", "robot")):
        request.descriptors.add().entries.add(key=key, value=value)
    first = request.descriptors[0]
    first.hits_addend.value = 3
    first.limit.requests_per_unit, first.limit.unit = 4, 2
    message = request.SerializeToString()
    call = raw(1, 4, 1, Encoder().encode(list(headers(PATHS[0]).items())))
    call += raw(0, 1, 1, prefixed(message))
    json = b'{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "1"}]}]}'
    # The provider takes numbers from the end.
    return [
        PREFACE + SETTINGS + call + b"\0",
        call + b"\1",
        message + b"\3",
        json + b"\5",
        message + bytes(range(64)) + b"\2",
        bytes(range(99)) + b"\4",
    ]


def main() -> None:
    """Fuzz for as long as the first argument says."""
    seconds, folder = sys.argv[1:]
    logging.getLogger().addHandler(Errors(logging.WARNING))
    runner = asyncio.Runner()
    strays: list[Any] = []

    async def make() -> Target:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: strays.append(context))
        return Target()

    target = runner.run(make())
    for seed in seeds():
        runner.run(target.take(seed))

    def take(data: bytes) -> None:
        runner.run(target.take(data))
        assert not strays, strays

    flags = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=10", "-print_final_stats=1"]
    for number, seed in enumerate(seeds()):
        (Path(folder) / f"seed-{number}").write_bytes(seed)
    # Into the folder goes what it finds out, and what broke something.
    atheris.Setup([sys.argv[0], *flags, f"-artifact_prefix={folder}/", folder], take)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
