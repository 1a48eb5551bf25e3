"""What all processes saw, put together: by way of Redis, and in spite of it."""

from __future__ import annotations

import asyncio

import pytest
import redis

from limen.backends.histogram import TRIP_S
from limen.connect import target_of
from limen.observe.board import Board
from limen.observe.ring import LONG_S, SHORT_S, Ring, start_of
from limen.observe.slices import RuleSlice, Slice, percentile
from limen.observe.view import View
from tests import servers

NOW = 1_700_000_042.5
LATEST = start_of(NOW, SHORT_S)


@pytest.fixture
def port(valkey: servers.Server) -> int:
    return valkey.port


def slice_at(start: int, key: str = "k", allowed: int = 1) -> Slice:
    rules = {"rule": RuleSlice(allowed, top_allowed=((key, allowed),))}
    return Slice(start, SHORT_S, allowed, 0, 0, (), (), rules)


class Process:
    """One of those that share a board."""

    def __init__(self, name: str, port: int | None) -> None:
        self.board = None
        if port is not None:
            target = target_of(f"redis://127.0.0.1:{port}", asynchronous=True)
            self.board = Board(target, "limen", name)
        self.ring = Ring()
        self.view = View(self.ring, self.board, name)

    async def see(self, slice_: Slice, *, is_over: bool = True) -> None:
        self.ring.put(slice_, is_over=is_over)
        if self.board is not None:
            unsent = self.ring.unsent()
            await self.board.write(unsent, [])
            self.ring.sent(unsent)

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def test_two_processes_see_what_both_saw(port: int) -> None:
    async def main() -> None:
        one, two = Process("one", port), Process("two", port)
        await one.see(slice_at(LATEST, "a", 2))
        await two.see(slice_at(LATEST, "b", 3))
        await two.see(slice_at(LATEST - SHORT_S, "a", 5))
        for process in (one, two):
            picture = await process.view.picture(60, NOW)
            assert picture.whole.allowed == 10
            assert picture.whole.rules["rule"].top_allowed == (("a", 7), ("b", 3))
            assert (picture.instances, picture.is_shared) == (("one", "two"), True)
            assert [each.allowed for each in picture.each] == [0] * 10 + [5, 5]
            process.close()

    asyncio.run(main())


def test_what_one_saw_that_is_gone_is_still_seen(port: int) -> None:
    async def main() -> None:
        one, two = Process("one", port), Process("two", port)
        await one.see(slice_at(LATEST, "a", 2))
        one.close()
        assert (await two.view.picture(60, NOW)).whole.allowed == 2
        two.close()

    asyncio.run(main())


def test_our_own_slice_is_newer_here_than_on_the_board(port: int) -> None:
    async def main() -> None:
        one = Process("one", port)
        await one.see(slice_at(LATEST, "a", 2), is_over=False)
        one.ring.put(slice_at(LATEST, "a", 9), is_over=False)
        assert (await one.view.picture(60, NOW)).whole.allowed == 9
        one.close()

    asyncio.run(main())


def test_the_last_hour_is_of_minutes_and_of_what_is_not_over(port: int) -> None:
    async def main() -> None:
        one, two = Process("one", port), Process("two", port)
        minute = start_of(NOW, LONG_S)
        for start in range(minute - 120, minute, SHORT_S):
            await one.see(slice_at(start))
        await two.see(slice_at(LATEST, "b", 4))
        picture = await two.view.picture(3_600, NOW)
        assert picture.whole.allowed == 24 + 4
        assert [each.allowed for each in picture.each][-3:] == [12, 12, 4]
        assert len(picture.each) == 60
        for process in (one, two):
            process.close()

    asyncio.run(main())


def test_slices_that_are_over_are_fetched_once(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        one = Process("one", port)
        assert one.board is not None
        asked: list[int] = []
        true_slices = one.board.slices

        async def slices(seconds: int, starts: range) -> dict[int, dict[str, bytes]]:
            asked.append(len(starts))
            return await true_slices(seconds, starts)

        monkeypatch.setattr(one.board, "slices", slices)
        for _ in range(3):
            await one.view.picture(60, NOW)
        # Those of the last 20 s may yet change.
        assert asked == [12, 5, 5]
        one.close()

    asyncio.run(main())


def test_without_redis_a_process_sees_itself() -> None:
    async def main() -> None:
        one = Process("one", None)
        await one.see(slice_at(LATEST, "a", 2))
        picture = await one.view.picture(60, NOW)
        assert (picture.whole.allowed, picture.is_shared) == (2, False)
        assert picture.instances == ("one",)

    asyncio.run(main())


def test_while_redis_is_away_a_process_sees_itself_and_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("limen.observe.view._REST_S", 3_600.0)

    async def main() -> None:
        one = Process("one", 1)  # nobody listens there
        assert one.board is not None
        calls: list[int] = []
        true_slices = one.board.slices

        async def slices(seconds: int, starts: range) -> dict[int, dict[str, bytes]]:
            calls.append(seconds)
            return await true_slices(seconds, starts)

        monkeypatch.setattr(one.board, "slices", slices)
        one.ring.put(slice_at(LATEST, "a", 2), is_over=True)
        picture = await one.view.picture(60, NOW)
        assert (picture.whole.allowed, picture.is_shared) == (2, False)
        for _ in range(50):
            assert not (await one.view.picture(60, NOW)).is_shared
        assert len(calls) == 1
        one.close()

    asyncio.run(main())


def test_what_is_poisoned_is_left_out(port: int) -> None:
    async def main() -> None:
        one = Process("one", port)
        await one.see(slice_at(LATEST, "a", 2))
        with redis.Redis(port=port) as admin:
            [key] = admin.keys("*insight*")
            admin.hset(key, "two", b"garbage")
        picture = await one.view.picture(60, NOW)
        assert (picture.whole.allowed, picture.instances) == (2, ("one",))
        one.close()

    asyncio.run(main())


def test_a_percentile_is_the_bound_that_so_many_lie_within() -> None:
    counts = [0] * (len(TRIP_S) + 1)
    assert percentile(counts, 99) is None
    counts[1] = 99
    counts[4] = 1
    assert percentile(counts, 50) == TRIP_S[1]
    assert percentile(counts, 99) == TRIP_S[1]
    assert percentile(counts, 100) == TRIP_S[4]
    counts[-1] = 50
    assert percentile(counts, 99) == float("inf")
