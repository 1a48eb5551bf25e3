"""Fifty payloads in all that people may write, and in the address: shown as they are, none runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard import scene
from tests.dashboard.browsing import Served, Visit, served
from tests.dashboard.payloads import PAYLOADS

VICTIM = "victim"
NAME = '"><img src=x onerror=alert(1)>'
# Rules, versions and the like of such names are not there, and the page says so.
EXPECTED = r"40[04]|422"
# All rows of a table are there at once.
TALL = {"width": 1280, "height": 4_000}
# What ran, and what the browser kept from running.
WATCH = """
    window.ran = [];
    for (const name of ["alert", "confirm", "prompt"]) window[name] = () => window.ran.push(name);
    document.addEventListener("securitypolicyviolation", ({violatedDirective, blockedURI}) =>
        window.ran.push(`${violatedDirective} ${blockedURI}`));
"""
# Elements that no page of ours has, and attributes that run.
INTRUDERS = """() => {
    const strange = "img, iframe, object, embed, video, audio, marquee, template, base, math,"
        + "style, animate, form[action], body :is(script, link, meta), #pwned";
    const found = [...document.querySelectorAll(strange)].map((each) => each.outerHTML);
    for (const each of document.querySelectorAll("*")) {
        for (const {name, value} of each.attributes) {
            if (name.startsWith("on") || /^\\s*(javascript|data):/i.test(value)) {
                if (name !== "value" && name !== "title" && name !== "aria-label") {
                    found.push(`${name}=${value}`);
                }
            }
            if (/href|src|action/.test(name) && /evil/.test(each.host ?? "")) found.push(value);
        }
    }
    return [...found, ...window.ran];
}"""
GO_TO_EACH = """async (addresses, look) => {
    const found = [];
    for (const address of addresses) {
        history.pushState(null, "", address);
        dispatchEvent(new PopStateEvent("popstate"));
        const end = Date.now() + 10_000;
        while (document.querySelector("main > .loading") || !document.querySelector("h1")) {
            if (Date.now() > end) return [`${address} does not load`];
            await new Promise((resolve) => setTimeout(resolve, 10));
        }
        found.push(...look().map((each) => `${address}: ${each}`));
    }
    return found;
}"""
PLACES = (
    "/rules?search={text}&sort={text}",
    "/rules/{text}",
    "/rules/{text}/edit",
    "/rules/new?copy={text}",
    "/rules/history?from={text}&to={text}",
    "/keys?key={text}&rule={text}",
    "/keys?{text}={text}&.search={text}",
    "/live?id={text}&rule={text}&key={text}&outcome={text}",
    "/audit?name={text}&action={text}&row={text}&shown={text}",
    "/tokens?search={text}&ended={text}",
    "/rules/victim?window={text}",
)


def descriptions() -> Iterator[str]:
    """All payloads, in texts as long as a description may be."""
    text = ""
    for payload in PAYLOADS:
        if len(text) + len(payload) > 990:
            yield text
            text = ""
        text += f"{payload} "
    yield text


def hostile() -> dict[str, Any]:
    """Rules with the payloads wherever a rule takes a text."""
    literal = [each.replace("\\", "\\\\").replace("*", "\\*") for each in PAYLOADS]
    victim = {
        "name": VICTIM,
        "description": next(descriptions()),
        "match": {"user": literal},
        "key": ["user"],
        "limits": "1/hour",
        "overrides": [
            {"key": {"user": each}, "limits": "1/day", "description": each} for each in PAYLOADS
        ],
    }
    others = [
        {
            "name": f"payload-{n}",
            "description": PAYLOADS[n],
            "match": {"path": each, "x": {"not": [each]}},
            "limits": "1/hour",
        }
        for n, each in enumerate(literal)
    ]
    exempt = [
        {"name": f"exempt-{n}", "match": {"agent": each}, "description": each}
        for n, each in enumerate(literal)
    ]
    return {"rules": [victim, *others], "exemptions": exempt}


@pytest.fixture(scope="module")
def infested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service whose rules, tokens, comments, keys and requests are all payloads."""
    with served(tmp_path_factory.mktemp("infested")) as started:
        scene.save(started, hostile(), PAYLOADS[0])
        for payload in PAYLOADS:
            started.admin("POST", "/tokens", {"role": "viewer", "name": payload})
            for _ in range(2):
                started.check(user=payload)
        for text in descriptions():
            switch = {"on": False, "comment": text}
            started.admin("PUT", "/kill-switch", switch)
        yield started


