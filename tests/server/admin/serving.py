"""`limen serve` with rules and tokens, for tests with a real client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from msgspec import Struct

from limen.rules.stores.sql import SqlStore
from limen.rules.stores.tokens import Role
from limen.server.settings import load
from limen.server.worker.data_dir import Place
from tests.server.admin.driving import RULES
from tests.server.running import Running
from tests.waiting import wait_until


class Serving(Struct, frozen=True):
    """A service that runs."""

    url: str
    """The control plane."""
    data_url: str
    """The data plane."""


@contextmanager
def serving(folder: Path, data: Path, **settings: str) -> Iterator[Serving]:
    """Start a service with `RULES` in `folder`, where it writes its log to `err`.

    `data` is the data folder. Settings are those of the environment: `auth__checks="open"`.
    """
    asyncio.run(_prepare(data))
    environ = {f"LIMEN_{name.upper()}": value for name, value in settings.items()}
    with Running(folder, "--data-dir", str(data), environ=environ) as running:
        yield Serving(running.admin_url, running.url)


def tokens(url: str, folder: Path, *roles: Role) -> dict[Role, str]:
    """Create a token for each role, past the API; return when the service knows them."""

    async def create() -> dict[Role, str]:
        store = SqlStore(f"sqlite:///{folder / 'rules.db'}")
        made = [await store.create_token(role, f"a {role}", "tests") for role in roles]
        await store.close()
        return {token.role: secret for token, secret in made}

    made = asyncio.run(create())
    wait_until(lambda: _status(f"{url}/admin/v1/tokens", made[roles[-1]]) != 401)
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


async def _prepare(data: Path) -> None:
    place = Place(load({"data_dir": str(data)}, {}))
    await place.prepare()
    books = SqlStore(place.books)
    await books.save(RULES, author="tests", base=None)
    await books.close()
