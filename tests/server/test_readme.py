"""The first page, to the letter: what it says to type, typed; what it says is printed, printed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.server.running import Running

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands(page: Path) -> list[tuple[str, str]]:
    """Return each command of a page that begins with `$ curl` or a loop, and what it shows."""
    found: list[tuple[str, str]] = []
    for block in BLOCK.findall(page.read_text("utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            found.append((command, shown.strip()))
    return found


def pattern(shown: str) -> re.Pattern[str]:
    """Return what a printed text must be: `...` stands for anything, and a wait may be shorter."""
    escaped = re.escape(shown).replace(r"\.\.\.", ".*?").replace("\\\n", "\n")
    escaped = escaped.replace("t=60", r"t=(60|59)").replace(
        "retry\\-after:\\ 60", r"retry-after: \d+"
    )
    return re.compile(escaped.replace("59\\.9", r"5\d\.\d+"), re.DOTALL)


@pytest.mark.timeout(60)
def test_what_the_first_page_shows_is_what_happens(tmp_path: Path) -> None:
    with Running(tmp_path) as service:
        for command, shown in commands(ROOT / "README.md"):
            typed = command.replace("localhost:8080", f"127.0.0.1:{service.port}")
            typed = typed.replace("localhost:8082", f"127.0.0.1:{service.admin_port}")
            done = subprocess.run(
                ["bash", "-c", typed], capture_output=True, text=True, timeout=20, check=True
            )
            printed = done.stdout.replace("\r", "")
            assert pattern(shown).search(printed), f"{command}\nshows\n{printed}"
