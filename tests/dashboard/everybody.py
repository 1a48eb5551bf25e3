"""Whether a page is for everybody: what tools such as axe look for, written in `accessible.js`."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

_FINDINGS = (Path(__file__).parent / "accessible.js").read_text()


def is_for_everybody(page: Page, where: str = "") -> None:
    """Look for what stands in somebody's way, in both themes."""
    found: list[str] = []
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        found += [f"{where} {theme}: {each}" for each in page.evaluate(_FINDINGS)]
    assert not found, "\n".join(found)
