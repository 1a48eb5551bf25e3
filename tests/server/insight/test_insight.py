"""What is done once a second: slices are kept and shared, alerts told, figures written."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from limen import AsyncLimiter
from limen.engine import verdict_without_rules
from limen.observe.figures import Figures
from limen.observe.ring import SHORT_S
from limen.server.insight import insight as module
from limen.server.insight.insight import Insight
from limen.server.settings import Settings
from limen.server.settings.model import AlertSettings, InsightSettings
from tests import servers
from tests.waiting import wait_until_async

NOTHING = InsightSettings()


class Clock:
    """The time of day, to be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_700_000_040.0
        monkeypatch.setattr(time, "time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def insight_of(
    limiter: AsyncLimiter,
    *,
    kept: InsightSettings = NOTHING,
    alerts: AlertSettings | None = None,
    redis: str | None = None,
    name: str = "here",
    tell_rules: Callable[[Figures], object] = lambda figures: None,
) -> Insight:
    settings = Settings(insight=kept, alerts=alerts or AlertSettings(least=10))
    return Insight(
        settings, name, limiter, 32 * "s", redis=redis, folder=None, tell_rules=tell_rules
    )


async def ask(insight: Insight, limiter: AsyncLimiter, key: str, times: int) -> None:
    for n in range(times):
        decision = await limiter.check(key, "5/minute")
        insight.watch.see(verdict_without_rules(decision, "v7"), "check", f"{key}-{n}")


def test_what_was_seen_is_in_the_picture_after_a_turn(clock: Clock) -> None:
    async def main() -> None:
        limiter = AsyncLimiter()
        insight = insight_of(limiter)
        await ask(insight, limiter, "k", 7)
        await insight.turn()
        picture = await insight.view.picture(60, clock.now)
        assert (picture.whole.allowed, picture.whole.denied) == (5, 2)
        [rule] = picture.whole.rules.values()
        assert rule.top_denied == (("k", 2),)
        await insight.close()

    asyncio.run(main())


def test_each_slice_holds_what_came_in_it(clock: Clock) -> None:
    async def main() -> None:
        limiter = AsyncLimiter()
        insight = insight_of(limiter)
        for n in range(3):
            await ask(insight, limiter, f"k{n}", n + 1)
            await insight.turn()
            clock.now += SHORT_S
            await insight.turn()
        picture = await insight.view.picture(60, clock.now)
        assert [each.allowed for each in picture.each][-4:] == [1, 2, 3, 0]
        assert picture.whole.rules["(own limits)"].allowed == 6
        await insight.close()

    asyncio.run(main())


def test_an_alert_begins_and_ends_and_is_told(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        limiter = AsyncLimiter()
        insight = insight_of(limiter)
        await ask(insight, limiter, "somebody's api key", 50)
        await insight.turn()
        assert {alert.kind for alert in insight.alerts.open} == {"refusals", "key"}
        [alert] = [each for each in insight.alerts.open if each.kind == "refusals"]
        assert alert.top[0][0] == "somebody's api key"
        for _ in range(25):
            clock.now += 1
            await insight.turn()
        assert insight.alerts.open == ()
        assert {each.kind for each in insight.alerts.ended} == {"refusals", "key"}
        await insight.close()

    with caplog.at_level(logging.INFO, "limen.alerts"):
        asyncio.run(main())
    told = [record.message for record in caplog.records if record.name == "limen.alerts"]
    assert [text.split(":")[0] for text in sorted(told)] == ["alert began"] * 2 + [
        "alert ended"
    ] * 2
    assert "api key" not in "".join(told)


def test_the_log_has_what_was_kept(clock: Clock, tmp_path: Path) -> None:
    async def main() -> None:
        limiter = AsyncLimiter()
        kept = InsightSettings(log=str(tmp_path / "log"), sample=0.0)
        insight = insight_of(limiter, kept=kept)
        await ask(insight, limiter, "k", 7)
        await insight.close()

    asyncio.run(main())
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["allowed"], line["reason"]) for line in lines] == [(False, "over 5/minute")] * 2
    assert [line["id"] for line in lines] == ["k-5", "k-6"]
    assert all(line["key"].startswith("h:") for line in lines)


