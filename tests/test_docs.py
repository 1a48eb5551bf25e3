"""The documents say what is so: each example runs and prints what is shown, each link leads on."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import limen
from tests import servers
from tests.client import services

ROOT = Path(__file__).parent.parent
TAUGHT = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "adapters").glob("*.md")),
]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DECISIONS = sorted((ROOT / "docs" / "adr").glob("*.md"))
FROM_ROOT = {page: str(page.relative_to(ROOT)) for page in PAGES}

EXAMPLES = {
    "quickstart.py": "request 4: refused, come back in 60 s",
    "async_worker.py": "8 pages fetched, one every 10 ms at most",
    "login_throttle.py": "13:10 mallory: locked, come back in 300 s",
    "outgoing.py": "7 answers by listening to the API",
}


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    line: int
    skipped: bool


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page; `<!-- no test -->` on the line before one skips it."""
    blocks: list[Block] = []
    language, start, before = None, 0, ""
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            assert not line.lstrip().startswith("```"), f"{page}:{number}: an indented fence"
            before = line if language is None and line.strip() else before
        elif language is None:
            language, start = line[3:].strip(), number
        else:
            text = "".join(f"{inside}\n" for inside in lines[start : number - 1])
            blocks.append(Block(language, text, start + 1, before.strip() == "<!-- no test -->"))
            language, before = None, ""
    assert language is None, f"{page}: the block of line {start} has no end"
    return blocks


def run(block: Block, page: Path, namespace: dict[str, Any], ports: dict[str, int]) -> str:
    """Run a block, as if the lines above it were blank, so that a traceback names its line.

    Where it says that Redis, or a service, is on its usual port, it finds one that is there for it
    alone.
    """
    text = block.text
    for usual, port in ports.items():
        text = text.replace(usual, f"127.0.0.1:{port}")
    code = compile("\n" * (block.line - 1) + text, str(page), "exec", dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


@pytest.fixture
def ports(page: Path, tmp_path: Path) -> Iterator[dict[str, int]]:
    """Return where to find what a page says is on its usual port."""
    code = "".join(block.text for block in blocks_of(page) if block.language == "python")
    found: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        if "localhost:6379" in code:
            valkey = servers.server(servers.binaries()["valkey"])
            found["localhost:6379"] = stack.enter_context(valkey)
        if "localhost:8080" in code:
            starter = (ROOT / "src/limen/server/worker/starter.yaml").read_text()
            service = stack.enter_context(services.served(tmp_path, rules=starter))
            found["localhost:8080"] = service.port
        yield found


@pytest.mark.parametrize("page", TAUGHT, ids=FROM_ROOT.get)
def test_examples_print_what_is_shown(page: Path, ports: dict[str, int]) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    blocks = blocks_of(page)
    # A page may turn the log down, for itself.
    with contextlib.ExitStack() as stack:
        logger = logging.getLogger("limen")
        stack.callback(logger.setLevel, logger.level)
        for block, following in zip(blocks, [*blocks[1:], Block("", "", 0, True)], strict=True):
            if block.language != "python" or block.skipped:
                continue
            shown = following.text if following.language == "text" else ""
            where = f"{page.name}, the block of line {block.line}"
            assert run(block, page, namespace, ports) == shown, where
        for value in namespace.values():
            if isinstance(value, limen.Limiter | limen.Client):
                value.close()


def prose_of(page: Path) -> str:
    """Return a page without its fenced blocks and its code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", text, flags=re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = sum(1 for anchor in anchors if re.fullmatch(rf"{re.escape(plain)}(-\d+)?", anchor))
        anchors.add(f"{plain}-{again}" if again else plain)
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=FROM_ROOT.get)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors_of(target), f"{page.name} links to {link}"


def test_pages_named_in_the_code_exist() -> None:
    sources = [ROOT / "pyproject.toml", *(ROOT / "src").rglob("*.py")]
    named = {
        name for file in sources for name in re.findall(r"docs/[\w./-]+\.md", file.read_text())
    }
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("name", limen.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    pages = [ROOT / "docs" / f"{page}.md" for page in ("client", "library", "limits", "rules")]
    assert any(re.search(rf"(?<!\w){name}(?!\w)", page.read_text()) for page in pages)


@pytest.mark.parametrize("page", DECISIONS, ids=FROM_ROOT.get)
def test_a_decision_record_has_its_four_parts_on_one_page(page: Path) -> None:
    text = page.read_text()
    headings = ["Context", "Decision", "Rejected", "How we would know it was wrong"]
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == headings
    assert len(text.splitlines()) <= 45


def test_decision_records_are_numbered_without_a_gap() -> None:
    numbers = [int(page.name[:4]) for page in DECISIONS]
    assert numbers == list(range(1, len(DECISIONS) + 1))


def test_every_example_is_run() -> None:
    """Those that are servers are started by the tests of the adapters."""
    tests = [path.read_text() for path in (ROOT / "tests" / "adapters").rglob("test_*.py")]
    for script in (ROOT / "examples").glob("*.py"):
        served = [text for text in tests if re.search(rf"(?<!\w){script.stem}(?!\w)", text)]
        assert script.name in EXAMPLES or served, f"nobody runs {script.name}"


@pytest.mark.parametrize("script", EXAMPLES)
def test_example_runs(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / script],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert EXAMPLES[script] in done.stdout.splitlines()
