"""Servers to disturb. What runs of faults leave behind is printed at the end: it is their point."""

from __future__ import annotations

import pytest

from tests import servers
from tests.faults import figures


@pytest.fixture
def port(valkey: servers.Server) -> int:
    return valkey.port


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if figures.said:
        terminalreporter.section("figures")
        for line in figures.said:
            terminalreporter.write_line(line)
