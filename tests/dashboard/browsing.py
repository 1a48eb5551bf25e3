"""A real Chromium that looks at a real `limen serve`, and hears every complaint of a page.

Playwright drives the Chromium of the system. Where there is none, tests are skipped and say so; in
CI they fail.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Page,
    Request,
    sync_playwright,
)
from playwright.sync_api import Response as Loaded

from tests import servers
from tests.server.product import Product, product
from tests.server.raw import Response
from tests.waiting import wait_until

ADMIN = "canary-admin-token-0123456789abcdef"
MARK = "x-limen-request"
_FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
_UNUSED = (
    # Suggestions for the address of a window: pages in two processes of their own, which take more
    # of the machine than the page that is looked at. Nobody types an address here.
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup"),
    # What Playwright turns off, as this list takes the place of its own.
    *("AimEnabled", "AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync"),
    *("DestroyProfileOnBrowserClose", "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades"),
    *("LensOverlay", "MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints"),
    *("PaintHolding", "PreconnectToSearch", "ThirdPartyStoragePartitioning"),
)
_PATIENCE_MS = 15_000
# What a page has begun and is not interested in any more, when it is left.
_LEFT = "net::ERR_ABORTED"


class Served:
    """A service, and what it takes to ask it past the dashboard."""

    def __init__(self, process: Product) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{process.admin_port}"

    def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = ADMIN
    ) -> Response:
        """Ask with a token, or without one."""
        sent = () if token is None else (f"Authorization: Bearer {token}",)
        return self.process.ask(path, *sent, method=method, body=body)

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the administration as an admin; it has to do it."""
        answer = self.ask(method, f"/admin/v1{path}", body)
        assert answer.status < 300, answer
        return json.loads(answer.body)

    def check(self, **attributes: str) -> dict[str, Any]:
        """Ask for a decision."""
        answer = self.ask("POST", "/v1/check", {"attributes": attributes})
        assert answer.status == 200, answer
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def token(self, role: str, name: str = "somebody") -> str:
        """Create a token; return its secret, which every worker knows."""
        made = self.admin("POST", "/tokens", {"role": role, "name": name})
        secret: str = made["secret"]
        times = 1 if len(self.process.workers) < 2 else 20
        wait_until(
            lambda: all(
                self.ask("GET", "/session", token=secret).status == 200 for _ in range(times)
            )
        )
        return secret


@contextmanager
def served(folder: Path, *flags: str, port: int | None = None, **settings: str) -> Iterator[Served]:
    """Start a service that counts in memory, with the starter rules; end it.

    Other flags and settings are those of `limen serve`; `store__deadline="5.0"`.
    """
    if port is not None:
        flags = ("--bind", f"127.0.0.1:{port}", *flags)
    with product(folder, *flags, **{"auth__admin_token": ADMIN, **settings}) as process:
        found = Served(process)
        wait_until(lambda: found.ask("GET", "/readyz", token=None).status == 200)
        yield found


@contextmanager
def shared(folder: Path, *flags: str, workers: int = 2) -> Iterator[Served]:
    """Start a service of several workers on a store of its own."""
    with servers.server(servers.binaries()["valkey"]) as port:
        store = ("--store", f"redis://127.0.0.1:{port}", "--workers", str(workers))
        with served(folder, *store, *flags, store__deadline="5.0") as found:
            yield found


class Visit:
    """Pages of one test, each in a browser that has never been anywhere.

    What a page complains of is remembered: errors of scripts and of the console, which has those of
    the content policy; requests that failed; dialogs that no script of ours opens.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._forgiven: list[str] = []
        self.complaints: list[str] = []

    def open(
        self, service: Served, path: str = "/", token: str | None = ADMIN, **options: Any
    ) -> Page:
        """Return a page, signed in unless there is no token.

        Options are those of a browser context: `viewport`, `color_scheme`, `locale`.
        """
        context = self._browser.new_context(base_url=service.url, **options)
        self._contexts.append(context)
        context.set_default_timeout(_PATIENCE_MS)
        if token is not None:
            answer = context.request.post("/session", data={"token": token}, headers={MARK: "1"})
            assert answer.ok, answer.text()
        page = context.new_page()
        self._listen(page)
        context.on("page", self._listen)
        page.goto(path)
        return page

    def forgive(self, *patterns: str) -> None:
        """Bear with what matches one of some patterns: the test means it to happen."""
        self._forgiven += patterns

    def leave(self) -> None:
        """Close every page: who ends a service does so first, or they complain that it is away."""
        for context in self._contexts:
            context.close()

    def close(self) -> None:
        """Close every page; fail for what one of them complained of."""
        self.leave()
        unforgiven = [
            each
            for each in self.complaints
            if not any(re.search(pattern, each) for pattern in self._forgiven)
        ]
        assert not unforgiven, "\n".join(["the page complained:", *unforgiven])

    def _listen(self, page: Page) -> None:
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        page.on("requestfailed", self._on_failure)
        page.on("response", self._on_response)
        page.on("dialog", self._on_dialog)

    def _on_console(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.complaints.append(f"console: {said.text} ({said.location.get('url')})")

    def _on_failure(self, request: Request) -> None:
        if request.failure != _LEFT:
            self.complaints.append(f"request: {request.method} {request.url}: {request.failure}")

    def _on_response(self, response: Loaded) -> None:
        if response.status >= 400:
            asked = response.request
            self.complaints.append(f"request: {asked.method} {asked.url}: {response.status}")

    def _on_dialog(self, dialog: Dialog) -> None:
        if dialog.type == "beforeunload":
            dialog.accept()
            return
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium; close it."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    if binary is None:
        reason = "there is no Chromium here: `make test` installs it where apt-get may"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with sync_playwright() as playwright:
        flags = [*_FLAGS, *sandbox, f"--disable-features={','.join(_UNUSED)}"]
        browser = playwright.chromium.launch(executable_path=binary, args=flags)
        try:
            yield browser
        finally:
            browser.close()
