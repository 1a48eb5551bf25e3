"""No request waits for the collector of garbage because of limen: it may have a large body."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.client.services import ROOT


@pytest.mark.parametrize("framework", ["starlette", "wsgi", "flask", "django"])
def test_a_request_leaves_nothing_behind_that_it_would_not_leave_anyway(framework: str) -> None:
    command = [sys.executable, "-m", "tests.adapters.garbage", framework]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    plain, limited = map(int, told.stdout.split())
    assert limited <= plain
