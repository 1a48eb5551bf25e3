"""What goes wrong while a page is open: no service, no session, somebody else who was faster."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard import scene
from tests.dashboard.browsing import ADMIN, Served, Visit, served
from tests.dashboard.everybody import is_for_everybody
from tests.dashboard.traffic import traffic
from tests.server.full_disk import mounted
from tests.servers import free_port

SLOW_MS = 20_000
SOME = re.compile(r"^(?!0/s)[0-9.]+/s$")
AWAY = "ERR_|Failed to load|EventSource"
TEXT = "The rule, as YAML"
MORE = "name: login-per-address\nmatch: {path: /login}\nkey: [ip]\nlimits: 7/minute\n"


def heading(page: Page, name: str) -> None:
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible(timeout=SLOW_MS)


def write(page: Page, text: str) -> None:
    page.get_by_label(TEXT).fill(text)
    expect(page.get_by_text("Valid, and not saved yet.")).to_be_visible(timeout=SLOW_MS)


def test_the_service_goes_away_and_comes_back_and_nothing_is_lost(
    visit: Visit, tmp_path: Path
) -> None:
    visit.forgive(AWAY)
    bind = ("--admin-bind", f"127.0.0.1:{free_port()}")
    with served(tmp_path / "service", *bind) as first:
        form = visit.open(first, "/rules/login-per-address/edit")
        heading(form, "Edit login-per-address")
        write(form, MORE)
        overview = form.context.new_page()
        overview.goto(f"{first.url}/")
        heading(overview, "Overview")
        expect(overview.locator(".banner")).to_be_hidden()
        expect(overview.get_by_text("of one process alone")).to_be_visible()

    for page in (form, overview):
        expect(page.locator(".banner")).to_be_visible(timeout=5_000)
        expect(page.locator(".banner")).to_contain_text("does not answer")
    expect(overview.get_by_text("when the service last answered")).to_be_visible()
    # To save is tried, and said to have failed.
    form.get_by_role("button", name="Save", exact=True).click()
    expect(form.locator(".message.failed")).to_be_visible()
    # Another page cannot be shown now, and can be when the service is back.
    overview.get_by_role("link", name="Audit").click()
    expect(overview.get_by_role("alert")).to_contain_text("does not answer")

    with served(tmp_path / "service", *bind) as second:
        for page in (form, overview):
            expect(page.locator(".banner")).to_be_hidden(timeout=SLOW_MS)
        overview.get_by_role("button", name="Try again").click()
        heading(overview, "Audit")
        overview.get_by_role("link", name="Overview").click()
        heading(overview, "Overview")
        with traffic(second, {"path": "/login", "ip": "203.0.113.7"}, a_second=20):
            denied = overview.locator(".tile.denied .much")
            expect(denied).to_have_text(SOME, timeout=SLOW_MS)
        expect(form.get_by_label(TEXT)).to_have_value(MORE)
        form.get_by_role("button", name="Save", exact=True).click()
        heading(form, "login-per-address")
        expect(form.get_by_role("main")).to_contain_text("7/minute")


@pytest.mark.slow
def test_a_database_with_a_newer_schema_is_shown_and_refuses_changes(
    visit: Visit, tmp_path: Path
) -> None:
    visit.forgive("503")
    with served(tmp_path / "service") as service:
        with closing(sqlite3.connect(tmp_path / "service" / ".limen" / "rules.db")) as database:
            database.execute("UPDATE limen_alembic_version SET version_num = '9999'")
            database.commit()
        page = visit.open(service, "/")
        warning = page.get_by_text("A newer version of limen made the tables of the database")
        expect(warning).to_be_visible(timeout=SLOW_MS)
        page.goto(f"{service.url}/rules/login-per-address/edit")
        write(page, MORE)
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.locator(".message.failed")).to_contain_text("schema revision 9999")
        visit.leave()


def test_a_session_that_is_over_says_so_and_one_goes_on_where_one_was(
    visit: Visit, service: Served
) -> None:
    visit.forgive("401", "EventSource")
    page = visit.open(service, "/rules?search=login", token=service.token("editor", "ann"))
    heading(page, "Rules")
    form = page.context.new_page()
    form.goto(f"{service.url}/rules/login-per-address/edit")
    heading(form, "Edit login-per-address")
    write(form, MORE)
    [token] = [each for each in service.admin("GET", "/tokens")["tokens"] if each["name"] == "ann"]
    service.admin("DELETE", f"/tokens/{token['id']}")
    for each in (page, form):
        expect(each.get_by_label("Token")).to_be_focused(timeout=SLOW_MS)
        expect(each.get_by_role("alert")).to_contain_text("Your session is over.")
        each.get_by_label("Token").fill(ADMIN)
        each.get_by_role("button", name="Sign in").click()
    heading(page, "Rules")
    assert page.url == f"{service.url}/rules?search=login"
    expect(page.get_by_label("Search")).to_have_value("login")
    heading(form, "Edit login-per-address")
    expect(form.get_by_label(TEXT)).to_have_value(MORE)


def test_the_second_of_two_editors_sees_both_texts(visit: Visit, service: Served) -> None:
    visit.forgive("409")
    pages = [visit.open(service, "/rules/login-per-address/edit") for _ in range(2)]
    for page, number in zip(pages, (7, 9), strict=True):
        heading(page, "Edit login-per-address")
        write(page, MORE.replace("7/", f"{number}/"))
        page.get_by_label("Comment").fill(f"now {number}")
        page.get_by_role("button", name="Save", exact=True).click()
    first, second = pages
    heading(first, "login-per-address")
    conflict = second.get_by_role("alert").filter(has_text="while you were writing")
    expect(conflict).to_be_visible(timeout=SLOW_MS)
    expect(conflict).to_contain_text("limits: 7/minute")
    expect(conflict).to_contain_text("limits: 9/minute")
    expect(conflict).to_contain_text("now 7")
    expect(second.get_by_label(TEXT)).to_have_value(MORE.replace("7/", "9/"))
    is_for_everybody(second)
    conflict.get_by_role("button", name="Save mine in place of theirs").click()
    heading(second, "login-per-address")
    expect(second.get_by_role("main")).to_contain_text("9/minute")


@pytest.mark.parametrize("role", ["viewer", "editor"])
def test_everybody_is_shown_what_they_may_do(visit: Visit, service: Served, role: str) -> None:
    page = visit.open(service, token=service.token(role, f"a {role}"))
    heading(page, "Overview")
    expect(page.get_by_role("link", name="Tokens")).to_have_count(0)
    switch = page.get_by_role("button", name="Kill switch")
    expect(switch).to_have_count(1 if role == "editor" else 0)
    expect(page.locator("header")).to_contain_text("Kill switch: off")
    page.goto("/tokens")
    heading(page, "Tokens")
    expect(page.get_by_role("main")).to_contain_text("takes the role admin")
    page.goto("/rules/login-per-address")
    heading(page, "login-per-address")
    for name in ("Change the mode", "Delete"):
        press = page.get_by_role("button", name=name, exact=True)
        if role == "editor":
            expect(press).to_be_enabled()
        else:
            expect(press).to_be_disabled()
            assert "editor" in (press.get_attribute("title") or "")
    page.goto(scene.PAGES["keys"])
    heading(page, "Keys")
    press = page.get_by_role("button", name="Block", exact=True)
    expect(press).to_have_count(1 if role == "editor" else 0)
    page.goto("/rules/login-per-address/edit")
    if role == "editor":
        heading(page, "Edit login-per-address")
    else:
        expect(page.get_by_role("alert")).to_contain_text("editor")


def test_kill_switch_that_is_not_saved_says_so(visit: Visit, tmp_path: Path) -> None:
    visit.forgive("Failed to load|503")  # SQLite is on the full disk, too
    with mounted(tmp_path / "disk") as disk, served(disk.path) as service:
        page = visit.open(service)
        heading(page, "Overview")
        expect(page.locator("header")).to_contain_text("Kill switch: off")
        disk.fill()
        page.get_by_role("button", name="Kill switch").click()
        page.get_by_role("button", name="Turn on for all rules").click()
        said = "The switch is not saved on this host: .limen/kill-switch cannot be written: No spac"
        expect(page.get_by_text(said)).to_be_visible(timeout=SLOW_MS)
        expect(page.get_by_role("button", name="Kill switch: ON")).to_be_visible(timeout=SLOW_MS)
        visit.leave()
