"""In a browser: in by a token, out again, and what is left then."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.browsing import ADMIN, Served, Visit

OWN = "127.0.0.1"


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_who_signs_in_stays_signed_in_until_they_sign_out(visit: Visit, service: Served) -> None:
    page = visit.open(service, "/rules", token=None)
    sign_in(page, ADMIN)
    expect(page.get_by_role("navigation")).to_be_visible()
    page.reload()
    expect(page.get_by_role("navigation")).to_be_visible()
    assert page.url == f"{service.url}/rules"
    assert page.evaluate("document.cookie") == ""
    [cookie] = page.context.cookies()
    assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.context.cookies() == []


def test_a_wrong_token_is_told_and_another_may_be_tried(visit: Visit, service: Served) -> None:
    visit.forgive("401")
    page = visit.open(service, token=None)
    sign_in(page, "not-a-token-at-all")
    expect(page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")
    sign_in(page, ADMIN)
    expect(page.get_by_role("navigation")).to_be_visible()


def test_a_session_ends_when_its_token_is_revoked(visit: Visit, fresh: Served) -> None:
    visit.forgive("401")
    page = visit.open(fresh, "/rules", token=fresh.token("viewer"))
    expect(page.get_by_role("navigation")).to_be_visible()
    [token] = fresh.admin("GET", "/tokens")["tokens"]
    fresh.admin("DELETE", f"/tokens/{token['id']}")
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.context.cookies() == []


def test_every_worker_knows_who_is_signed_in(visit: Visit, pair: Served) -> None:
    page = visit.open(pair, "/rules")
    expect(page.get_by_role("navigation")).to_be_visible()
    # Each by a connection of its own, which whichever worker is free accepts.
    told = [
        page.context.request.get("/session", headers={"connection": "close"}).json()["role"]
        for _ in range(20)
    ]
    assert set(told) == {"admin"}


@pytest.mark.parametrize("host", [OWN, "localhost"])
def test_a_page_of_another_site_changes_nothing(visit: Visit, fresh: Served, host: str) -> None:
    """Another port of the same host is the same site, and sends the cookie along."""
    visit.forgive("CORS|ERR_FAILED|403|ERR_BLOCKED|401")
    page = visit.open(fresh)
    expect(page.get_by_role("navigation")).to_be_visible()
    other = f"http://{host}:9"
    page.context.route(f"{other}/*", lambda route: route.fulfill(content_type="text/html", body=""))
    page.goto(f"{other}/evil")
    target = f"{fresh.url}/admin/v1/tokens"
    page.evaluate(
        """async (target) => {
            const body = '{"role": "admin", "name": "evil"}';
            const tries = [
                {body}, {body, headers: {"x-limen-request": "1"}}, {body, mode: "no-cors"},
            ];
            for (const each of tries) {
                await fetch(target, {method: "POST", credentials: "include", ...each})
                    .catch(() => null);
            }
        }""",
        target,
    )
    page.evaluate(
        """(target) => {
            const form = document.createElement("form");
            Object.assign(form, {method: "post", enctype: "text/plain", action: target});
            const field = document.createElement("input");
            Object.assign(field, {name: '{"role": "admin", "name": "', value: 'evil"}'});
            form.append(field);
            document.body.append(form);
            form.submit();
        }""",
        target,
    )
    page.wait_for_url(target)
    expect(page.locator("body")).to_contain_text("Forbidden" if host == OWN else "Unauthorized")
    assert fresh.admin("GET", "/tokens")["tokens"] == []
