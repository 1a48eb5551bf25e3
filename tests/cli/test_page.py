"""docs/command-line.md: its examples are run, one after another, and print what is shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from limen.cli import build_app
from tests import servers
from tests.cli.acts import FORCING_COLOUR
from tests.test_docs import ROOT, blocks_of

PAGE = ROOT / "docs" / "command-line.md"


def timeless(text: str) -> str:
    """Return a text without what differs from one run to another."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( UTC)?( by \w+ at \S+)?", "then", text)
    text = re.sub(r"\b[0-9a-f]{8}\b", "an id", text)
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def test_the_examples_print_what_is_shown(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "limen"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom limen.cli import main\nmain()\n")
    program.chmod(0o755)
    folder = tmp_path / "folder"
    folder.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LIMEN_")}
    plain = {k: v for k, v in kept.items() if k not in FORCING_COLOUR}
    environment = {**plain, "LOGNAME": "ann", "PATH": f"{program.parent}:{os.environ['PATH']}"}
    blocks = blocks_of(PAGE)
    [rules] = [block.text for block in blocks if block.language == "yaml"]
    (folder / "rules.yaml").write_text(rules)
    with servers.process(servers.binaries()["valkey"]) as valkey:
        for block, shown in pairwise(blocks):
            if (block.language, shown.language) != ("sh", "text"):
                continue
            ran = subprocess.run(
                block.text.replace("localhost:6379", f"127.0.0.1:{valkey.port}"),
                shell=True,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=True,
            )
            printed = ran.stdout.replace(f"127.0.0.1:{valkey.port}", "localhost:6379")
            assert timeless(printed) == timeless(shown.text), f"the block of line {block.line}"


def test_every_command_is_on_the_page() -> None:
    page = PAGE.read_text()
    app = build_app()
    nested = {group.name: group.typer_instance for group in app.registered_groups}
    commands = [(command.name, app) for command in app.registered_commands]
    commands += [
        (command.name, group)
        for group in nested.values()
        if group is not None
        for command in group.registered_commands
    ]
    assert len(commands) > 15
    for name, _ in commands:
        assert re.search(rf"`(limen |)(rules |kill-switch |token |){name}\b", page), name