@pytest.fixture(scope="module")
def victim_page(browser: Browser, infested: Served) -> Iterator[tuple[Visit, Page]]:
    """A page of somebody whose own name is a payload; it goes everywhere."""
    made = Visit(browser)
    secret = infested.token("admin", NAME)
    page = made.open(infested, "/ui/icon.svg", token=secret, viewport=TALL)
    page.add_init_script(WATCH)
    yield made, page
    made.close()


@pytest.fixture
def victim(victim_page: tuple[Visit, Page]) -> Iterator[Page]:
    """The page; what it complained of in this test fails this test."""
    made, page = victim_page
    yield page
    complaints = [each for each in made.complaints if not re.search(EXPECTED, each)]
    made.complaints.clear()
    assert not complaints


def is_shown(page: Page) -> None:
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(".loading:visible")).to_have_count(0)


def is_harmless(page: Page) -> None:
    assert page.evaluate(INTRUDERS) == []


PAGES = {
    "overview": ("/", 5),
    "rules": ("/rules", 50),
    "rule": (f"/rules/{VICTIM}", 40),
    "edit": (f"/rules/{VICTIM}/edit", 0),
    "history": ("/rules/history", 40),
    "key": ("/keys?user=<script>alert(1)</script>", 50),
    "live": ("/live", 40),
    "audit": ("/audit?shown=500", 50),
    "tokens": ("/tokens", 50),
}


@pytest.mark.parametrize("name", PAGES)
def test_what_people_wrote_is_shown_and_does_not_run(victim: Page, name: str) -> None:
    assert len(set(PAYLOADS)) == 50
    path, least = PAGES[name]
    victim.goto(path)
    is_shown(victim)
    is_harmless(victim)
    expect(victim.locator("header")).to_contain_text("onerror=alert(1)>")
    # As many as the page has room for, each to the letter.
    shown = victim.locator("main").inner_text()
    assert sum(payload in shown for payload in PAYLOADS) >= least


def test_what_stands_in_a_dialog_and_in_details_does_not_run(victim: Page) -> None:
    victim.goto("/keys?" + "&".join(f"a{n}={quote(each)}" for n, each in enumerate(PAYLOADS)))
    is_shown(victim)
    victim.get_by_text("Why other rules do not apply").click()
    expect(victim.get_by_role("link", name="payload-49")).to_be_visible()
    victim.get_by_role("button", name="Block", exact=True).click()
    expect(victim.get_by_role("dialog")).to_be_visible()
    is_harmless(victim)
    victim.goto("/audit?row=3")
    is_shown(victim)
    is_harmless(victim)


def test_what_stands_in_the_address_does_not_run(victim: Page) -> None:
    victim.goto("/rules")
    is_shown(victim)
    addresses = [
        PLACES[n % len(PLACES)].replace("{text}", quote(each, safe=""))
        for n, each in enumerate(PAYLOADS)
    ]
    assert (
        victim.evaluate(f"async (addresses) => ({GO_TO_EACH})(addresses, {INTRUDERS})", addresses)
        == []
    )
    for place in PLACES[::4]:
        victim.goto(place.replace("{text}", quote(PAYLOADS[1], safe="")))
        is_shown(victim)
        is_harmless(victim)


def test_an_address_that_nobody_can_read_is_not_found(victim: Page) -> None:
    for path in ("/rules/%", "/rules/%zz", "/rules/%E0%A4%A/edit", "/rules/%00"):
        victim.goto(path)
        expect(victim.get_by_role("alert")).to_contain_text("There is no")
    victim.goto("/keys?%")
    is_shown(victim)


def test_a_script_that_got_into_a_page_would_not_run(visit: Visit, infested: Served) -> None:
    """The second wall: had the page read one as markup, the browser would refuse to run it."""
    visit.forgive("Content Security Policy|violates|: csp|/x")
    page = visit.open(infested)
    is_shown(page)
    page.evaluate(
        """(payloads) => {
            window.ran = [];
            window.alert = () => window.ran.push("alert");
            for (const payload of payloads) {
                const hole = document.createElement("div");
                hole.innerHTML = payload;
                document.querySelector("main").append(hole);
            }
            const script = document.createElement("script");
            script.textContent = "alert(1)";
            document.body.append(script);
        }""",
        [each for each in PAYLOADS if "refresh" not in each],
    )
    page.wait_for_timeout(300)
    assert page.evaluate("window.ran") == []
    blocked = json.dumps(visit.complaints)
    assert "script-src" in blocked
