"""A day with the dashboard, in a real browser: what people do, from the first rule to the audit."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

from tests.dashboard.browsing import ADMIN, Served, Visit
from tests.dashboard.traffic import traffic
from tests.waiting import wait_until

RULE = """name: orders
description: One customer does not take them all.
match: {path: /orders}
key: [customer]
limits: 3/minute
"""
SLOW_MS = 15_000
TEXT = "The rule, as YAML"
SOME = re.compile(r"^(?!0/s)[0-9.]+/s$")


def button(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def link(page: Page, name: str) -> None:
    page.get_by_role("link", name=name, exact=True).first.click()


def heading(page: Page, name: str) -> None:
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible(timeout=SLOW_MS)


def test_from_a_first_rule_to_the_audit(visit: Visit, fresh: Served) -> None:
    page = visit.open(fresh, token=None)
    page.get_by_label("Token").fill(ADMIN)
    button(page, "Sign in")
    heading(page, "Overview")
    create(page)
    try_it(page)
    save(page)
    with traffic(fresh, {"path": "/orders", "customer": "ann"}, a_second=10):
        see_it_refuse(page)
        block(page)
        assert fresh.check(path="/elsewhere", customer="ann")["allowed"] is False
    roll_back(page)
    wait_until(lambda: fresh.check(path="/orders", customer="ann")["allowed"] is True)
    see_the_audit(page)


def create(page: Page) -> None:
    """Write a rule; what is wrong is said while one types."""
    link(page, "Rules")
    heading(page, "Rules")
    link(page, "New rule")
    heading(page, "New rule")
    page.get_by_label(TEXT).fill(RULE.replace("3/minute", "3/fortnight"))
    expect(page.get_by_role("list", name="Findings")).to_contain_text("limits", timeout=SLOW_MS)
    expect(page.get_by_text("This cannot be saved yet.")).to_be_visible()
    page.get_by_label(TEXT).fill(RULE)
    expect(page.get_by_text("Valid, and not saved yet.")).to_be_visible(timeout=SLOW_MS)
    expect(page.get_by_label("Limits")).to_have_value("3/minute")


def try_it(page: Page) -> None:
    """Ask what the rule would say, before anybody is refused by it."""
    page.get_by_label("Attributes, one in a line").fill("path=/orders\ncustomer=ann")
    button(page, "Try it")
    expect(page.get_by_text("orders binds, 3 left")).to_be_visible(timeout=SLOW_MS)


def save(page: Page) -> None:
    """Save it with a comment, and let it refuse at once."""
    page.get_by_label("Comment").fill("orders were taken by one")
    page.get_by_label("Save as a shadow first").uncheck()
    button(page, "Save the new rule")
    heading(page, "orders")
    assert page.url.endswith("/rules/orders")


def see_it_refuse(page: Page) -> None:
    """See by itself what becomes of requests, on the rule's page and on the live one."""
    now = page.get_by_role("group", name="At this moment")
    expect(now.locator(".tile.denied .much")).to_have_text(SOME, timeout=SLOW_MS)
    expect(page.get_by_role("link", name="customer=ann").first).to_be_visible(timeout=SLOW_MS)
    link(page, "Live")
    heading(page, "Live")
    expect(first_decision(page)).to_contain_text(
        "Refused by orders: over 3/minute for customer=ann", timeout=SLOW_MS
    )


def first_decision(page: Page) -> Locator:
    return page.get_by_role("list", name="Decisions").get_by_role("listitem").first


def block(page: Page) -> None:
    """Block whose requests they are, from the page of their key."""
    first_decision(page).get_by_role("link", name="customer=ann").click()
    heading(page, "Keys")
    expect(page.get_by_text("A request would be refused now by orders.")).to_be_visible()
    button(page, "Block")
    page.get_by_label("path is /orders").uncheck()
    page.get_by_label("customer is ann").check()
    page.get_by_label("Why").fill("ann takes them all")
    page.get_by_role("dialog").get_by_role("button", name="Block", exact=True).click()
    expect(page.get_by_text("Blocked: customer=ann.")).to_be_visible()
    expect(page.locator(".verdict")).to_contain_text("blocks it", timeout=SLOW_MS)


def roll_back(page: Page) -> None:
    """Let the rules hold as they were at first."""
    link(page, "Rules")
    link(page, "History")
    heading(page, "History")
    rows = page.get_by_role("row")
    expect(rows.filter(has_text="holds")).to_contain_text("ann takes them all")
    rows.filter(has_text="the starter rules").get_by_role("button", name="Roll back").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 removed")
    dialog.get_by_label("Comment").fill("it was too much")
    dialog.get_by_role("button", name="Roll back").click()
    expect(rows.filter(has_text="holds")).to_contain_text("it was too much", timeout=SLOW_MS)


def see_the_audit(page: Page) -> None:
    """See all of it, with what was changed; and that nobody has changed it since."""
    link(page, "Audit")
    heading(page, "Audit")
    acts = page.get_by_role("table", name="Acts, the newest first").locator("tbody tr:visible")
    expect(acts.first).to_contain_text("rolled back")
    for comment in ("it was too much", "ann takes them all", "orders were taken by one"):
        expect(acts.filter(has_text=comment).first).to_be_visible()
    saved = acts.filter(has_text="orders were taken by one").filter(has_text="saved rules")
    saved.get_by_role("button").click()
    expect(page.get_by_role("region", name="Changes of version 2")).to_contain_text("rules.orders")
    button(page, "Verify")
    expect(page.get_by_text("are as limen wrote them")).to_be_visible(timeout=SLOW_MS)
