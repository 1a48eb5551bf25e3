"""One judges for all, the others show it, the next one goes on; alone while Redis is away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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
from limen.server.insight.deliver import Delivery
from tests import servers
from tests.waiting import wait_until_async

NOW = 1_700_000_042.0


class Told(Delivery):
    """Tells a list."""

    def __init__(self) -> None:
        super().__init__("limen")
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
        await self._see(Slice(start, SHORT_S, 0, times, 0, (), (), {"rule": rule}))

    async def fall_back(self, now: float, times: int = 100) -> None:
        """Decide without the store."""
        await self._see(Slice(start_of(now, SHORT_S), SHORT_S, times, 0, times, (), (), {}))

    async def _see(self, slice_: Slice) -> None:
        self.ring.put(slice_, is_over=True)
        await self.share()

    async def share(self) -> None:
        """As `Insight` does before it judges."""
        try:
            await self.alerts.hand_over()
            await self.board.write(self.ring.unsent(), [])
        except StoreError as error:
            self.view.rest(error)

    def close(self) -> None:
        self.alerts.close()
        self.board.close()


def ids(alerts: Sequence[Alert]) -> list[str]:
    return sorted(alert.id for alert in alerts)


def test_one_judges_and_tells_and_all_show_the_same(own_valkey: servers.Server) -> None:
    async def main() -> None:
        one, two = Process("one", own_valkey.port), Process("two", own_valkey.port)
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
    own_valkey: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerting, "_CLAIM_S", 0.3)

    async def main() -> None:
        one, two = Process("one", own_valkey.port), Process("two", own_valkey.port)
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
    own_valkey: servers.Server,
) -> None:
    async def main() -> None:
        one = Process("one", own_valkey.port)
        two = Process("two", own_valkey.port, is_first=False)
        for each in (one, two):
            await each.alerts.turn(NOW)
        now = NOW
        for tells, is_silent in ((one, two), (two, one)):
            tells.is_first, is_silent.is_first = True, False
            before = list(is_silent.told.changed)
            own_valkey.kill()
            for each in (one, two):
                await each.refuse(now)
                await each.alerts.turn(now + 1)
            assert ids(one.alerts.open) == ids(two.alerts.open) != []
            assert ids(tells.told.changed) == ids(tells.alerts.open)
            assert is_silent.told.changed == before
            own_valkey.restart()
            await until_shared(one, two)
            while one.alerts.open or two.alerts.open:
                # So much later that nobody begins to tell of it for all.
                now += 20
                assert now < NOW + 1_000
                for each in (one, two):
                    await each.alerts.turn(now + 1)
            # Who told of the beginning tells of the end.
            told = {alert.id for alert in tells.told.changed[:2]}
            assert set(tells.told.words) == {(id_, over) for id_ in told for over in (False, True)}
            assert is_silent.told.changed == before
            now += 100
        for each in (one, two):
            each.close()

    asyncio.run(main())


@pytest.mark.parametrize("poison", [b"{}", b"[]", b'{"open": [1]}', b"\xff", b"x" * 600_000])
def test_a_poisoned_notice_is_none(own_valkey: servers.Server, poison: bytes) -> None:
    async def main() -> None:
        with redis.Redis(port=own_valkey.port) as admin:
            admin.set("limen:{insight}notice:alerts", poison)
            admin.set("limen:{insight}claim:alerts", "somebody", px=60_000)
        one = Process("one", own_valkey.port)
        await one.alerts.turn(NOW)
        assert (one.alerts.open, one.alerts.ended, one.alerts.more) == ((), (), 0)
        one.close()

    asyncio.run(main())


def test_a_notice_comes_down_by_itself(own_valkey: servers.Server) -> None:
    async def main() -> None:
        one = Process("one", own_valkey.port)
        await one.refuse(NOW)
        await one.alerts.turn(NOW)
        one.close()

    asyncio.run(main())
    with redis.Redis(port=own_valkey.port) as admin:
        keys: Any = admin.keys("*")
        assert len(keys) == 3
        assert all(0 < admin.ttl(key) <= 3_720 for key in keys)


def test_who_told_alone_of_a_beginning_tells_of_the_end_though_another_is_first_by_then(
    own_valkey: servers.Server,
) -> None:
    async def main() -> None:
        one = Process("one", own_valkey.port)
        two = Process("two", own_valkey.port, is_first=False)
        for each in (one, two):
            await each.alerts.turn(NOW)
        own_valkey.kill()
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
    own_valkey: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        one = Process("one", own_valkey.port)
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


# An outage of the store is one alert


async def until_shared(*processes: Process) -> None:
    """Wait until all of them ask Redis again."""
    await wait_until_async(lambda: all(each.view.is_shared for each in processes))


async def turns(processes: Sequence[Process], start: float, seconds: int) -> set[str]:
    """Let processes judge once a second; return the ids of all alerts that were open."""
    seen = set[str]()
    for second in range(seconds):
        for each in processes:
            await each.share()
            await each.alerts.turn(start + second)
            assert len(each.alerts.open) <= 1
            seen |= {alert.id for alert in each.alerts.open}
    return seen


def changes(*processes: Process) -> list[tuple[str, bool]]:
    return [change for each in processes for change in each.told.words]


@pytest.mark.parametrize(
    "loses",
    [
        pytest.param("nothing", marks=pytest.mark.slow),
        "data",
        pytest.param("leader", marks=pytest.mark.slow),
    ],
)
def test_an_outage_is_one_alert_whoever_judges_it(
    own_valkey: servers.Server, loses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`two` leads before, `one` tells during the outage, and the next to lead is any of them."""
    monkeypatch.setattr(alerting, "_CLAIM_S", 1.0)

    async def main() -> None:
        one, two, idle = (
            Process("one", own_valkey.port),
            Process("two", own_valkey.port, is_first=False),
            Process("idle", own_valkey.port, is_first=False),
        )
        for each in (two, one, idle):
            await each.alerts.turn(NOW)
        (own_valkey.kill if loses == "data" else own_valkey.pause)()
        # They notice at different moments, so that each would give another id.
        for each, at in ((two, NOW + 1), (one, NOW + 7)):
            await each.fall_back(at)
            await each.alerts.turn(at)
            assert len(each.alerts.open) == 1
        await idle.alerts.turn(NOW + 7)
        living = [idle, two, one] if loses != "leader" else [idle, one]
        assert one.told.words == [(one.alerts.open[0].id, False)]
        # Nobody asks for a while: it is not over.
        for each in living:
            await each.alerts.turn(NOW + 30)
        assert len(one.alerts.open) == 1
        await one.fall_back(NOW + 42)
        (own_valkey.restart if loses == "data" else own_valkey.resume)()
        await until_shared(*living)
        await turns(living, NOW + 43, 25)
        for each in living:
            assert each.alerts.open == ()
            assert {alert.id for alert in each.alerts.ended} == {one.told.words[0][0]}
        began, _ = one.told.words[0]
        assert sorted(changes(*living)) == [(began, False), (began, True)]
        for each in (one, two, idle):
            each.close()

    asyncio.run(main())


