"""What other processes do to a store in tests: write, prepare, run out of disk. Imports no pytest.

They are forked from a server that has limen loaded, so that twenty of them start in a second.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pwd
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from limen.errors import Conflict, StoreError
from limen.rules.stores.ledger import Obstacle
from limen.rules.stores.sql import SqlStore

PATIENT_S = 30.0


def processes() -> Any:
    """Return where processes come from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["limen.rules.document", "limen.rules.stores.sql"])
    return context


def document(**limits: str) -> dict[str, Any]:
    """Return rules with these limits, by name."""
    rules = [{"name": name, "key": ["user"], "limits": text} for name, text in limits.items()]
    return {"rules": rules}


def grown(before: dict[str, Any] | None, name: str) -> dict[str, Any]:
    """Return the rules with one more."""
    rules = before["rules"] if before else []
    return {"rules": [*rules, *document(**{name: "5/minute"})["rules"]]}


def add_rules(url: str, times: int, number: int) -> list[int]:
    """Add rules to the newest version, again and again whenever somebody was faster."""

    async def work() -> list[int]:
        store, saved = SqlStore(url, busy_timeout=PATIENT_S), []
        for turn in range(times):
            while True:
                latest = await store.latest()
                base, before = (latest.version, latest.document) if latest else (0, None)
                after = grown(before, f"w{number}-{turn}")
                try:
                    done = await store.save(after, author=f"writer {number}", base=base)
                except Conflict:
                    continue
                saved.append(done.version)
                break
        return saved

    return asyncio.run(work())


def create_tokens(url: str, times: int, number: int) -> list[str]:
    """Create tokens and revoke every second one; return their ids."""

    async def work() -> list[str]:
        store, made = SqlStore(url, busy_timeout=PATIENT_S), []
        for turn in range(times):
            token, _ = await store.create_token("check", f"w{number}-{turn}", f"writer {number}")
            if turn % 2:
                await store.revoke_token(token.id, f"writer {number}")
            made.append(token.id)
        return made

    return asyncio.run(work())


def save_until_killed(url: str, told: Connection) -> None:
    """Save for ever; tell of each version that the store said was saved, and of each failure."""

    async def work() -> None:
        store, turn = SqlStore(url, busy_timeout=PATIENT_S), 0
        while True:
            turn += 1
            try:
                rules = document(**{f"by-{os.getpid()}": f"{turn}/day"})
                done = await store.save(rules, author="w", base=None)
            except StoreError as error:
                told.send(str(error))
            else:
                told.send((done.version, done.digest))

    asyncio.run(work())


def prepare_at(url: str, moment: float) -> None:
    """Prepare the store, at the same moment as others do."""
    store = SqlStore(url)
    time.sleep(max(0.0, moment - time.time()))
    asyncio.run(store.prepare())


def attempt(action: Callable[[str], Any], url: str, told: Connection) -> None:
    """Do something once, and tell which error it gave."""
    asyncio.run(_warm_up(url))
    try:
        told.send(action(url))
    except Exception as error:
        told.send(error)


def save_on_full_disk(url: str) -> str:
    """Save more than this process may write to any file."""
    room = _path(url).stat().st_size + 4_096
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    rules = {f"rule-{number}": "5/minute" for number in range(1_000)}
    return str(asyncio.run(SqlStore(url).save(document(**rules), author="a", base=None)).version)


def save_as_nobody(url: str) -> str:
    """Save as a user who may not write there."""
    _become_nobody()
    return str(asyncio.run(SqlStore(url).save(document(b="6/day"), author="a", base=None)).version)


def obstacle_for_nobody(url: str) -> Obstacle | None:
    """Return the obstacle for a user who may not write there."""
    _become_nobody()
    store = SqlStore(url)
    # In a folder that this user cannot write, SQLite may not even be able to read.
    with suppress(StoreError):
        asyncio.run(store.tokens_version())
    return store.obstacle


def prepare_as_nobody(url: str) -> None:
    """Prepare a store beside this one, as a user who may not write there."""
    _become_nobody()
    asyncio.run(SqlStore(f"sqlite:///{_path(url).parent}/sub/new.db").prepare())


async def _warm_up(url: str) -> None:
    # Whatever is imported late is imported now: another user may not read our packages.
    store = SqlStore(url)
    await store.prepare()
    await store.version()


def _become_nobody() -> None:
    if os.geteuid() == 0:
        os.setuid(pwd.getpwnam("nobody").pw_uid)


def _path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))
