"""The fuzzer for a while: ten seconds in `make test`, minutes in `make fuzz`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SECONDS = 300 if os.environ.get("LIMEN_FUZZ") else 6


def test_nothing_that_is_sent_breaks_anything(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.server.grpc.fuzz_handler", str(SECONDS), str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=SECONDS + 60, check=False
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    assert found, done.stderr[-4_000:]
    assert int(found[1]) > 100 * SECONDS