def test_a_key_that_is_hashed_is_the_same_in_the_log_and_in_the_picture(
    clock: Clock, tmp_path: Path
) -> None:
    async def main() -> str:
        limiter = AsyncLimiter()
        insight = insight_of(
            limiter, kept=InsightSettings(log=str(tmp_path / "log"), keys="hashed")
        )
        await ask(insight, limiter, "k", 6)
        await insight.turn()
        picture = await insight.view.picture(60, clock.now)
        await insight.close()
        return picture.whole.rules["(own limits)"].top_denied[0][0]

    shown = asyncio.run(main())
    assert shown.startswith("h:")
    assert json.loads((tmp_path / "log").read_text().splitlines()[-1])["key"] == shown


def test_figures_have_all_there_is_to_tell(clock: Clock) -> None:
    async def main() -> None:
        limiter = AsyncLimiter()

        def tell_rules(figures: Figures) -> None:
            figures.rules_version = "17"

        insight = insight_of(limiter, tell_rules=tell_rules)
        await ask(insight, limiter, "k", 7)
        insight.watch.durations["check"].add(0.004)
        await insight.turn()
        text, _ = await insight.metrics("")
        assert b"limen_workers 1.0" in text
        assert b'limen_requests_total{outcome="allowed"} 5.0' in text
        figures = insight.own_figures(time.time())
        assert figures.requests == [5, 2]
        assert figures.decisions == {"(own limits)": [5, 2, 0, 0]}
        assert figures.tables == {"memory": 1}
        assert figures.rules_version == "17"
        assert sum(figures.durations["check"].counts) == 1
        assert figures.cpu_s > 0
        await insight.close()

    asyncio.run(main())


def test_two_workers_see_each_other_by_way_of_redis_and_what_it_missed_comes_later(
    clock: Clock,
) -> None:
    async def main() -> None:
        with servers.process(servers.binaries()["valkey"]) as server:
            url = f"redis://127.0.0.1:{server.port}"
            limiter = AsyncLimiter()
            one = insight_of(limiter, redis=url, name="one")
            two = insight_of(limiter, redis=url, name="two")
            await ask(one, limiter, "k", 3)
            await one.turn()
            assert (await two.view.picture(60, clock.now)).whole.allowed == 3
            server.kill()
            await ask(one, limiter, "l", 2)
            await one.turn()
            alone = await one.view.picture(60, clock.now)
            assert (alone.whole.allowed, alone.is_shared) == (5, False)
            clock.now += SHORT_S
            await one.turn()
            server.restart()

            async def has_all() -> bool:
                await one.turn()
                return (await two.view.picture(60, clock.now)).whole.allowed >= 5

            await wait_until_async(has_all)
            for each in (one, two):
                await each.close()

    asyncio.run(main())


def test_a_mistake_in_one_turn_is_not_the_end(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        monkeypatch.setattr("limen.server.insight.insight.TURN_S", 0.01)
        insight = insight_of(AsyncLimiter())
        turns: list[int] = []

        async def turn() -> None:
            turns.append(1)
            if len(turns) == 1:
                raise RuntimeError("once")

        monkeypatch.setattr(insight, "turn", turn)
        insight.start()
        await wait_until_async(lambda: len(turns) >= 3)
        await insight.close()

    asyncio.run(main())
    assert "it goes on" in caplog.text


def test_the_last_turn_waits_for_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_S", 0.05)
    inside: list[int] = []
    most = 0
    begun = threading.Event()

    async def main() -> None:
        insight = insight_of(AsyncLimiter())
        keep = insight._keep

        def slow(*arguments: Any) -> None:
            nonlocal most
            inside.append(1)
            most = max(most, len(inside))
            begun.set()
            time.sleep(0.06)
            keep(*arguments)
            inside.pop()

        monkeypatch.setattr(insight, "_keep", slow)
        insight.start()
        assert await asyncio.to_thread(begun.wait, 10)
        await insight.close()

    asyncio.run(main())
    assert most == 1


def test_a_mistake_in_the_last_turn_keeps_nothing_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        insight = insight_of(AsyncLimiter())
        insight.start()
        monkeypatch.setattr(insight, "turn", fail)
        closed: list[int] = []
        monkeypatch.setattr(insight.alerts, "close", lambda: closed.append(1))
        await insight.close()
        assert closed == [1]

    asyncio.run(main())
    assert "the last look at the decisions failed" in caplog.text
