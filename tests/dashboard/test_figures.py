"""Figures and times on the pages: each figure states its time range, each time its zone."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard import scene
from tests.dashboard.browsing import Served, Visit, served
from tests.dashboard.traffic import traffic
from tests.waiting import wait_until

SLOW_MS = 15_000
SLICE_S = 5
RATE = 20
AT_END = re.compile(r"(\d+(?:\.\d+)?)/s at the end")
NEW_YORK = "America/New_York"
# Every text and title of a page with a time of day in it, but for the ticks of charts.
TIMES = r"""() => {
  const found = [];
  const note = (text) => { if (/\b\d{1,2}:\d{2}\b/.test(text ?? "")) found.push(text); };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!element.closest(".tick, pre, textarea, script")) note(walk.currentNode.data);
  }
  for (const each of document.querySelectorAll("[title]")) note(each.title);
  for (const each of document.querySelectorAll("[aria-valuetext]")) note(each.ariaValueText);
  return found;
}"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with a history, and steady traffic under one rule."""
    with served(tmp_path_factory.mktemp("service")) as started:
        scene.furnish(started)
        with traffic(started, {"path": "/api/items", "user": "7"}, a_second=RATE):
            yield started


@pytest.mark.slow
def test_a_chart_does_not_fall_to_zero_at_its_right_edge(visit: Visit, service: Served) -> None:
    """A slice that has just begun holds nothing yet: the chart ends before it."""

    def ends_at(path: str) -> list[float]:
        page = visit.open(service, path)
        summary = page.locator("figure.chart p.unseen")
        expect(summary).to_contain_text("at the end", timeout=SLOW_MS)
        return [float(each) for each in AT_END.findall(summary.inner_text())]

    wait_until(lambda: _decided(service) > 3 * SLICE_S * RATE, 60)
    for path in (f"/rules/{scene.BUSY}", "/"):
        wait_until(lambda: 0.05 < time.time() % SLICE_S < 0.4)
        rates = ends_at(path)
        assert sum(rates) > RATE / 3, (path, rates)


def _decided(service: Served) -> int:
    rules = service.admin("GET", "/insight?window=300")["rules"]
    return sum(each["allowed"] + each["denied"] for each in rules)


@pytest.mark.slow
def test_all_columns_of_the_busiest_rules_are_of_one_time_range(
    visit: Visit, service: Served
) -> None:
    allowed = [service.check(path="/login", ip="203.0.113.9")["allowed"] for _ in range(40)]
    assert allowed.count(True) == 5
    page = visit.open(service)
    expect(page.get_by_role("heading", name="Busiest rules, last 5 minutes")).to_be_visible()
    table = page.get_by_role("table", name="The busiest rules of the last 5 minutes")
    row = table.get_by_role("row").filter(has_text="login-per-address")
    expect(row.get_by_role("cell").nth(1)).to_have_text("40", timeout=SLOW_MS)
    expect(row.get_by_role("cell").nth(2)).to_have_text("35")
    expect(row.get_by_role("cell").nth(3)).to_have_text("87.5 %")
    # A current rate is as large as the sum only within a second of the requests.
    expect(table).not_to_contain_text("/s")


def test_every_figure_states_its_time_range(visit: Visit, service: Served) -> None:
    page = visit.open(service)
    expect(page.get_by_text("Rates and times are of the last 5 to 10 seconds.")).to_be_visible()
    headings = page.get_by_role("heading", level=2)
    for name in ("Requests per second", "Busiest rules", "Refused most often"):
        expect(headings.filter(has_text=name)).to_contain_text("last 5 minutes")
    page.goto(f"/rules/{scene.BUSY}")
    expect(page.get_by_text("On average of the last 5 to 10 seconds.")).to_be_visible()
    figures = ("Decisions a second", "How close keys", "Denied most", "Allowed most", "Nearest")
    for button, range_ in (("1 minute", "last minute"), ("1 hour", "last hour")):
        page.get_by_role("button", name=button).click()
        for name in figures:
            expect(headings.filter(has_text=name)).to_contain_text(range_)
    page.goto("/rules")
    expect(page.get_by_text("are averages of the last 5 to 10 seconds")).to_be_visible()


