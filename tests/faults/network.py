"""Hosts on a network of their own, which can be cut from each other: namespaces around a router.

    with hosts("app", "one", "two") as network:
        with network.inside("one"), servers.process(valkey, "--bind", "*") as server: ...
        with network.inside("app"): Limiter(f"redis://{network.address('one')}:{server.port}")
        network.part({"app", "one"}, {"two"})
        network.heal()

`inside` is for the calling thread, and for what it starts there: sockets, threads and processes
are on that host for ever. So everything that works on loopback works here too, workers and servers
alike, with other addresses; each host has a loopback of its own. A server is reached from outside
the hosts by nobody, so who administers it does so inside, or by a unix socket.

What is lost is lost without a word, as on a cable: the router forwards nothing, and nobody is told.
Knows nothing of servers. Needs root and `ip`; where they are not, the test is skipped and says so;
in CI, where the environment has CI, it fails instead.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.faults.clocks import lacking

_CLONE_NEWNET = 0x4000_0000
_NAMES = Path("/run/netns")
_SERIAL = itertools.count()


class Network:
    """The hosts and what is between them; each change is in force when its call returns."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._prefix = f"limen-{os.getpid()}-{next(_SERIAL)}"
        self._router = f"{self._prefix}.router"
        self._lost: set[tuple[str, str]] = set()
        self._unplugged: set[str] = set()
        self._started: list[subprocess.Popen[bytes]] = []

    def address(self, name: str) -> str:
        """Return the host's address; from a range that is kept for tests of networks."""
        return f"198.18.{self.names.index(name)}.2"

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Be on a host, with this thread and with the threads and processes that it starts."""
        outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(_NAMES / self._namespace(name))
            try:
                yield
            finally:
                _enter(outside)
        finally:
            os.close(outside)

    def run(self, name: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process on a host; it is killed with the network, if it still runs then."""
        with self.inside(name):
            process: subprocess.Popen[bytes] = subprocess.Popen(command, **options)
        self._started.append(process)
        return process

    def lose(self, source: str, target: str) -> None:
        """Lose what `source` sends to `target`; what comes back still arrives."""
        if (source, target) not in self._lost:
            self._lost.add((source, target))
            self._rule("add", source, target)

    def part(self, *groups: Collection[str]) -> None:
        """Lose all between hosts of different groups; who is in none of them hears all."""
        for group, other in itertools.permutations(groups, 2):
            for source, target in itertools.product(group, other):
                self.lose(source, target)

    def unplug(self, name: str) -> None:
        """Pull the cable of a host: its link is down, until `heal`."""
        self._unplugged.add(name)
        _ip("-n", self._router, "link", "set", "dev", name, "down")

    def heal(self) -> None:
        """Mend all that was cut."""
        for source, target in self._lost:
            self._rule("del", source, target)
        self._lost.clear()
        for name in self._unplugged:
            _ip("-n", self._router, "link", "set", "dev", name, "up")
        self._unplugged.clear()

    def _rule(self, verb: str, source: str, target: str) -> None:
        way = ("from", self.address(source), "to", self.address(target))
        _ip("-n", self._router, "rule", verb, *way, "blackhole")

    def _namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _build(self) -> None:
        try:
            _ip("netns", "add", self._router)
        except Unable as error:
            lacking(f"no network namespaces here: {error}")
        # Where a link is down nobody is told that the host is unreachable.
        _ip("-n", self._router, "route", "add", "blackhole", "198.18.0.0/16")
        for name in self.names:
            host, gateway = self._namespace(name), self.address(name)[:-1] + "1"
            _ip("netns", "add", host)
            pair = ("type", "veth", "peer", "name", "eth0", "netns", host)
            _ip("-n", self._router, "link", "add", "name", name, *pair)
            _ip("-n", self._router, "address", "add", f"{gateway}/24", "dev", name)
            _ip("-n", self._router, "link", "set", "dev", name, "up")
            _ip("-n", host, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            _ip("-n", host, "link", "set", "lo", "up")
            _ip("-n", host, "link", "set", "eth0", "up")
            _ip("-n", host, "route", "add", "default", "via", gateway)
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        _run("ip", "netns", "exec", self._router, "sh", "-c", forward)

    def _remove(self) -> None:
        for process in self._started:
            process.kill()
            process.wait(10)
        # Whoever was started inside and still lives keeps its namespace, but no link to the others.
        for name in self.names:
            with suppress(Unable):
                _ip("-n", self._router, "link", "delete", "dev", name)
        for namespace in [self._router, *map(self._namespace, self.names)]:
            with suppress(Unable):
                _ip("netns", "delete", namespace)


class Unable(Exception):
    """`ip` did not do as it was told; says what."""


@contextmanager
def hosts(*names: str) -> Iterator[Network]:
    """Make hosts of these names, of 15 letters at most; remove them at the end, in any case."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        lacking("network namespaces need root and the `ip` of iproute2")
    network = Network(names)
    try:
        network._build()
        yield network
    finally:
        network._remove()


def _enter(namespace: Path | int) -> None:
    """Move this thread, and no other, to a namespace."""
    opened = os.open(namespace, os.O_RDONLY) if isinstance(namespace, Path) else namespace
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(opened, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        if opened != namespace:
            os.close(opened)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unable(f"{' '.join(command)}: {done.stderr.strip()}")
