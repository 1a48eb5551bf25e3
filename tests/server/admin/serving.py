"""A service in a process of its own, on a socket: `python -m tests.server.admin.serving PORT ...`.

For those who ask much, and by way of a real client.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import uvicorn

from limen.rules.stores.sql import SqlStore
from limen.rules.stores.tokens import Role
from limen.server.admin import admin_app
from limen.server.app import App
from limen.server.place import Place
from limen.server.service import Service
from limen.server.settings import load
from tests.server.admin.driving import RULES
from tests.servers import HOST, free_port


@contextmanager
def serving(folder: Path, log: Path, **flags: Any) -> Iterator[str]:
    """Start a service; yield its address."""
    port = free_port()
    told = json.dumps({"data_dir": str(folder), **flags})
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", __name__, str(port), told],
            stdout=output,
            stderr=output,
        )
    try:
        _wait(f"http://{HOST}:{port}/readyz", process, log)
        yield f"http://{HOST}:{port}"
    finally:
        process.terminate()
        process.wait(20)


def tokens(url: str, folder: Path, *roles: Role) -> dict[Role, str]:
    """Create a token for each role, past the API; return when the service knows them."""

    async def create() -> dict[Role, str]:
        store = SqlStore(f"sqlite:///{folder / 'rules.db'}")
        made = [await store.create_token(role, f"a {role}", "tests") for role in roles]
        await store.close()
        return {token.role: secret for token, secret in made}

    made = asyncio.run(create())
    end = time.monotonic() + 10
    while _status(f"{url}/admin/v1/tokens", made[roles[-1]]) == 401:
        assert time.monotonic() < end, "the tokens are not known"
        time.sleep(0.05)
    return made


def _status(url: str, token: str) -> int:
    request = Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urlopen(request, timeout=5) as answer:
            status: int = answer.status
            return status
    except HTTPError as error:
        error.close()
        return error.code


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            urlopen(url, timeout=5).close()
            return
        except (URLError, ConnectionError):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)


async def _prepare(place: Place) -> None:
    await place.prepare()
    books = SqlStore(place.books)
    await books.save(RULES, author="tests", base=None)
    await books.close()


def main(port: str, flags: str) -> None:
    settings = load(json.loads(flags), {})
    asyncio.run(_prepare(Place(settings)))
    service = Service(settings)
    app = App(service, admin_app(service))
    uvicorn.run(app, host=HOST, port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
