"""The lines of docs/admin-api.md do what they say."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.admin.driving import ADMIN
from tests.server.admin.serving import serving

PAGE = Path(__file__).parents[3] / "docs" / "admin-api.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_line_of_the_page_works(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    with serving(tmp_path, tmp_path / "data", auth__admin_token=ADMIN) as service:
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", "\n".join(blocks)],
            env={"LIMEN": service.url, "TOKEN": ADMIN, "PATH": "/usr/bin:/bin:/usr/local/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert len(said) == sum(line.startswith("call ") for line in "\n".join(blocks).splitlines())
    assert any('"name":"block-user-42"' in line for line in said)
    assert any('"comment":"searches were refused"' in line for line in said)
    assert said[-1] == '{"holds":true,"problem":null}'
