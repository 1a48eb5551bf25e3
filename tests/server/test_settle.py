"""Reserve and settle, and slots, over two services that share a store: the totals are exact."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from limen import wire
from tests.server.asking import Asker, asking, done, granted, verdict
from tests.servers import HOST, Server, binaries, process
from tests.waiting import wait_until

CALLERS, REQUESTS = 16, 12
QUOTA = 9_000
ALGORITHMS = ("packed_window", "rolling_window", "token_bucket", "leaky_bucket")
# In so long a period, nothing comes back while a test runs.
RULES = "rules:\n" + "".join(
    f"""
  - name: tokens-{name}
    match: {{model: {name}}}
    key: [user]
    cost: tokens
    limits: {QUOTA}/28 days {name}
"""
    for name in ALGORITHMS
)
RULES += f"""
  - name: pages
    match: {{model: "*"}}
    key: [user]
    cost: pages
    limits: {QUOTA}/day
  - name: requests
    match: {{model: "*"}}
    key: [user]
    limits: {QUOTA}/day
  - name: fixed
    match: {{model: "*"}}
    key: [user]
    cost: 2
    limits: {QUOTA}/day
  - name: tight
    match: {{path: /tight}}
    key: [user]
    cost: tokens
    limits: 1000/day
  - name: loose
    match: {{path: /loose}}
    key: [user]
    cost: tokens
    limits: 1000/28 days token_bucket
  - name: at-once
    match: {{path: /export}}
    key: [user]
    concurrency: {{slots: 3, lease: 60s}}
  - name: exports
    match: {{path: /export}}
    key: [user]
    limits: {QUOTA}/day
