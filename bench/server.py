"""A real server to measure on, and what it says of itself. Knows nothing of limen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from tests.servers import HOST, binaries, server

from bench.harness import BenchError

# What this file itself asks, which is nobody's decision.
_OURS = ("config", "info")
_SCRIPTS = ("eval", "evalsha")
_STILL_S = 0.15
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Spent:
    """What a server did while something ran, by its own count (INFO commandstats)."""

    calls: int
    """How many scripts it ran."""
    commands: int
    """How many commands it ran besides: those inside scripts, and others."""
    script_us: int
    """Microseconds in scripts, their commands included."""
    each_us: dict[str, int]
    """Microseconds by command."""


def spent(stats: dict[str, dict[str, Any]]) -> Spent:
    """Read what INFO commandstats says."""
    found = {
        name.removeprefix("cmdstat_"): figures
        for name, figures in stats.items()
        if not name.removeprefix("cmdstat_").startswith(_OURS)
    }
    scripts = [figures for name, figures in found.items() if name in _SCRIPTS]
    return Spent(
        calls=sum(figures["calls"] for figures in scripts),
        commands=sum(figures["calls"] for name, figures in found.items() if name not in _SCRIPTS),
        script_us=sum(figures["usec"] for figures in scripts),
        each_us={name: figures["usec"] for name, figures in found.items()},
    )


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is there for the bench alone, and a client to ask it about itself."""

    port: int
    client: redis.Redis

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Its process."""
        found: Any = self.client.info("server")
        return int(found["process_id"])

    @property
    def name(self) -> str:
        """What it is, and which version."""
        found: Any = self.client.info("server")
        if "valkey_version" in found:
            return f"Valkey {found['valkey_version']}"
        return f"Redis {found['redis_version']}"

    def do(self, *words: str | bytes | int) -> Any:
        """Send a command as it stands."""
        return self.client.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py's

    def flush(self) -> None:
        """Forget every key, and be done with it when this returns."""
        self.do("FLUSHALL", "SYNC")

    def key_bytes(self) -> list[int]:
        """Return what each key costs: name, value and all, by MEMORY USAGE, nothing sampled."""
        return [self.do("MEMORY", "USAGE", key, "SAMPLES", 0) for key in self.client.keys("*")]

    def used_memory(self) -> int:
        """Return the bytes in use, when no other client is there and the figure stands still.

        A connection has buffers, and a table that has just grown is there twice for a moment.
        """
        ends = time.monotonic() + _PATIENCE_S
        before = -1
        while time.monotonic() < ends:
            found: Any = self.client.info()
            used = int(found["used_memory"])
            if found["connected_clients"] == 1 and abs(used - before) < 1_024:
                return used
            before = used
            time.sleep(_STILL_S)
        raise BenchError("the server's used_memory does not stand still")

    def watch(self, work: Callable[[], object]) -> Spent:
        """Run something; return what it cost the server."""
        self.client.config_resetstat()
        work()
        stats: Any = self.client.info("commandstats")
        return spent(stats)


@contextmanager
def started() -> Iterator[Server]:
    """Start a server; end it afterwards. DEBUG is allowed, to keep expired keys where they are."""
    with server(binaries()["valkey"], "--enable-debug-command", "local") as port:
        client = redis.Redis(host=HOST, port=port)
        try:
            yield Server(port, client)
        finally:
            client.close()
