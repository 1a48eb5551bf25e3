"""Two workers on one store: the page shows sums, and who has gone."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.browsing import Served, Visit
from tests.dashboard.traffic import traffic
from tests.waiting import wait_until

SLOW_MS = 20_000
ASKED = 60
RATE = re.compile(r"([0-9.]+)/s")


def rate(page: Page, kind: str) -> float:
    said = RATE.fullmatch(page.locator(f".tile.{kind} .much").inner_text())
    return float(said[1]) if said else -1.0


def registered(pair: Served) -> set[int]:
    """Return the ids of the processes that the admin API lists."""
    return {each["pid"] for each in pair.admin("GET", "/instances")["instances"]}


@pytest.mark.slow
def test_figures_are_sums_and_who_was_killed_is_seen_to_be_gone(visit: Visit, pair: Served) -> None:
    visit.forgive("ERR_|Failed to load")
    # The service is ready as soon as its first worker is.
    wait_until(lambda: len(registered(pair)) == 2)
    workers = pair.process.workers
    assert registered(pair) == set(workers)
    page = visit.open(pair)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    fleet = page.get_by_role("table", name="The processes that enforce rules")
    for pid in workers:
        expect(fleet.get_by_role("row").filter(has_text=f"· {pid}")).to_be_visible()

    # Each by a connection of its own, so that both workers are asked.
    denied = 0
    for _ in range(ASKED):
        denied += not pair.check(path="/login", ip="203.0.113.7")["allowed"]
    assert denied == ASKED - 5
    refused = page.get_by_role("table", name="The keys that were refused most often")
    row = refused.get_by_role("row").filter(has_text="ip=203.0.113.7")
    expect(row.get_by_role("cell").last).to_have_text(str(denied), timeout=SLOW_MS)

    with (
        traffic(pair, {"path": "/login", "ip": "203.0.113.7"}, a_second=15) as first,
        traffic(pair, {"path": "/login", "ip": "203.0.113.7"}, a_second=15) as second,
    ):
        begun, before = time.monotonic(), first.denied + second.denied

        def is_the_sum() -> bool:
            told = (first.denied + second.denied - before) / (time.monotonic() - begun)
            return 0.6 * told < rate(page, "denied") < 1.4 * told

        # One worker's own would be about half of it.
        wait_until(lambda: rate(page, "denied") > 8)
        wait_until(is_the_sum)

        os.kill(workers[0], signal.SIGKILL)
        gone = fleet.get_by_role("row").filter(has_text=f"· {workers[0]}")
        expect(gone).to_contain_text("gone", timeout=10_000)
        left = fleet.get_by_role("row").filter(has_text=f"· {workers[1]}")
        expect(left).not_to_contain_text("gone")
        wait_until(lambda: rate(page, "denied") > 8)
    expect(page.locator(".banner")).to_be_hidden(timeout=SLOW_MS)
