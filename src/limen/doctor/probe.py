"""Collects facts about a store: connects, asks and tries. The report shows no passwords.

Every step has a timeout, and so has the whole. So there is a result within seconds in any case.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import closing

from msgspec import structs
from redis.exceptions import RedisError

from limen._internal.deadline import Deadline
from limen.backends import Fault, Reset
from limen.backends.redis import route
from limen.backends.redis.batch import Packer
from limen.backends.redis.exchange import RedisConnection
from limen.backends.redis.protocol import ServerError, Unfound, fault_of, pack_command
from limen.backends.redis.sync import RedisBackend
from limen.connect import Address, Target, open_socket
from limen.connect.address import show_address
from limen.doctor.facts import Facts, Node, SentinelView, ServerProblem
from limen.doctor.rights import Role, attempts, consequence, needed_commands, refusal
from limen.flow import run
from limen.keys import redis_key, rules_channel
from limen.model import ALGORITHMS, Check, Concurrency, Limit

_STEP_S = 1.5
_TOTAL_S = 5.0
_ROUND_TRIPS = 50
_MEASURING_S = 2.0
_MAX_DRAWS = 200_000
_SETTINGS = (
    "appendonly",
    "cluster-require-full-coverage",
    "maxmemory",
    "maxmemory-policy",
    "min-replicas-to-write",
    "save",
)
_FAILURES = (OSError, RedisError, ServerError, UnicodeError)
"""The errors of connections; `UnicodeError` is for invalid host names."""
_LIMITS: tuple[Limit | Concurrency, ...] = (
    *(Limit.parse(f"10/10s {name}") for name in ALGORITHMS),
    Concurrency(10, lease=10),
)


def collect(target: Target, namespace: str, role: Role = "library", processes: int = 1) -> Facts:
    """Return the facts. A server that does not answer is a fact too: nothing is raised."""
    return _Probe(target, namespace, role).facts(processes)


class _Probe:
    """The examination of one store."""

    def __init__(self, target: Target, namespace: str, role: Role) -> None:
        self._target = target
        self._namespace = namespace
        self._role = role
        self._channel = rules_channel(namespace)
        self._database = int(target.options.get("db", 0))
        self._commands = needed_commands(target.kind, self._database, role)
        self._ends = time.monotonic() + _TOTAL_S
        self._replies: dict[Address, object] = {}
        """The replies and errors of the nodes or sentinels that were asked for the servers."""
        self._owners: list[Address | None] = []
        """The servers; for a cluster, the owner of each slot."""
        self._problems: list[ServerProblem] = []

    def facts(self, processes: int) -> Facts:
        target = self._target
        self._owners = self._locate()
        checks = self._unused_checks()
        nodes = [node for address in checks if (node := self._examine(address, checks[address]))]
        if nodes and all(consequence(node.refused) is not None for node in nodes):
            # With half of the rights, a decision could leave a state that never ends.
            nodes = self._decide(checks, nodes)
        has_sentinels = bool(nodes) and target.kind == "sentinel"
        return Facts(
            target,
            self._namespace,
            tuple(self._commands),
            tuple(nodes),
            tuple(self._problems),
            self._sentinels() if has_sentinels else None,
            # The service uses asyncio: one connection for each worker.
            processes * target.max_connections if self._role == "library" else 0,
        )

    def _locate(self) -> list[Address | None]:
        target = self._target
        try:
            if target.kind == "cluster":
                return run(route.find_owners(self._ask_about, target.addresses))
            if target.kind == "sentinel":
                return [run(route.find_primary(self._ask_about, target.addresses, target.service))]
        except Unfound as error:
            self._problems.append(self._unfound(error.last))
            return []
        return [target.addresses[0]]

    def _ask_about(self, address: Address, *command: str) -> object:
        is_sentinel = self._target.kind == "sentinel"
        try:
            with closing(self._open(address, sentinel=is_sentinel)) as connection:
                reply = connection.ask(*command, seconds=self._soon().seconds)
        except _FAILURES as error:
            reply = error
        self._replies[address] = reply
        return reply

    def _unfound(self, reply: object) -> ServerProblem:
        """Return the problem of the last node or sentinel that was asked."""
        where, is_sentinel = show_address(list(self._replies)[-1]), self._target.kind == "sentinel"
        if isinstance(reply, Exception):
            return self._problem(reply, where, sentinel=is_sentinel)
        if is_sentinel:
            text = f"the sentinel knows no service {self._target.service!r}"
            return ServerProblem(where, "service", text, sentinel=True)
        return ServerProblem(where, "cluster", "the node owns no slots, and knows nobody who does")

    def _unused_checks(self) -> dict[Address, tuple[Check, ...]]:
        """Return, for each server, checks of an unused key that the server owns."""
        token = secrets.token_hex(6)
        packer = Packer(self._namespace, clustered=self._target.kind == "cluster")
        servers = dict.fromkeys(owner for owner in self._owners if owner)
        checks: dict[Address, tuple[Check, ...]] = {}
        for number in range(_MAX_DRAWS):
            if len(checks) == len(servers):
                break
            key = f"limen-doctor:{token}:{number}"
            owner = self._owners[packer.slot_of(Check(_LIMITS[0], key))]
            if owner and owner not in checks:
                checks[owner] = tuple([Check(limit, key) for limit in _LIMITS])
        return {address: checks[address] for address in servers if address in checks}

    def _examine(self, address: Address, checks: tuple[Check, ...]) -> Node | None:
        where, key = show_address(address), redis_key(self._namespace, checks[0])
        questions: list[tuple[str, ...]] = [("INFO",)]
        questions += [("CONFIG", "GET", name) for name in _SETTINGS]
        if self._target.kind == "cluster":
            questions.append(("CLUSTER", "INFO"))
        try:
            with closing(self._open(address)) as connection:
                first = connection.ask("PING", seconds=self._soon().seconds)
                if isinstance(first, ServerError) and not str(first).startswith("NOPERM"):
                    raise first
                # A server without these rights replies with errors, which have no fields.
                replies = self._ask_all(connection, questions)
                return Node(
                    where,
                    {name: value for reply in replies for name, value in _fields(reply)},
                    self._refused(connection, address, key),
                    self._ahead_s(connection),
                    slots=self._owners.count(address),
                    replicas=self._replicas().get(address, 0),
                )
        except _FAILURES as error:
            self._problems.append(self._problem(error, where))
            return None

    def _replicas(self) -> dict[Address, int]:
        """Return the number of replicas of each master, from the reply to CLUSTER SLOTS."""
        counts: dict[Address, int] = {}
        for asked, reply in self._replies.items():
            if self._target.kind == "cluster" and isinstance(reply, list):
                for _, _, primary, *rest in reply:
                    # A node that does not know its own name leaves it empty.
                    counts[_text(primary[0] or asked[0]), primary[1]] = len(rest)
        return counts

    def _refused(self, connection: RedisConnection, address: Address, key: str) -> dict[str, str]:
        """Return the needed commands that are refused, and the errors. Leaves no key."""
        pending = {
            command: attempts(command, key, self._database, self._channel)
            for command in self._commands
            if command != "SUBSCRIBE"  # after it, a connection takes no other commands
        }
        refused: dict[str, str] = {}
        while pending:
            replies = self._ask_all(connection, [tries.pop(0) for tries in pending.values()])
            for command, reply in zip(list(pending), replies, strict=True):
                error = refusal(str(reply) if isinstance(reply, ServerError) else "")
                if error:
                    refused[command] = self._words(error)
                if error is not None or not pending[command]:
                    del pending[command]
        self._ask_all(connection, [("DEL", key)])
        if "SUBSCRIBE" in self._commands:
            with closing(self._open(address)) as listener:
                reply = listener.ask("SUBSCRIBE", self._channel, seconds=self._soon().seconds)
            if isinstance(reply, ServerError) and refusal(str(reply)):
                refused["SUBSCRIBE"] = self._words(str(reply))
        if not refused.keys().isdisjoint({"EVAL", "SET"}):
            refused.pop("LPUSH", None)  # it is tried by way of these
        return {command: refused[command] for command in self._commands if command in refused}

    def _ahead_s(self, connection: RedisConnection) -> float | None:
        asked_at = time.time()
        reply = connection.ask("TIME", seconds=self._soon().seconds)
        if not isinstance(reply, list):
            return None
        return int(reply[0]) + int(reply[1]) / 1e6 - (asked_at + time.time()) / 2

    def _decide(self, checks: dict[Address, tuple[Check, ...]], nodes: list[Node]) -> list[Node]:
        """Let each node make real decisions, as a limiter does, and measure them."""
        checks_at = {show_address(address): of_node for address, of_node in checks.items()}
        ends = time.monotonic() + _MEASURING_S
        count = max(_ROUND_TRIPS // len(nodes), 1)
        decided: list[Node] = []
        with closing(RedisBackend(self._target, self._namespace, _STEP_S)) as backend:
            for node in nodes:
                of_node = checks_at[node.where]
                problem = self._try_decision(backend, node.where, of_node)
                times_ms = () if problem else tuple(_measured(backend, of_node[:1], count, ends))
                decided.append(
                    structs.replace(
                        node, decided=not problem, undecided=problem, round_trips_ms=times_ms
                    )
                )
        return decided

    def _try_decision(
        self, backend: RedisBackend, where: str, checks: tuple[Check, ...]
    ) -> ServerProblem | None:
        readings = backend.run(backend.prepare(checks, True, "limen-doctor"))
        removed = backend.change(Reset(checks))
        for answer in (readings, removed):
            if isinstance(answer, Fault):
                return ServerProblem(where, answer.kind, self._words(answer.message))
        if not isinstance(readings, Fault) and not all(reading[0] for reading in readings):
            return ServerProblem(where, "script", "a key that nobody used was refused")
        return None

    def _sentinels(self) -> SentinelView:
        """Ask every sentinel of the URL."""
        service = self._target.service
        primaries: dict[str, str] = {}
        silent: list[str] = []
        known: int | None = None
        quorum = ""
        commands = [
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service),
            ("SENTINEL", "MASTER", service),
            ("SENTINEL", "CKQUORUM", service),
        ]
        for address in self._target.addresses:
            try:
                with closing(self._open(address, sentinel=True)) as connection:
                    primary, master, usable = self._ask_all(connection, commands)
            except _FAILURES as error:
                primary = master = usable = error
            if not isinstance(primary, list):
                silent.append(show_address(address))
                continue
            if not primaries:
                others = dict(_fields(master)).get("num-other-sentinels")
                known = None if others is None else int(others) + 1
                quorum = _text(usable) if _text(usable).startswith(("OK", "NOQUORUM")) else ""
            primaries[show_address(address)] = ":".join(map(_text, primary))
        return SentinelView(primaries, tuple(silent), known, quorum)

    def _open(self, address: Address, *, sentinel: bool = False) -> RedisConnection:
        patience_s = max(self._soon().left(), 0.05)
        return RedisConnection(open_socket(self._target, address, patience_s, sentinel=sentinel))

    def _soon(self) -> Deadline:
        return Deadline(max(min(_STEP_S, self._ends - time.monotonic()), 0.0))

    def _ask_all(
        self, connection: RedisConnection, commands: Sequence[tuple[str, ...]]
    ) -> list[object]:
        deadline = self._soon()
        connection.send(b"".join(map(pack_command, commands)), deadline)
        return [connection.receive(deadline) for _ in commands]

    def _problem(self, error: Exception, where: str, *, sentinel: bool = False) -> ServerProblem:
        kind = fault_of(error, "").kind
        text = f"no answer within {_STEP_S} s" if kind == "timeout" else self._words(str(error))
        return ServerProblem(where, kind, text or type(error).__name__, sentinel)

    def _words(self, text: str) -> str:
        """Return one line of an error, without quoted arguments, address and passwords."""
        line = text.strip().partition("\n")[0].partition(", with args")[0]
        line = line.removeprefix(f"{self._target.shown}: ")
        line = re.sub(r"^Error -?\d+ connecting to \S+\. ", "", line)
        for options in (self._target.options, self._target.sentinel_options):
            password = options.get("password")
            line = line.replace(password, "***") if password else line
        return line.removesuffix(".")


def _measured(
    backend: RedisBackend, checks: tuple[Check, ...], count: int, ends: float
) -> Iterator[float]:
    """Yield the duration of each round trip in milliseconds, until `ends` at most."""
    prepared = backend.prepare(checks, False)
    for _ in range(count):
        before = time.perf_counter()
        answer = backend.run(prepared)
        if isinstance(answer, Fault) or time.monotonic() > ends:
            return
        yield (time.perf_counter() - before) * 1_000


def _fields(reply: object) -> Iterator[tuple[str, str]]:
    """Read `name:value` lines, or a list of names and values."""
    if isinstance(reply, list):
        words = [_text(word) for word in reply]
        yield from zip(words[::2], words[1::2], strict=False)
    elif isinstance(reply, bytes):
        for line in reply.decode("utf-8", "replace").splitlines():
            name, colon, value = line.partition(":")
            if colon and not name.startswith("#"):
                yield name, value


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
