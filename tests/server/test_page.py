"""docs/service.md: its examples are run, one after another, and answer what is shown."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from limen import wire
from limen.server.worker.container import Health
from tests.servers import HOST, free_port
from tests.test_docs import ROOT, blocks_of
from tests.waiting import wait_until

PAGE = ROOT / "docs" / "service.md"
TEXT = PAGE.read_text()
END = "--- that was all of it ---"


class Example(NamedTuple):
    """A command, and what it prints."""

    command: str
    shown: str
    line: int


def examples() -> Iterator[Example]:
    for block in blocks_of(PAGE):
        if block.language != "console":
            continue
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            more = next((n for n, line in enumerate(lines[1:], 1) if line[:2] != "> "), len(lines))
            command = "\n".join([lines[0], *(line[2:] for line in lines[1:more])])
            yield Example(command, "\n".join(lines[more:]), block.line)


def shape(text: str) -> str:
    """Return a text without what differs from one run to another; seconds are told roughly."""
    text = re.sub(r'("(?:id|receipt|instance)": ?)"[^"]+"', r'\1"..."', text)
    text = re.sub(r'("(?:version|rules)": )"[0-9a-f]{12}"', r'\1"..."', text)
    text = re.sub(r'("rules_age": )[0-9.]+', r"\1...", text)
    return re.sub(
        r'(_after": |;t=|retry-after: )([0-9.]+)',
        lambda found: f"{found[1]}{math.ceil(float(found[2]) / 20) * 20}",
        text,
    )


class Shell:
    """A shell that remembers what it was told before."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\nprintf '\\n%s\\n' '{END}'\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.rstrip("\n") == END:
                break
            lines.append(line)
        return "".join(lines).replace("\r", "").rstrip("\n")

    def close(self) -> None:
        self._process.communicate("exit\n", timeout=10)


@contextmanager
def served(folder: Path, environment: dict[str, str]) -> Iterator[dict[str, int]]:
    """Start the service of the page on free ports; yield them by the addresses of the page."""
    [command] = [block.text for block in blocks_of(PAGE) if block.language == "sh"]
    port, admin_port, log = free_port(), free_port(), folder / "log"
    binds = ("--bind", f"{HOST}:{port}", "--admin-bind", f"{HOST}:{admin_port}")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command.split(), *binds],
            executable=Path(environment["PATH"].partition(":")[0]) / "limen",
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            with urllib.request.urlopen(f"http://{HOST}:{port}/readyz", timeout=5):
                return True

        wait_until(is_ready, ignoring=OSError, details=log.read_text)
        yield {"localhost:8080": port, "localhost:8082": admin_port}
        process.terminate()
        assert process.wait(15) == 0, log.read_text()
    finally:
        process.kill()
        process.wait(10)


def test_the_examples_answer_what_is_shown(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "limen"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom limen.cli import main\nmain()\n")
    program.chmod(0o755)
    (program.parent / "python3").symlink_to(sys.executable)
    [rules] = [block.text for block in blocks_of(PAGE) if block.language == "yaml"]
    (tmp_path / "rules.yaml").write_text(rules)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LIMEN_")}
    environment = {**kept, "PATH": f"{program.parent}:{os.environ['PATH']}", "no_proxy": "*"}
    with served(tmp_path, environment) as ports:
        shell = Shell(tmp_path, environment)
        try:
            for example in examples():
                command = example.command
                for address, port in ports.items():
                    command = command.replace(address, f"{HOST}:{port}")
                printed = shape(shell.run(command))
                # A new token is noticed when the service looks again.
                end = time.monotonic() + (10 if "$TOKEN" in command else 0)
                while printed != shape(example.shown) and time.monotonic() < end:
                    printed = shape(shell.run(command))
                assert printed == shape(example.shown), f"{example.command}, line {example.line}"
        finally:
            shell.close()


def test_the_page_asks_for_everything_that_can_be_asked() -> None:
    commands = [example.command for example in examples()]
    for asked in ("v1/check", "v1/refund", "v1/settle", "v1/usage", "v1/slots -d"):
        assert any(asked in command for command in commands), asked
    for method in ("POST", "DELETE"):
        assert any(f"-X {method} localhost:8080/v1/slots/" in command for command in commands)
    assert {"localhost:8080/healthz", "localhost:8080/readyz"} <= set(" ".join(commands).split())


def test_every_field_of_a_verdict_is_told() -> None:
    fields = {*wire.Verdict.__struct_fields__, *wire.Part.__struct_fields__}
    assert {name for name in fields if f"`{name}`" not in TEXT} == set()
    assert {name for name in Health.__struct_fields__ if f'"{name}"' not in TEXT} == set()
