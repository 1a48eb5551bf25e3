"""The example, as its first lines say to run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.client.services import free_port

EXAMPLE = Path(__file__).parents[3] / "examples" / "grpc_server.py"


def test_the_example_serves_and_refuses() -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLE)]
    address = f"127.0.0.1:{free_port()}"
    env = {**os.environ, "ADDRESS": address}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"serving on {address}\n"
            called = subprocess.run(
                [*command, "call"], capture_output=True, text=True, timeout=60, check=True, env=env
            )
        finally:
            server.terminate()
            server.wait(30)
    *placed, refused = called.stdout.splitlines()
    assert placed == ["placed: tea", "placed: tea milk sugar", "placed: coffee"]
    assert refused.startswith(
        "RESOURCE_EXHAUSTED: 5 requests a minute are allowed for this x-api-key; come back in "
    )
