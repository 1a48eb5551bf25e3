"""The page Live without decisions: its example asks the data plane, not the host of the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.dashboard.browsing import Visit, served
from tests.servers import free_port


@pytest.mark.parametrize("checks", ["open", "token"])
def test_example_asks_the_data_plane(visit: Visit, tmp_path: Path, checks: str) -> None:
    port = free_port()
    with served(tmp_path, "--checks", checks, port=port) as service:
        page = visit.open(service, "/live")
        example = page.locator("pre")
        expect(example).to_contain_text(f"curl http://127.0.0.1:{port}/v1/check ")
        assert ("Authorization: Bearer" in example.inner_text()) is (checks == "token")
        visit.leave()
