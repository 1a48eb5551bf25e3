"""Finds the facts: connects, asks, tries. Judges nothing, and keeps passwords out of the facts.

Every step has a bound, and all of it has one: an answer comes within seconds, whatever is there.
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
from limen.doctor.facts import Facts, Node, Trouble, Watch
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
"""What a connection can fail with; the last is for host names that cannot be."""
_LIMITS: tuple[Limit | Concurrency, ...] = (
    *(Limit.parse(f"10/10s {name}") for name in ALGORITHMS),
    Concurrency(10, lease=10),
)


def collect(target: Target, namespace: str, role: Role = "library", processes: int = 1) -> Facts:
    """Find out all there is to know. What does not answer is a fact too: nothing is raised."""
    facts = _Visit(target, namespace, role).facts()
    # The service uses asyncio: one connection for each worker.
    most = processes * target.max_connections if role == "library" else 0
    return structs.replace(facts, max_connections=most)


class _Visit:
    """One visit to a store."""

    def __init__(self, target: Target, namespace: str, role: Role) -> None:
        self._target = target
        self._namespace = namespace
        self._channel = rules_channel(namespace)
        self._database = int(target.options.get("db", 0))
        self._commands = needed_commands(target.kind, self._database, role)
        self._ends = time.monotonic() + _TOTAL_S
        self._replies: dict[Address, object] = {}
        """What each node or sentinel that was asked for the way said, errors too."""
        self._owners: list[Address | None] = []
        """Who is to be visited; for a cluster, the owner of each slot."""
        self._troubles: list[Trouble] = []

    def facts(self) -> Facts:
        self._owners = self._locate()
        spare = self._spare_checks()
        nodes = [self._visit(address, checks) for address, checks in spare.items()]
        reached = [node for node in nodes if node is not None]
        if reached and all(consequence(node.refused) is not None for node in reached):
            # With half of the rights, a decision could leave a state that never ends.
            reached = self._decide(spare, reached)
        options = self._target.options
        return Facts(
            self._target.kind,
            self._target.shown,
            self._namespace,
            tuple(self._commands),
            options.get("username", "default"),
            "password" in options,
            tuple(reached),
            tuple(self._troubles),
            self._watch() if reached and self._target.kind == "sentinel" else None,
        )

    def _locate(self) -> list[Address | None]:
        target = self._target
        try:
            if target.kind == "cluster":
                return run(route.find_owners(self._ask_the_way, target.addresses))
            if target.kind == "sentinel":
                service = target.service
                return [run(route.find_primary(self._ask_the_way, target.addresses, service))]
        except Unfound:
            self._troubles.append(self._lost_way())
            return []
        return [target.addresses[0]]

    def _ask_the_way(self, address: Address, *command: str) -> object:
        reply: object
        try:
            with closing(
                self._open(address, sentinel=self._target.kind == "sentinel")
            ) as connection:
                reply = connection.ask(*command, seconds=self._soon().seconds)
        except _FAILURES as error:
            reply = error
        self._replies[address] = reply
        return reply

    def _lost_way(self) -> Trouble:
        """Return why nobody said where to go: what the last one said who was asked."""
        address, reply = list(self._replies.items())[-1]
        is_sentinel = self._target.kind == "sentinel"
        if isinstance(reply, Exception):
            return self._trouble(reply, show_address(address), sentinel=is_sentinel)
        where = show_address(address)
        if is_sentinel:
            text = f"the sentinel knows no service {self._target.service!r}"
            return Trouble(where, "service", text, sentinel=True)
        return Trouble(where, "cluster", "the node owns no slots, and knows nobody who does")

    def _spare_checks(self) -> dict[Address, tuple[Check, ...]]:
        """Return, for each server, checks of a key that nobody uses and that the server owns."""
        token = secrets.token_hex(6)
        packer = Packer(self._namespace, clustered=self._target.kind == "cluster")
        wanted = dict.fromkeys(owner for owner in self._owners if owner)
        found: dict[Address, tuple[Check, ...]] = {}
        for number in range(_MAX_DRAWS):
            if len(found) == len(wanted):
                break
            check = Check(_LIMITS[0], f"limen-doctor:{token}:{number}")
            owner = self._owners[packer.slot_of(check)]
            if owner and owner not in found:
                found[owner] = tuple([Check(limit, check.key) for limit in _LIMITS])
        return {address: found[address] for address in wanted if address in found}

    def _visit(self, address: Address, checks: tuple[Check, ...]) -> Node | None:
        where = show_address(address)
        try:
            with closing(self._open(address)) as connection:
                first = connection.ask("PING", seconds=self._soon().seconds)
                if isinstance(first, ServerError) and not str(first).startswith("NOPERM"):
                    raise first
                return self._question(connection, address, redis_key(self._namespace, checks[0]))
        except _FAILURES as error:
            self._troubles.append(self._trouble(error, where))
            return None

    def _question(self, connection: RedisConnection, address: Address, key: str) -> Node:
        questions: list[tuple[str, ...]] = [("INFO",)]
        questions += [("CONFIG", "GET", name) for name in _SETTINGS]
        if self._target.kind == "cluster":
            questions.append(("CLUSTER", "INFO"))
        # What a server keeps back is an error among the replies, and tells nothing.
        replies = self._ask_all(connection, questions)
        return Node(
            show_address(address),
            {name: value for reply in replies for name, value in _fields(reply)},
            self._refused(connection, address, key),
            self._ahead_s(connection),
            slots=self._owners.count(address),
            replicas=self._replicas().get(address, 0),
        )

    def _replicas(self) -> dict[Address, int]:
        """Return how many replicas each master has, from the reply that showed the way."""
        counts: dict[Address, int] = {}
        for asked, reply in self._replies.items():
            if self._target.kind == "cluster" and isinstance(reply, list):
                for _, _, primary, *rest in reply:
                    # A node that does not know its own name leaves it empty.
                    counts[_text(primary[0] or asked[0]), primary[1]] = len(rest)
        return counts

    def _refused(self, connection: RedisConnection, address: Address, key: str) -> dict[str, str]:
        """Return the commands that are needed and refused. Leaves nothing behind."""
        untold = {
            command: attempts(command, key, self._database, self._channel)
            for command in self._commands
            if command != "SUBSCRIBE"  # after it, a connection takes no other commands
        }
        refused: dict[str, str] = {}
        while untold:
            replies = self._ask_all(connection, [tries.pop(0) for tries in untold.values()])
            for command, reply in zip(list(untold), replies, strict=True):
                said = refusal(str(reply) if isinstance(reply, ServerError) else "")
                if said:
                    refused[command] = self._words(said)
                if said is not None or not untold[command]:
                    del untold[command]
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

    def _decide(self, spare: dict[Address, tuple[Check, ...]], nodes: list[Node]) -> list[Node]:
        """Let each node make real decisions, the way a limiter does, and measure them."""
        checks_at = {show_address(address): checks for address, checks in spare.items()}
        ends = time.monotonic() + _MEASURING_S
        share = max(_ROUND_TRIPS // len(nodes), 1)
        with closing(RedisBackend(self._target, self._namespace, _STEP_S)) as backend:
            decided: list[Node] = []
            for node in nodes:
                checks = checks_at[node.where]
                trouble = self._try_decision(backend, node.where, checks)
                times_ms = () if trouble else tuple(_measured(backend, checks[:1], share, ends))
                decided.append(
                    structs.replace(
                        node, decided=not trouble, undecided=trouble, round_trips_ms=times_ms
                    )
                )
            return decided

    def _try_decision(
        self, backend: RedisBackend, where: str, checks: tuple[Check, ...]
    ) -> Trouble | None:
        readings = backend.run(backend.prepare(checks, True, "limen-doctor"))
        removed = backend.change(Reset(checks))
        for answer in (readings, removed):
            if isinstance(answer, Fault):
                return Trouble(where, answer.kind, self._words(answer.message))
        if not isinstance(readings, Fault) and not all(reading[0] for reading in readings):
            return Trouble(where, "script", "a key that nobody used was refused")
        return None

    def _watch(self) -> Watch:
        """Ask every sentinel of the URL, those too that the way did not lead past."""
        target = self._target
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", target.service)
        for address in target.addresses:
            if address not in self._replies:
                self._ask_the_way(address, *question)
        named: dict[str, str] = {}
        silent: list[str] = []
        for address in target.addresses:
            reply = self._replies[address]
            if isinstance(reply, list):
                named[show_address(address)] = ":".join(map(_text, reply))
            else:
                silent.append(show_address(address))
        answering = [address for address in target.addresses if show_address(address) in named]
        known, quorum = self._ask_sentinel(answering[0]) if answering else (None, "")
        return Watch(named, tuple(silent), known, quorum)

    def _ask_sentinel(self, address: Address) -> tuple[int | None, str]:
        service = self._target.service
        try:
            with closing(self._open(address, sentinel=True)) as connection:
                master, quorum = self._ask_all(
                    connection, [("SENTINEL", "MASTER", service), ("SENTINEL", "CKQUORUM", service)]
                )
        except _FAILURES:
            return None, ""
        others = dict(_fields(master)).get("num-other-sentinels")
        reply = _text(quorum)
        return (
            None if others is None else int(others) + 1,
            reply if reply.startswith(("OK", "NOQUORUM")) else "",
        )

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

    def _trouble(self, error: Exception, where: str, *, sentinel: bool = False) -> Trouble:
        kind = fault_of(error, "").kind
        text = f"no answer within {_STEP_S} s" if kind == "timeout" else self._words(str(error))
        return Trouble(where, kind, text or type(error).__name__, sentinel)

    def _words(self, text: str) -> str:
        """Return one line of what was said. A server quotes what it does not understand: not that.

        Nor the address and the advice around it: the findings have their own.
        """
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
    """Yield the milliseconds of each round trip, until it has been enough or takes too long."""
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
