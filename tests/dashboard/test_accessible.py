"""Every page for everybody: by keyboard, by ear, in both themes, on a phone, and without complaint.

What `accessible.js` finds is what tools such as axe look for, written here, as nothing is loaded
from elsewhere: names, structure, contrast of the colours that are really there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

from tests.dashboard import scene
from tests.dashboard.browsing import Served, Visit, served
from tests.dashboard.everybody import is_for_everybody

WIDE: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 360, "height": 740}
MOST_STOPS = 35
SLOW_MS = 20_000
# Notes every element that gets the focus: where it is among all, and how one sees that it has it.
WATCH = """() => {
    window.stops = [];
    // From the top of the page, where the browser begins when nobody has been anywhere.
    document.body.tabIndex = -1;
    document.body.focus();
    document.body.removeAttribute("tabindex");
    const looks = (element) => {
        const {outlineStyle, outlineWidth, outlineColor} = getComputedStyle(element);
        return outlineStyle !== "none" && parseFloat(outlineWidth) >= 2
            && outlineColor !== "rgba(0, 0, 0, 0)";
    };
    document.addEventListener("focusin", ({target}) => {
        const {left, top, right, bottom} = target.getBoundingClientRect();
        if (window.stops.at(-1) === null || window.stops[0]?.target === target) {
            // Around, and at the first one again: all have been seen.
            window.stops.push(null);
            return;
        }
        window.stops.push({
            target, name: target.outerHTML.slice(0, 90), seen: looks(target),
            within: bottom > 0 && top < innerHeight && right > 0 && left < innerWidth,
        });
    });
}"""
STOPS = """() => window.stops.filter((stop) => stop !== null).map((stop, n, all) => ({
    name: stop.name, seen: stop.seen, within: stop.within,
    follows: n === 0
        || !all[n - 1].target.isConnected || !stop.target.isConnected
        || Boolean(all[n - 1].target.compareDocumentPosition(stop.target)
            & Node.DOCUMENT_POSITION_FOLLOWING),
}))"""


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service that is used, for all tests of this file."""
    with served(tmp_path_factory.mktemp("furnished")) as started:
        scene.furnish(started)
        with scene.busy(started, a_second=20):
            yield started


@pytest.fixture(scope="module")
def open_page(browser: Browser, furnished: Served) -> Iterator[tuple[Visit, Page]]:
    """One page that goes everywhere, as people's do; it is quicker than one for each test."""
    made = Visit(browser)
    yield made, made.open(furnished)
    made.close()


@pytest.fixture
def page(open_page: tuple[Visit, Page]) -> Iterator[Page]:
    """The page, wide; what it complained of in this test fails this test."""
    made, page = open_page
    page.set_viewport_size(WIDE)
    yield page
    complaints = list(made.complaints)
    made.complaints.clear()
    assert not complaints


def shown(page: Page) -> None:
    """Wait until the page is there, with all that it loads."""
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(".loading:visible")).to_have_count(0)


@pytest.mark.parametrize("name", scene.PAGES)
def test_every_page_is_for_everybody(page: Page, name: str) -> None:
    page.goto(scene.PAGES[name])
    shown(page)
    is_for_everybody(page, "wide")
    by_keyboard(page)
    page.set_viewport_size(PHONE)
    page.reload()
    shown(page)
    is_for_everybody(page, "phone")


def by_keyboard(page: Page) -> None:
    """Go from one thing to the next: each is seen, and they come in the order they stand in."""
    page.evaluate(WATCH)
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
    stops: list[dict[str, Any]] = page.evaluate(STOPS)
    assert len(stops) > 8
    assert [stop["name"] for stop in stops if not stop["seen"]] == []
    assert [stop["name"] for stop in stops if not stop["within"]] == []
    out_of_order = [
        (before["name"], after["name"]) for before, after in pairwise(stops) if not after["follows"]
    ]
    assert out_of_order == []


def test_one_skips_to_the_content_and_stays_on_the_page(page: Page, furnished: Served) -> None:
    page.goto("/rules?search=api")
    shown(page)
    page.evaluate("window.kept = document.querySelector('main h1')")
    page.evaluate(WATCH)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.url == f"{furnished.url}/rules?search=api"
    assert page.evaluate("window.kept.isConnected")


