"""The rules that these tests use, and what they do with them again and again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from limen.rules.stores.sql import SqlStore

DATABASE = "sqlite:///.limen/rules.db"
FORCING_COLOUR = ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
SECRET = "s3cret"

RULES = """\
rules:
  - name: search-per-user
    match: {path: /search/*, method: [GET, POST]}
    key: [user]
    limits: [100/minute, 1000/day]
    tiers: {by: plan, limits: {pro: 600/minute, max: unlimited}, default: 60/minute}
    overrides:
      - {key: {user: 42}, limits: 5000/hour, ends: 2099-12-24}
  - name: login
    match: {path: /login}
    key: [ip]
    missing: deny
    limits: 5/minute
  - name: bots
    match: {agent: "*bot*"}
    mode: block
    ends: 2099-01-01
  - name: everybody
    limits: 1000/minute
    mode: shadow
  - name: exports
    match: {path: /export}
    key: [user]
    concurrency: {slots: 3, lease: 60s}
  - name: old
    limits: 1/day
    mode: "off"
exemptions:
  - {name: internal, match: {ip: 10.0.0.0/8}}
  - {name: ops, match: {user: [root, ops]}, rules: [login, exports]}
"""
BAD = """\
rules:
  - name: search
    limts: 100/minute
  - name: search
    key: [user]
    limits: 100/fortnight
"""


class Ran(NamedTuple):
    exit_code: int
    out: str
    err: str


Run = Callable[..., Ran]


def write(folder: Path, text: str, name: str = "rules.yaml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return name


def edit(folder: Path, old: str, new: str) -> str:
    assert old in RULES
    return write(folder, RULES.replace(old, new))


def latest_version() -> int:
    async def ask() -> int:
        found = await SqlStore(DATABASE).latest()
        return found.version if found else 0

    return asyncio.run(ask())


def process(code: str, *arguments: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    plain = {name: value for name, value in os.environ.items() if name not in FORCING_COLOUR}
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; {code}; from limen.cli import main; main()",
            *arguments,
        ],
        env={**plain, "PYTHONIOENCODING": more.pop("encoding", "utf-8")},
        capture_output=True,
        check=False,
        **more,
    )