def test_an_alert_of_a_slow_store_goes_on_when_the_store_stops(own_valkey: servers.Server) -> None:
    async def main() -> None:
        one = Process("one", own_valkey.port)
        await one.fall_back(NOW)
        await one.alerts.turn(NOW)
        (began,) = one.alerts.open
        own_valkey.pause()
        await one.fall_back(NOW + 5)
        await one.alerts.turn(NOW + 6)
        assert not one.view.is_shared
        assert ids(one.alerts.open) == [began.id]
        own_valkey.resume()
        await until_shared(one)
        assert await turns([one], NOW + 7, 25) == {began.id}
        assert one.told.words == [(began.id, False), (began.id, True)]
        one.close()

    asyncio.run(main())


@pytest.mark.slow
def test_hosts_that_each_told_of_an_outage_each_tell_of_its_end(own_valkey: servers.Server) -> None:
    async def main() -> None:
        one, two = Process("one", own_valkey.port), Process("two", own_valkey.port)
        for each in (one, two):
            await each.alerts.turn(NOW)
        own_valkey.pause()
        for each, at in ((one, NOW + 1), (two, NOW + 7)):
            await each.fall_back(at)
            await each.alerts.turn(at)
        own_valkey.resume()
        await until_shared(one, two)
        await turns([one, two], NOW + 8, 40)
        assert ids(one.alerts.open) == ids(two.alerts.open) == []
        for each in (one, two):
            began = each.told.words[0][0]
            assert (began, True) in changes(one, two)
        assert sorted(ended for _, ended in changes(one, two)) == [False, False, True, True]
        for each in (one, two):
            each.close()

    asyncio.run(main())
