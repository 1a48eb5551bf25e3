"""One judges for all, the others show it, the next one goes on; alone while Redis is away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

from limen.connect import target_of
from limen.errors import StoreError
from limen.observe.alerts import Alert, Thresholds
from limen.observe.board import Board
from limen.observe.ring import SHORT_S, Ring, start_of
from limen.observe.slices import RuleSlice, Slice
from limen.observe.view import View
from limen.server.insight import alerting
from limen.server.insight.alerting import Alerting
from limen.server.insight.deliver import Delivery, Sender
from tests import servers

NOW = 1_700_000_042.0


class Told(Delivery):
    """Tells a list."""

    def __init__(self) -> None:
        super().__init__(Sender(host="here", namespace="limen"))
        self.changed: list[Alert] = []

    def deliver(self, changed: Sequence[Alert], more: int = 0) -> None:
        self.changed += changed

    @property
    def words(self) -> list[tuple[str, bool]]:
        return [(alert.id, alert.ended is not None) for alert in self.changed]


class Process:
    """One of those that share a store."""

    def __init__(self, name: str, port: int, *, is_first: bool = True) -> None:
        target = target_of(f"redis://127.0.0.1:{port}", asynchronous=True)
        self.board = Board(target, "limen", name)
        self.ring = Ring()
        self.view = View(self.ring, self.board, name)
        self.told = Told()
        self.is_first = is_first

        async def first(now: float) -> bool:
            return self.is_first

        thresholds = Thresholds(least=10)
        self.alerts = Alerting(thresholds, self.view, self.board, self.told, first)

    async def refuse(self, now: float, times: int = 100) -> None:
        rule = RuleSlice(denied=times, top_denied=(("k", times),))
        start = start_of(now, SHORT_S)
        self.ring.put(Slice(start, SHORT_S, 0, times, 0, (), (), {"rule": rule}), is_over=True)
        with contextlib.suppress(StoreError):
            await self.board.write(self.ring.unsent(), [])

    def close(self) -> None:
        self.alerts.close()
        self.board.close()


@pytest.fixture
def server() -> Iterator[servers.Server]:
    with servers.process(servers.binaries()["valkey"]) as started:
        yield started


def ids(alerts: Sequence[Alert]) -> list[str]:
    return sorted(alert.id for alert in alerts)


def test_one_judges_and_tells_and_all_show_the_same(server: servers.Server) -> None:
    async def main() -> None:
        one, two = Process("one", server.port), Process("two", server.port)
        await two.refuse(NOW)
        for now in (NOW, NOW + 1):
            for each in (one, two):
                await each.alerts.turn(now)
        assert len(one.alerts.open) == 2
        assert one.alerts.open == two.alerts.open
        assert ids(one.told.changed) == ids(one.alerts.open)
        assert two.told.changed == []
        for now in range(12, 20):
            for each in (one, two):
                await each.alerts.turn(NOW + now)
        assert not one.alerts.open
        assert not two.alerts.open
        assert ids(one.alerts.ended) == ids(two.alerts.ended)
        assert [ended for _, ended in one.told.words] == [False, False, True, True]
        assert two.told.changed == []
        for each in (one, two):
            each.close()

    asyncio.run(main())


def test_the_next_one_goes_on_where_the_last_one_left_off(
    server: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerting, "_CLAIM_S", 0.3)

    async def main() -> None:
        one, two = Process("one", server.port), Process("two", server.port)
        await one.refuse(NOW)
        await one.alerts.turn(NOW)
        began = ids(one.told.changed)
        one.close()  # it dies
        await asyncio.sleep(0.5)
        await two.refuse(NOW + 2)
        await two.alerts.turn(NOW + 2)
        assert ids(two.alerts.open) == began
        assert two.told.changed == []
        assert {alert.started for alert in two.alerts.open} == {NOW}
        for now in range(14, 22):
            await two.alerts.turn(NOW + now)
        assert [ended for _, ended in two.told.words] == [True, True]
        assert ids(two.told.changed) == began
        two.close()

    asyncio.run(main())


def test_while_redis_is_away_each_judges_itself_and_the_first_of_a_host_tells(
    server: servers.Server,
) -> None:
    async def main() -> None:
        one = Process("one", server.port)
        two = Process("two", server.port, is_first=False)
        for each in (one, two):
            await each.alerts.turn(NOW)
        now = NOW
        for tells, is_silent in ((one, two), (two, one)):
            tells.is_first, is_silent.is_first = True, False
            before = list(is_silent.told.changed)
            server.kill()
            for each in (one, two):
                await each.refuse(now)
                await each.alerts.turn(now + 1)
            assert ids(one.alerts.open) == ids(two.alerts.open) != []
            assert ids(tells.told.changed) == ids(tells.alerts.open)
            assert is_silent.told.changed == before
            server.restart()
            end = time.monotonic() + 20
            while one.alerts.open or two.alerts.open:
                assert time.monotonic() < end
                # It is not over by itself, before Redis is back; and then so long ago that nobody
                # begins to tell of it for all.
                now += 20 * (one.view.is_shared and two.view.is_shared)
                for each in (one, two):
                    await each.alerts.turn(now + 1)
                await asyncio.sleep(0.1)
            # Who told of the beginning tells of the end.
            told = {alert.id for alert in tells.told.changed[:2]}
            assert set(tells.told.words) == {(id_, over) for id_ in told for over in (False, True)}
            assert is_silent.told.changed == before
            now += 100
        for each in (one, two):
            each.close()

    asyncio.run(main())


@pytest.mark.parametrize("poison", [b"{}", b"[]", b'{"open": [1]}', b"\xff", b"x" * 600_000])
def test_a_poisoned_notice_is_none(server: servers.Server, poison: bytes) -> None:
    async def main() -> None:
        with redis.Redis(port=server.port) as admin:
            admin.set("limen:{insight}notice:alerts", poison)
            admin.set("limen:{insight}claim:alerts", "somebody", px=60_000)
        one = Process("one", server.port)
        await one.alerts.turn(NOW)
        assert (one.alerts.open, one.alerts.ended, one.alerts.more) == ((), (), 0)
        one.close()

    asyncio.run(main())


def test_a_notice_comes_down_by_itself(server: servers.Server) -> None:
    async def main() -> None:
        one = Process("one", server.port)
        await one.refuse(NOW)
        await one.alerts.turn(NOW)
        one.close()

    asyncio.run(main())
    with redis.Redis(port=server.port) as admin:
        keys: Any = admin.keys("*")
        assert len(keys) == 3
        assert all(0 < admin.ttl(key) <= 3_720 for key in keys)


def test_who_told_alone_of_a_beginning_tells_of_the_end_though_another_is_first_by_then(
    server: servers.Server,
) -> None:
    async def main() -> None:
        one = Process("one", server.port)
        two = Process("two", server.port, is_first=False)
        for each in (one, two):
            await each.alerts.turn(NOW)
        server.kill()
        for each in (one, two):
            await each.refuse(NOW)
            await each.alerts.turn(NOW + 1)
        one.is_first, two.is_first = False, True
        for now in range(20, 40):
            for each in (one, two):
                await each.alerts.turn(NOW + now)
        assert one.alerts.open == two.alerts.open == ()
        assert sorted(ended for _, ended in one.told.words) == [False, False, True, True]
        assert two.told.changed == []
        for each in (one, two):
            each.close()

    asyncio.run(main())


def test_what_could_not_be_written_down_is_told_once(
    server: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        one = Process("one", server.port)
        await one.alerts.turn(NOW)
        await one.refuse(NOW)

        async def fail(*_: object) -> None:
            raise StoreError("redis went away at this moment")

        monkeypatch.setattr(one.board, "post", fail)
        await one.alerts.turn(NOW + 1)
        assert len(one.told.words) == 2
        assert ids(one.told.changed) == ids(one.alerts.open)
        one.close()

    asyncio.run(main())
