"""`/docs` in a browser: the style sheet applies, and the content policy blocks nothing."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.dashboard.browsing import Served, Visit


def test_api_page_is_styled_and_opens_a_route(visit: Visit, service: Served) -> None:
    page = visit.open(service, "/docs", token=None)
    expect(page).to_have_title("limen: the API")
    expect(page.locator("body")).to_have_css("max-width", "960px")
    route = page.locator("details", has_text="/v1/check").first
    expect(route.locator("table").first).to_be_hidden()
    route.locator("summary").click()
    expect(route.locator("table").first).to_be_visible()
    link = page.get_by_role("link", name="openapi.json")
    expect(link).to_have_attribute("href", "/openapi.json")
