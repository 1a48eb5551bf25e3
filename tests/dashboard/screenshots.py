"""Pictures of every page of a real service: `make screenshots`.

`python -m tests.dashboard.screenshots FOLDER` writes each page, light and dark, wide and phone.
Without a folder it writes the few that README.md shows, to docs/screenshots.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from playwright.sync_api import Browser, Page

from tests.dashboard import scene
from tests.dashboard.browsing import ADMIN, Served, Visit, chromium, shared
from tests.dashboard.traffic import traffic

DOCS = Path(__file__).parents[2] / "docs" / "screenshots"
SIZES = {"wide": (1280, 960), "phone": (360, 740)}
THEMES = ("light", "dark")
SHOWN = ("overview-light-wide", "rule-light-wide", "overview-dark-wide")
SIGN_IN = "sign-in"


def main() -> None:
    """Write pictures; print where."""
    parser = argparse.ArgumentParser(prog="tests.dashboard.screenshots", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="where to write all of them")
    parser.add_argument(
        "--seconds", type=float, default=60, help="how long traffic comes before the first picture"
    )
    asked = parser.parse_args()
    pages = [SIGN_IN, *scene.PAGES]
    names = [f"{page}-{theme}-{size}" for page, theme, size in product(pages, THEMES, SIZES)]
    names = names if asked.folder else [name for name in names if name in SHOWN]
    folder = asked.folder or DOCS
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, shared(Path(place) / "service") as service:
        scene.furnish(service)
        with scene.busy(service), waves(service), chromium() as browser:
            time.sleep(asked.seconds)
            for name in names:
                take(browser, service, folder, name)
                sys.stdout.write(f"{folder / name}.png\n")


def take(browser: Browser, service: Served, folder: Path, name: str) -> None:
    """Write one picture of a page, as a browser shows it that has just opened it."""
    page_name, theme, size = name.rsplit("-", 2)
    width, height = SIZES[size]
    visit = Visit(browser)
    page = visit.open(
        service,
        scene.PAGES.get(page_name, "/"),
        None if page_name == SIGN_IN else ADMIN,
        viewport={"width": width, "height": height},
        color_scheme=theme,
        device_scale_factor=2 if folder == DOCS else 1,
    )
    settle(page)
    page.screenshot(path=folder / f"{name}.png", full_page=folder != DOCS, animations="disabled")
    visit.close()


def settle(page: Page) -> None:
    """Wait until a page has shown what it was opened for, and a few live figures."""
    page.locator("h1").first.wait_for()
    page.wait_for_timeout(2_500)


@contextmanager
def waves(service: Served) -> Iterator[None]:
    """Have more requests come and go, as they do in a day, so that charts show it."""
    over = threading.Event()

    def run() -> None:
        begun = time.monotonic()
        while not over.is_set():
            strength = 1 + math.sin((time.monotonic() - begun) / 9)
            requests = [{"path": "/api/items", "user": str(n)} for n in range(100, 180)]
            with traffic(service, *requests, a_second=5 + 30 * strength):
                over.wait(3)

    thread = threading.Thread(target=run, name="waves")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


if __name__ == "__main__":
    main()
