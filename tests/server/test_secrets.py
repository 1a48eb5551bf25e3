"""Canary secrets: each is sought in all that the product says, and found nowhere.

Except where a token is created, which is told once to whoever asked for it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from limen.rules.stores.sql import SqlStore
from limen.server.grpc.calls import Call
from limen.server.grpc.stream import Stream
from limen.server.http import Request as HttpRequest
from limen.server.process.control_plane import control_plane
from limen.server.process.data_plane import DataPlane
from limen.server.process.logs import JsonLines, TextLines
from limen.server.settings import load
from limen.server.worker.container import Service
from tests.postgres import PASSWORD, Postgres
from tests.server.product import Product, environment, product
from tests.server.raw import HOST, Raw, Response, request
from tests.servers import Server, binaries, process
from tests.waiting import wait_until

REDIS = "canary-redis-31f9c2"
ADMIN = "canary-admin-8b1d77-0123456789abcdef"
CHECK = "canary-check-52e6a0-0123456789abcdef"
SIGNS = "canary-signs-c4107e-0123456789abcdef0123456789"
WRONG = "canary-wrong-96d35b-0123456789abcdef"
"""A token that nobody knows: whoever mistypes his own is not shown to others either."""


RULES = {
    "rules": [
        {
            "name": "login-per-address",
            "match": {"path": "/login"},
            "key": "ip",
            "limits": "5/minute",
        }
    ]
}


class Ears:
    """All that was heard, and the search in it."""

    def __init__(self) -> None:
        self._secrets = {
            "the password of Redis": REDIS,
            "the password of PostgreSQL": PASSWORD,
            "the admin token": ADMIN,
            "the check token": CHECK,
            "what signs": SIGNS,
            "an unknown token": WRONG,
        }
        self._heard: list[tuple[str, str]] = []

    def learn(self, name: str, secret: str) -> None:
        """Seek one more."""
        self._secrets[name] = secret

    def hear(self, where: str, text: str) -> None:
        self._heard.append((where, text))

    def find(self) -> list[str]:
        """Return which secret was found where, in any spelling."""
        return [
            f"{name} in {where}: {_around(text, spelt)}"
            for name, secret in self._secrets.items()
            for spelt in spellings(secret)
            for where, text in self._heard
            if spelt in text
        ]

    @property
    def size(self) -> int:
        return len(self._heard)


def spellings(secret: str) -> set[str]:
    """Return how a secret may look: as it is, escaped, in JSON, in base64, and its best part."""
    core = secret.removesuffix("0123456789abcdef0123456789").removesuffix("0123456789abcdef")
    core = core.split("/")[0]
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    return {
        secret,
        quote(secret, safe=""),
        repr(secret)[1:-1],
        json.dumps(secret)[1:-1],
        core,
        encoded,
    }


def _around(text: str, found: str) -> str:
    at = text.index(found)
    return text[max(0, at - 100) : at + len(found) + 20]


@pytest.fixture
def valkey() -> Iterator[Server]:
    with process(binaries()["valkey"], "--requirepass", REDIS) as started:
        yield started


class Client:
    """Asks the product, and lets the ears hear every answer."""

    def __init__(self, served: Product, ears: Ears) -> None:
        self._served = served
        self._ears = ears

    def ask(self, method: str, path: str, token: str | None = ADMIN, body: Any = None) -> Response:
        headers = [] if token is None else [f"Authorization: Bearer {token}"]
        return self.ask_with(method, path, *headers, body=body)

    def ask_with(self, method: str, path: str, *headers: str, body: Any = None) -> Response:
        response = self._served.ask(path, *headers, method=method, body=body)
        self._ears.hear(f"the answer to {method} {path}", _whole(response))
        return response

    def create_token(self, role: str) -> str:
        """Create a token, by the one answer that may tell a secret."""
        body = {"role": role, "name": f"a {role}"}
        headers = f"Authorization: Bearer {ADMIN}"
        response = self._served.ask("/admin/v1/tokens", headers, method="POST", body=body)
        assert response.status == 201, response
        secret: str = json.loads(response.body)["secret"]
        self._ears.hear("the creation of a token", _whole(response).replace(secret, "..."))
        self._ears.learn(f"the token of a {role}", secret)
        return secret

    def garbage(self, data: bytes) -> None:
        with Raw(self._served.port) as raw:
            raw.send(data)
            self._ears.hear("the answer to garbage", _whole(raw.response()))


def _whole(response: Response) -> str:
    return f"{response.status} {response.headers} {response.body.decode(errors='replace')}"


@pytest.mark.parametrize("format_", ["json", pytest.param("text", marks=pytest.mark.slow)])
def test_no_secret_is_found_anywhere(
    format_: str, postgres: Postgres, valkey: Server, tmp_path: Path
) -> None:
    ears = Ears()
    rules = postgres.create_database(f"secrets_{format_}")
    asyncio.run(_save(rules))
    settings = {
        "store__url": f"redis://:{REDIS}@{HOST}:{valkey.port}",
        "rules": rules,
        "auth__admin_token": ADMIN,
        "auth__check_token": CHECK,
        "auth__secret": SIGNS,
    }
    given = settings
    if format_ == "text":
        given = {f"{name}_file": _kept(tmp_path / name, text) for name, text in settings.items()}
    flags = ("--workers", "2", "--checks", "token", "--log-level", "debug")
    more = {"log__format": format_, "store__deadline": "2.0", "data_dir": str(tmp_path / "data")}
    try:
        with product(tmp_path / "run", *flags, **given, **more) as served:
            client = Client(served, ears)
            wait_until(lambda: client.ask("GET", "/readyz").status == 200, 60)
            wait_until(lambda: len(served.workers) == 2)
            _drive(client, served, postgres, valkey)
            for pid in (served.pid, *served.workers):
                ears.hear(f"the title of {pid}", Path(f"/proc/{pid}/cmdline").read_text())
            served.signal(signal.SIGTERM)
            assert served.code(60) == 0
            ears.hear("stdout", "".join(served.said))
            ears.hear("stderr", "".join(served.complained))
    finally:
        postgres.start()
    if format_ == "json":
        _hear_commands(ears, {**given, **more}, tmp_path)
    _hear_files(ears, tmp_path / "data")
    if format_ == "json":
        for line in served.complained:
            assert json.loads(line)["message"]
    assert not [line for line in served.complained if "Traceback" in line]
    assert ears.size > 200
    assert ears.find() == []


async def _save(url: str) -> None:
    """Save rules before it starts, which it would wait for."""
    store = SqlStore(url)
    await store.prepare()
    await store.save(RULES, author="tests", base=None)
    await store.close()


def _kept(path: Path, secret: str) -> str:
    path.write_text(secret)
    return str(path)


def _drive(client: Client, served: Product, postgres: Postgres, valkey: Server) -> None:
    """Ask for everything there is, in good days and in bad ones."""
    tokens = [client.create_token(role) for role in ("check", "viewer", "editor", "admin")]
    _everything(client, tokens)
    _bad_input(client, tokens[0])

    valkey.kill()
    assert client.ask("POST", "/v1/check", CHECK, _asked()).status == 200
    # By either worker: each looks for itself.
    wait_until(lambda: b'"degraded"' in client.ask("GET", "/readyz").body)
    _everything(client, tokens[:1])
    valkey.command[valkey.command.index(REDIS)] = "another"
    valkey.restart()
    wait_until(lambda: b"degraded" in client.ask("GET", "/readyz").body)
    assert client.ask("POST", "/v1/check", CHECK, _asked()).status == 200
    valkey.command[valkey.command.index("another")] = REDIS
    valkey.restart()
    wait_until(lambda: client.ask("GET", "/readyz").body.startswith(b'{"status":"ok"'), 60)

    old = served.workers
    served.signal(signal.SIGHUP)
    wait_until(lambda: not set(served.workers) & set(old) and len(served.workers) == 2, 60)

    postgres.kill()
    for path in ("/admin/v1/rules", "/admin/v1/tokens", "/admin/v1/audit"):
        client.ask("GET", path)
    client.ask("POST", "/admin/v1/tokens", ADMIN, {"role": "check", "name": "x"})
    wait_until(lambda: b'"degraded"' in client.ask("GET", "/readyz").body, 60)
    assert client.ask("POST", "/v1/check", tokens[0], _asked()).status == 200
    # What does not work is told once, and why.
    wait_until(lambda: any("tokens cannot be looked at" in line for line in served.complained))


def _asked() -> dict[str, Any]:
    return {"attributes": {"path": "/login", "ip": "::1"}}


def _everything(client: Client, tokens: list[str]) -> None:
    """Ask for every path of the description, with every kind of token."""
    described = json.loads(client.ask("GET", "/openapi.json").body)
    client.ask("GET", "/docs")
    for path, methods in described["paths"].items():
        for method in methods:
            # What changes much, or does not end, is left to the tests of it.
            left_out = (("post", "/admin/v1/tokens"), ("get", "/admin/v1/live"))
            if method in ("parameters", "servers") or (method, path) in left_out:
                continue
            where = re.sub(r"{(\w+)}", r"\1", path.replace("{version}", "1"))
            for token in (*tokens, ADMIN, CHECK, WRONG, None):
                body = b"" if method == "get" else b"{}"
                client.ask(method.upper(), where, token, body)


def _bad_input(client: Client, created: str) -> None:
    """Put secrets where they do not belong."""
    for secret in (CHECK, WRONG, created):
        for scheme in ("Basic", "Token", "Bearer Bearer", "Bearer x,"):
            client.ask_with("POST", "/v1/check", f"Authorization: {scheme} {secret}")
            client.ask_with("GET", "/admin/v1/tokens", f"Authorization: {scheme} {secret}")
        client.ask_with("GET", "/admin/v1/tokens", f"X-Api-Key: {secret}")
        client.ask_with("GET", f"/admin/v1/tokens?token={secret}")
        client.ask_with("GET", f"/v1/usage?access_token={secret}&access_token={secret}")
        bodies: list[Any] = [{"attributes": {"user": [secret]}}, {"token": secret}]
        bodies.append({"receipt": secret})
        for path in ("/v1/check", "/v1/refund", "/v1/slots", "/admin/v1/tokens"):
            for body in bodies:
                client.ask("POST", path, ADMIN, body)
    client.ask("POST", "/v1/check", ADMIN, b"{")
    client.ask("POST", "/v1/check", ADMIN, b"x" * 1_100_000)
    client.ask("PUT", "/admin/v1/rules", ADMIN, {"rules": [{"name": "x", "limits": "lots"}]})
    client.garbage(b"\x00\xff\r\n\r\n")
    client.garbage(request("/v1/check", f"Authorization: Bearer {ADMIN}", f"X: {'x' * 20_000}"))
    client.garbage(request("/v1/check", f"Authorization: Bearer {ADMIN}", "Content-Length: x"))


def _hear_commands(ears: Ears, settings: dict[str, str], folder: Path) -> None:
    wrong = {
        "rules": "postgresql://limen:canary-redis-31f9c2@127.0.0.1:1/none",
        "data_dir": str(folder / "empty"),
    }
    broken = {
        "store__url": f"redis://:{REDIS}@{HOST}:no-port",
        "rules": f"postgresql://u:{REDIS}@:x",
        "auth__admin_token": "canary-few",
        "auth__check_token": f"{CHECK} \x7f",
        "auth__secret": "canary-less",
        "log__level": "loud",
    }
    ears.learn("a token that is too short", "canary-few")
    ears.learn("a signing secret that is too short", "canary-less")
    acts = [
        (settings, ["config", "show"]),
        (settings, ["config", "show", "--json"]),
        (settings, ["token", "list"]),
        (wrong, ["token", "list"]),
        (wrong, ["serve", "--bind", "127.0.0.1:0", "--grpc-bind", "", "--admin-bind", ""]),
        (broken, ["config", "show"]),
        (broken, ["serve", "--bind", "127.0.0.1:0", "--grpc-bind", "", "--admin-bind", ""]),
        (
            settings,
            [
                "serve",
                "--bind",
                "127.0.0.1:0",
                "--grpc-bind",
                "",
                "--admin-bind",
                "",
                "--store",
                f"redis://:{REDIS}@{HOST}:x",
            ],
        ),
    ]
    with ThreadPoolExecutor(4) as pool:
        all_done = list(pool.map(lambda act: _command(folder, *act), acts))
    for (said, words), done in zip(acts, all_done, strict=True):
        is_fine = said is settings and words[0] != "serve"
        assert (done.returncode == 0) == is_fine, done
        assert "Traceback" not in done.stderr
        ears.hear(f"limen {' '.join(words[:2])}", done.stdout + done.stderr)


def _command(
    folder: Path, said: dict[str, str], words: list[str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "limen", *words],
        env=environment(**said),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _hear_files(ears: Ears, folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"tokens.last-good.json"}
    for path in files:
        assert path.name not in ("admin-token", "secret"), "made, though the settings have one"
        ears.hear(f"the file {path.name}", path.read_text(errors="replace"))


def test_secrets_that_it_makes_by_itself_stay_in_their_files(tmp_path: Path) -> None:
    with product(tmp_path / "run", "--log-level", "debug") as served:
        wait_until(lambda: served.ask("/readyz").status == 200, 60)
        folder = tmp_path / "run" / ".limen"
        made = {name: (folder / name).read_text().strip() for name in ("admin-token", "secret")}
        token = f"Authorization: Bearer {made['admin-token']}"
        assert served.ask("/admin/v1/tokens", token).status == 200
        told = [_whole(served.ask(path, token)) for path in ("/admin/v1/audit", "/readyz", "/docs")]
        told.append(Path(f"/proc/{served.pid}/cmdline").read_text())
        served.signal(signal.SIGTERM)
        assert served.code() == 0
    told += [*served.said, *served.complained]
    for path in folder.rglob("*"):
        if path.name in made:
            assert path.stat().st_mode & 0o077 == 0
        elif path.is_file():
            told.append(path.read_bytes().decode("latin-1"))
    assert not [text for text in told for secret in made.values() if secret in text]


def test_no_repr_shows_a_secret(tmp_path: Path) -> None:
    settings = load(
        {
            "data_dir": str(tmp_path),
            "store.url": f"redis://:{REDIS}@{HOST}:1",
            "rules": f"postgresql://limen:{REDIS}@{HOST}:1/x?sslpassword={REDIS}",
            "auth.admin_token": ADMIN,
            "auth.check_token": CHECK,
            "auth.secret": SIGNS,
        },
        {},
    )
    service = Service(settings)
    data, control = DataPlane(service), control_plane(service)
    shown = [settings, settings.auth, settings.store, service, data, control]
    # Not strings: the part that opens a store needs its address.
    owners = (service, data, control.state, service.access)
    parts = [part for owner in owners for part in vars(owner).values()]
    shown += [part for part in parts if not isinstance(part, str)]
    ears = Ears()
    for each in shown:
        for text in (repr(each), str(each), f"{each}"):
            ears.hear(type(each).__name__, text)
    assert ears.find() == []


@pytest.mark.parametrize("lines", [TextLines(), JsonLines()])
def test_a_line_of_the_log_masks_what_others_put_in_it(lines: logging.Formatter) -> None:
    address = f"redis://joe:{REDIS}@{HOST}:1"
    try:
        raise ConnectionError(f"cannot reach {address}")
    except ConnectionError as error:
        about = (ConnectionError, error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "x", 1, "at %s", (address,), about)
    record.where = address
    line = lines.format(record)
    assert REDIS not in line
    assert line.count("redis://joe:***@") == 3


def test_the_repr_of_a_request_shows_no_secret() -> None:
    peer: Any = None
    headers = [(b"authorization", f"Bearer {CHECK}".encode())]
    one = HttpRequest("GET", b"/v1/slots/x", f"/v1/slots/{SIGNS}", b"", headers, peer)
    one.body = ADMIN.encode()
    assert repr(one) == "<Request : GET>"
    call = Call(None, None, f"Bearer {CHECK}", b"")
    assert repr(Stream(call, 0.0, 0)) == "<Stream: received 0 bytes>"