"""
SECRET = "the same on every host, 0123456789abcdef"


@pytest.fixture(scope="module")
def services(
    module_valkey: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Asker]]:
    """Three: two that are asked, and one that only looks."""
    with asking(tmp_path_factory.mktemp("services"), RULES, flags(module_valkey), 3) as started:
        yield started


def flags(server: Server) -> dict[str, Any]:
    # Long enough for a machine that has much else to do.
    return {
        "store.url": f"redis://{HOST}:{server.port}",
        "store.deadline": 5.0,
        "auth.secret": SECRET,
    }


async def post(service: Asker, path: str, value: Any) -> Any:
    return await service.send("POST", path, json.dumps(value).encode())


async def changed(service: Asker, path: str, **value: Any) -> bool:
    return done(await post(service, f"/v1/{path}", value))


@dataclass
class Caller:
    """Asks a language model: what it will answer is known afterwards."""

    random: random.Random
    services: list[Asker]
    attributes: dict[str, str]
    spent: dict[str, int] = field(
        default_factory=lambda: {"tokens": 0, "pages": 0, "requests": 0, "fixed": 0}
    )

    async def run(self) -> None:
        for _ in range(REQUESTS):
            await self._ask()

    async def _ask(self) -> None:
        estimate = self.random.randint(1, 20)
        attributes = {**self.attributes, "tokens": str(estimate), "pages": "3"}
        admitted = verdict(
            await post(self.random.choice(self.services), "/v1/check", {"attributes": attributes})
        )
        assert admitted.allowed
        assert not admitted.degraded
        assert admitted.receipt is not None
        await asyncio.sleep(0)
        cost = {"tokens": estimate, "pages": 3, "requests": 1, "fixed": 2}
        await self._correct(admitted.receipt, cost)
        for name, spent in cost.items():
            self.spent[name] += spent

    async def _correct(self, receipt: str, cost: dict[str, int]) -> None:
        """Settle or refund, or not; whichever service it is, and sometimes both at once."""
        actual = self.random.choice([0, 1, cost["tokens"] // 2, cost["tokens"] + 5, 40])
        pages = self.random.choice([0, 3, 9])
        ways: list[tuple[str, dict[str, Any], dict[str, int]]] = [
            ("settle", {"actual": {"tokens": actual}}, {"tokens": actual}),
            (
                "settle",
                {"actual": {"tokens": actual, "pages": pages}},
                {"tokens": actual, "pages": pages},
            ),
            ("settle", {"actual": {"tokens": actual, "nobody": 7}}, {"tokens": actual}),
            ("settle", {"actual": actual}, {"requests": actual}),
            ("refund", {}, dict.fromkeys(cost, 0)),
        ]
        way = self.random.choice([*ways, None])
        if way is None:
            return
        path, told, becomes = way
        is_other = any(cost[name] != value for name, value in becomes.items())
        times = self.random.choice([1, 2, 3])
        if self.random.random() < 0.5:
            said = await asyncio.gather(
                *[
                    changed(self.services[n % 2], path, receipt=receipt, **told)
                    for n in range(times)
                ]
            )
        else:
            said = [
                await changed(self.random.choice(self.services), path, receipt=receipt, **told)
                for _ in range(times)
            ]
        # Two attributes are two corrections: of two who come at once, each may have made one.
        assert is_other <= sum(said) <= is_other * len(becomes)
        if path == "refund" or len(becomes) == 1:
            assert sum(said) == is_other
        cost.update(becomes)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_totals_are_exact(services: list[Asker], algorithm: str) -> None:
    who = {"model": algorithm, "user": algorithm}
    callers = [Caller(random.Random(seed), services[:2], who) for seed in range(CALLERS)]

    async def run() -> None:
        await asyncio.gather(*[caller.run() for caller in callers])

    services[0].run(run())
    spent = {name: sum(caller.spent[name] for caller in callers) for name in callers[0].spent}
    assert spent["fixed"] > 0
    assert spent["tokens"] > CALLERS * REQUESTS
    for service in services:
        looked = service.check({**who, "tokens": "1"}, peek=True)
        left = {str(part.rule).partition("-")[0]: part.remaining for part in looked.parts}
        exact = {name: QUOTA - total for name, total in spent.items()}
        if algorithm.endswith("_bucket"):
            # What came back out of turn may be too little for a bucket, and is never too much.
            tokens = left["tokens"] or 0
            assert exact["tokens"] - CALLERS * 20 <= tokens <= exact["tokens"]
            exact["tokens"] = tokens
        assert left == exact


def test_estimates_that_do_not_fit_are_refused_and_what_is_settled_makes_room(
    services: list[Asker],
) -> None:
    one, other, _ = services
    asked = {"path": "/tight", "user": "tight", "tokens": "400"}
    first, second = one.check(asked), other.check(asked)
    refused = one.check(asked)
    assert (refused.allowed, refused.receipt) == (False, None)
    assert other.changed("settle", receipt=first.receipt, actual={"tokens": 200})
    third = one.check(asked)
    assert (third.allowed, third.remaining) == (True, 0)
    # More than was reserved: into debt, which refuses until it is worked off.
    assert one.changed("settle", receipt=second.receipt, actual={"tokens": 900})
    assert other.usage(path="/tight", user="tight").remaining == 0
    assert one.changed("refund", receipt=third.receipt)
    assert not one.check(asked)
    assert not other.changed("refund", receipt=third.receipt)
    assert not other.changed("settle", receipt=third.receipt, actual={"tokens": 0})
    assert not other.changed("refund", receipt=first.receipt)


def test_many_at_once_never_reserve_more_than_there_is(services: list[Asker]) -> None:
    async def run() -> list[wire.Verdict]:
        asked = {"attributes": {"path": "/tight", "user": "crowd", "tokens": "7"}}
        return await asyncio.gather(
            *[_verdict(services[n % 2], asked) for n in range(CALLERS * REQUESTS)]
        )

    said = services[0].run(run())
    assert sum(each.allowed for each in said) == 1000 // 7
    assert services[2].usage(path="/tight", user="crowd").remaining == 1000 % 7


async def _verdict(service: Asker, asked: Any) -> wire.Verdict:
    return verdict(await post(service, "/v1/check", asked))


def test_limits_of_ones_own_are_settled_by_a_number(services: list[Asker]) -> None:
    one, other, looks = services
    own: dict[str, Any] = {"key": "own", "limits": ["900/hour", "5000/day token_bucket"]}
    receipts = [one.check(**own, cost=50).receipt for _ in range(4)]
    assert other.changed("settle", receipt=receipts[0], actual=80)
    assert one.changed("settle", receipt=receipts[1], actual=0)
    assert other.changed("refund", receipt=receipts[2])
    assert not other.changed("settle", receipt=receipts[3], actual={"tokens": 0})
    assert looks.check(**own, peek=True).parts[0].remaining == 900 - 80 - 50
    assert looks.check(**own, peek=True).parts[1].remaining == 5000 - 80 - 50


def test_an_old_secret_opens_nothing(
    services: list[Asker], module_valkey: Server, tmp_path: Path
) -> None:
    held = services[0].check({"model": "x", "user": "foreign"}).receipt
    with asking(tmp_path, RULES, {**flags(module_valkey), "auth.secret": SECRET[::-1]}) as [
        foreign
    ]:
        assert foreign.post("/v1/refund", {"receipt": held}).status == 422
    assert services[1].changed("refund", receipt=held)


# Without the store


@pytest.mark.parametrize("path", ["/tight", "/loose"])
def test_what_one_counted_alone_is_not_given_back_by_another(path: str, tmp_path: Path) -> None:
    asked = {"path": path, "user": "alone", "tokens": "100"}
    with process(binaries()["valkey"]) as server:
        told = {**flags(server), "store.deadline": 0.3}
        with asking(tmp_path, RULES, told, 2) as [one, other]:
            # As the first would hear within seconds.
            one.service.limiter.share_with(2)
            counted = [one.check(asked), other.check(asked)]
            assert {said.source for said in counted} == {"store"}
            server.kill()
            here, there = one.check(asked), other.check(asked)
            assert (here.source, there.source) == ("local", "local")
            assert [one.usage(**asked).remaining, other.usage(**asked).remaining] == [350, 300]
            for verb, becomes in (("refund", {}), ("settle", {"actual": {"tokens": 1}})):
                assert not other.changed(verb, receipt=here.receipt, **becomes)
                assert not one.changed(verb, receipt=there.receipt, **becomes)
            assert [one.usage(**asked).remaining, other.usage(**asked).remaining] == [350, 300]
            assert one.changed("settle", receipt=here.receipt, actual={"tokens": 30})
            assert not one.changed("refund", receipt=here.receipt)
            assert one.usage(**asked).remaining == 420

            server.restart()
            for service in (one, other):
                _wait_until_counted(service)
            assert other.check(asked).remaining == 900
            # What was counted elsewhere is not found in the store.
            assert not one.changed("refund", receipt=here.receipt)
            assert not other.changed("refund", receipt=here.receipt)
            assert other.changed("refund", receipt=there.receipt)
            assert one.usage(**asked).remaining == 900


def _wait_until_counted(service: Asker) -> None:
    wait_until(
        lambda: not service.check(key="any", limits="5/hour", cost=0).degraded,
        interval_s=0.05,
        sleep=lambda seconds: service.run(asyncio.sleep(seconds)),
    )


# Slots


def test_slots_are_renewed_and_released_by_another(services: list[Asker]) -> None:
    one, other, looks = services
    asked = {"path": "/export", "user": "slots"}
    held = [one.acquire(attributes=asked) for _ in range(3)]
    assert all(each.verdict.allowed for each in held)
    full = other.acquire(attributes=asked)
    assert (full.verdict.allowed, full.slot, full.lease) == (False, None, None)
    assert (full.verdict.rule, full.verdict.limit) == ("at-once", "3 at once, lease 1 minute")
    assert [part.remaining for part in looks.usage(**asked).parts] == [0, QUOTA - 3]
    first = held[0].slot
    assert first is not None
    assert other.renew(first)
    assert other.release(first)
    assert not one.release(first)
    assert not one.renew(first)
    again = other.acquire(attributes=asked)
    assert again.verdict.allowed
    # A slot is for holding; what was charged beside it can be given back by the receipt.
    assert one.changed("refund", receipt=again.verdict.receipt)
    assert [part.remaining for part in looks.usage(**asked).parts] == [0, QUOTA - 3]


def test_never_more_hold_than_may(services: list[Asker]) -> None:
    most, held, granted_ = 0, 0, 0

    async def hold(seed: int) -> None:
        nonlocal most, held, granted_
        found = random.Random(seed)
        for _ in range(REQUESTS):
            asked = {"attributes": {"path": "/export", "user": "never more"}}
            one, other = found.sample(services[:2], 2)
            said = granted(await post(one, "/v1/slots", asked))
            if said.slot is None:
                continue
            held, granted_ = held + 1, granted_ + 1
            most = max(most, held)
            for _ in range(found.randint(0, 3)):
                assert done(await other.send("POST", f"/v1/slots/{said.slot}"))
            held -= 1
            assert done(await other.send("DELETE", f"/v1/slots/{said.slot}"))

    async def run() -> None:
        await asyncio.gather(*[hold(seed) for seed in range(CALLERS)])

    services[0].run(run())
    assert most == 3
    looked = services[2].usage(path="/export", user="never more")
    # Who was refused a place was charged nothing beside it.
    assert [part.remaining for part in looked.parts] == [3, QUOTA - granted_]


def test_a_release_that_comes_too_late_frees_nobodys(services: list[Asker]) -> None:
    one, other, _ = services
    own = {"key": "late", "concurrency": {"slots": 1, "lease": 0.4}}
    late = one.acquire(**own).slot
    assert late is not None
    refused = other.acquire(**own).verdict
    assert not refused.allowed
    assert refused.retry_after is not None
    assert 0 < refused.retry_after <= 0.4
    longer = {"key": "late", "concurrency": {"slots": 1, "lease": 60}}
    end = time.monotonic() + 5
    while (next_ := other.acquire(**longer).slot) is None:
        assert time.monotonic() < end
    assert not one.renew(late)
    assert not one.release(late)
    assert not other.release(late)
    assert not one.acquire(**longer).verdict.allowed
    assert one.renew(next_)
    assert one.release(next_)
    assert one.acquire(**longer).verdict.allowed