def test_what_is_wrong_with_a_rule_and_what_it_would_say_is_for_everybody(page: Page) -> None:
    page.goto("/rules?import=1")
    page.get_by_label("Or its text").fill("rules: [{name: a, limits: 3/fortnight}]")
    page.get_by_role("button", name="Check and compare").click()
    expect(page.get_by_role("list", name="Findings")).to_be_visible(timeout=SLOW_MS)
    is_for_everybody(page)
    page.goto(scene.PAGES["edit"])
    shown(page)
    page.get_by_role("button", name="Try it").click()
    expect(page.get_by_text(f"{scene.BUSY} binds")).to_be_visible(timeout=SLOW_MS)
    page.get_by_label("The rule, as YAML").fill("name: a\nlimts: 3")
    expect(page.get_by_role("list", name="Findings")).to_be_visible(timeout=SLOW_MS)
    page.set_viewport_size(PHONE)
    is_for_everybody(page)


def test_the_door_is_for_everybody(visit: Visit, furnished: Served) -> None:
    visit.forgive("401")
    page = visit.open(furnished, token=None, viewport=WIDE)
    shown(page)
    is_for_everybody(page)
    page.get_by_label("Token").fill("not-a-token-at-all")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("unknown")
    page.set_viewport_size(PHONE)
    is_for_everybody(page)


def test_what_is_not_there_is_said_to_everybody(visit: Visit, furnished: Served) -> None:
    visit.forgive("404")
    page = visit.open(furnished, viewport=PHONE)
    for path in ("/rules/none", "/rules/a/b", "/rules/none/edit"):
        page.goto(path)
        expect(page.get_by_role("alert")).to_contain_text("There is no")
        is_for_everybody(page)


@pytest.mark.slow
def test_what_is_empty_and_what_wants_attention_is_for_everybody(
    visit: Visit, fresh: Served
) -> None:
    visit.forgive("ERR_|Failed to load")
    scene.save(fresh, {"rules": []}, "")
    page = visit.open(fresh, viewport=PHONE)
    for path in ("/", "/keys", "/live", "/tokens", "/rules"):
        page.goto(path)
        shown(page)
        is_for_everybody(page, path)
    # A message, the kill switch that is on, and the service that is away, all at once.
    fresh.admin("PUT", "/kill-switch", {"on": True, "comment": "a test"})
    expect(page.get_by_role("button", name="Kill switch: ON")).to_be_visible(timeout=SLOW_MS)
    expect(page.locator(".message.failed")).to_be_visible()
    fresh.process.end()
    expect(page.locator(".banner")).to_be_visible(timeout=SLOW_MS)
    is_for_everybody(page)


def press(name: str) -> Callable[[Page], Locator]:
    """How to find a button of the page, the first of its name."""
    return lambda page: page.get_by_role("main").get_by_role("button", name=name, exact=True).first


def switch(page: Page) -> Locator:
    return page.get_by_role("button", name="Kill switch")


QUESTIONS: dict[str, list[Callable[[Page], Locator]]] = {
    "/rules": [switch],
    scene.PAGES["keys"]: [press("Reset"), press("Override"), press("Block")],
    "/tokens": [press("Create a token"), press("Revoke ann")],
    scene.PAGES["rule"]: [press("Change the mode"), press("Delete")],
    "/rules/history": [press("Roll back")],
}
OUTSIDE = """() => {
    const has = document.activeElement;
    const dialog = document.querySelector("dialog");
    return has !== document.body && !dialog.contains(has) && has.outerHTML;
}"""


@pytest.mark.parametrize("path", QUESTIONS)
def test_questions_hold_the_focus_and_give_it_back(page: Page, path: str) -> None:
    page.goto(path)
    shown(page)
    for find in QUESTIONS[path]:
        page.set_viewport_size(WIDE)
        opener = find(page)
        opener.focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        assert page.evaluate("document.querySelector('dialog').contains(document.activeElement)")
        is_for_everybody(page)
        for _ in range(8):
            page.keyboard.press("Tab")
            assert not page.evaluate(OUTSIDE)
        page.set_viewport_size(PHONE)
        is_for_everybody(page)
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(opener).to_be_focused()