def test_a_key_whose_plan_is_unknown_is_shown_the_limits_of_all_plans(
    visit: Visit, fresh: Served
) -> None:
    rule = {
        "name": "by-plan",
        "match": {"path": "/plans"},
        "key": ["user"],
        "tiers": {
            "by": "plan",
            "limits": {"free": "10/minute", "pro": ["600/minute", "9000/hour"]},
            "default": "7/minute",
        },
        "overrides": [{"key": {"user": "vip"}, "limits": "77/minute"}],
    }
    document = fresh.admin("GET", "/rules")["document"]
    scene.save(fresh, {**document, "rules": [*document["rules"], rule]}, "plans")
    page = visit.open(fresh, "/keys?key=user%3D42&rule=by-plan")
    row = page.get_by_role("table", name="Rules that apply").get_by_role("row")
    row = row.filter(has_text="by-plan")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("plan unknown")
    for text in ("free: 10/minute", "pro: 600/minute, 9000/hour", "any other: 7/minute"):
        expect(row).to_contain_text(text)
    expect(row).not_to_contain_text(" of ")
    expect(page.locator(".verdict")).to_contain_text("The plan of this key is not known")
    expect(page.get_by_label("Attribute", exact=True).last).to_have_value("plan")

    page.get_by_label("Value", exact=True).last.fill("pro")
    page.get_by_role("button", name="Look").click()
    expect(row.first).to_contain_text("600 of 600")
    expect(page.locator(".verdict")).not_to_contain_text("not known")
    page.goto("/keys?user=vip&path=/plans&rule=by-plan")
    expect(row).to_contain_text("77 of 77")
    expect(row).not_to_contain_text("unknown")


def test_a_diff_shows_what_changed_and_no_line_twice(visit: Visit, fresh: Served) -> None:
    """One of 60 addresses changes, and the end of a long description."""
    addresses = [f"198.51.100.{number}" for number in range(60)]
    rule: dict[str, Any] = {
        "name": "offices",
        "description": "What the offices may do. " * 20 + "Ask Ann.",
        "match": {"ip": addresses},
        "key": ["ip"],
        "limits": "10/minute",
    }
    changed = {
        **rule,
        "description": "What the offices may do. " * 20 + "Ask Bob.",
        "match": {"ip": [*addresses[:50], "203.0.113.77", *addresses[51:]]},
    }
    document = fresh.admin("GET", "/rules")["document"]
    scene.save(fresh, {**document, "rules": [*document["rules"], rule]}, "offices")
    saved = scene.save(fresh, {**document, "rules": [*document["rules"], changed]}, "moved")
    page = visit.open(fresh, f"/rules/history?from={saved - 1}&to={saved}")
    _shows_the_change(page)
    page.goto("/audit")
    acts = page.get_by_role("table", name="Acts, the newest first").locator("tbody tr:visible")
    acts.filter(has_text="moved").filter(has_text="saved rules").get_by_role("button").click()
    _shows_the_change(page)


def _shows_the_change(page: Page) -> None:
    diff = page.locator(".diff")
    expect(diff).to_contain_text("203.0.113.77", timeout=SLOW_MS)
    gone = [each[1:].strip() for each in diff.locator(".del").all_inner_texts()]
    come = [each[1:].strip() for each in diff.locator(".add").all_inner_texts()]
    assert len(gone) == len(come) == 2
    assert not set(gone) & set(come)
    assert any(each.endswith("Ask Ann.") for each in gone)
    assert any(each.endswith("Ask Bob.") for each in come)
    assert any("198.51.100.50" in each for each in gone)
    whole = diff.inner_text()
    assert "198.51.100.49" in whole
    assert "198.51.100.20" not in whole


def test_every_time_is_in_utc_and_says_so(visit: Visit, service: Served) -> None:
    page = visit.open(service, timezone_id=NEW_YORK)
    seen = 0
    for path in scene.PAGES.values():
        page.goto(path)
        page.locator("h1").first.wait_for()
        page.wait_for_load_state("networkidle" if path == "/rules/new" else "load")
        for text in page.evaluate(TIMES):
            times = re.findall(r"\b(\d{1,2}):\d{2}(?::\d{2})?( UTC)?", text)
            assert all(zone for _, zone in times), (path, text)
            seen += len(times)
        for chart in page.locator("figure.chart").all():
            expect(chart.locator(".tick.zone")).to_have_text("UTC")
    assert seen > 20
    page.goto("/audit?row=1")
    facts = page.locator("dl.facts").first
    now = datetime.now(UTC)
    expect(facts).to_contain_text(f"{now.day} {now:%b %Y}, {now:%H}:", timeout=SLOW_MS)


def test_an_end_is_given_in_utc(visit: Visit, service: Served) -> None:
    page = visit.open(service, "/keys?ip=203.0.113.99&path=/login", timezone_id=NEW_YORK)
    page.get_by_role("button", name="Block", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("path is /login").uncheck()
    dialog.get_by_label("ip is 203.0.113.99").check()
    dialog.get_by_label("Ends").select_option("at")
    dialog.get_by_label("When, in UTC").fill("2099-01-02T03:04")
    dialog.get_by_role("button", name="Block", exact=True).click()
    expect(page.get_by_text("Blocked: ip=203.0.113.99.")).to_be_visible(timeout=SLOW_MS)
    blocks = service.admin("GET", "/blocks")["blocks"]
    ends = [each["ends"] for each in blocks if each["match"] == {"ip": "203.0.113.99"}]
    assert ends == ["2099-01-02T03:04:00Z"]
    expect(page.get_by_text("2 Jan 2099, 03:04:00 UTC")).to_be_visible(timeout=SLOW_MS)
