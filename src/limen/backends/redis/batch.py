"""How requests become calls of the script, and replies become answers. Pure: no I/O.

What waits at the same moment travels together: one call of the script for all of it, or, in a
cluster, one for each slot, because a script may not touch two. Each request gets its own answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct, structs
from redis.crc import key_slot

from limen.backends import Change, Fault, Prepared
from limen.backends.redis import script
from limen.backends.redis.protocol import ServerError, fault_of, pack_command
from limen.connect import Address
from limen.flow import Flow
from limen.keys import redis_key
from limen.model import Check

MAX_REQUESTS = 128
MAX_KEYS = 512
_TRY_AGAIN_S = 0.005


class Request(Struct, frozen=True, gc=False):
    """What the script is asked to do, for one caller, in one slot."""

    keys: list[str]
    packed: bytes
    answer_bytes: int
    """How long an answer to it is."""
    slot: int
    """Where its keys are; always 0 outside a cluster."""
    address: Address | None = None
    """Whom to ask instead of the slot's owner."""
    asking: bool = False
    """Whether the slot is on its way to that node, which has to be told so."""
    in_full: bool = False
    """Whether the script goes along, because the server does not know it."""


class Again(Struct, frozen=True):
    """Says that nothing was done, and how to ask once more."""

    address: Address | None = None
    asking: bool = False
    in_full: bool = False
    pause_s: float = 0.0
    fresh: bool = False
    """Whether the connection led to the wrong server."""

    def redirect(self, request: Request) -> Request:
        """Return what to ask now. Who does not know the script is asked again, and not another."""
        address, asking = self.address, self.asking
        if self.in_full:
            address, asking = request.address, request.asking
        in_full = self.in_full or (request.in_full and address is not None)
        return structs.replace(request, address=address, asking=asking, in_full=in_full)


Answer = bytes | Fault | Again
"""What the script replied to one request; or why it did not; or how to ask again."""


class HasRequest(Protocol):
    """Somebody who waits for the answer to a request."""

    request: Request


Waiter = TypeVar("Waiter", bound=HasRequest)


class Call(Struct, Generic[Waiter]):
    """One call of the script, for some who wait."""

    waiters: list[Waiter]
    asks_first: bool = False
    """Whether a reply to ASKING comes before the one that counts."""
    keys: int = 0
    sent_at: float = 0.0
    ends_packet: bool = False
    """Whether it is the last of those that were sent together."""

    def encode(self) -> bytes:
        """Return the command as it is sent, behind ASKING where that is needed."""
        first = self.waiters[0].request
        keys, packed = first.keys, [first.packed]
        if len(self.waiters) > 1:
            keys = [key for waiter in self.waiters for key in waiter.request.keys]
            packed = [waiter.request.packed for waiter in self.waiters]
        name, what = ("EVAL", script.text()) if first.in_full else ("EVALSHA", _sha())
        command = pack_command((name, what, str(len(keys)), *keys, *packed))
        return pack_command(("ASKING",)) + command if first.asking else command

    def answers(self, reply: object, where: str) -> Iterable[tuple[Waiter, Answer]]:
        """Return what each waiter is to be told."""
        if len(self.waiters) == 1:
            return [(self.waiters[0], _answer(self.waiters[0].request, reply, where))]
        if isinstance(reply, list) and len(reply) == len(self.waiters):
            # Nearly all are answers: those are not looked at twice.
            return [
                (waiter, each)
                if type(each) is bytes and len(each) == waiter.request.answer_bytes and each[0] == 1
                else (waiter, _answer(waiter.request, each, where))
                for waiter, each in zip(self.waiters, reply, strict=True)
            ]
        answer = _not_done(reply, where)
        return [(waiter, answer) for waiter in self.waiters]


def calls_of(waiters: Sequence[Waiter]) -> list[Call[Waiter]]:
    """Put those who can share a call into one."""
    slot, keys = waiters[0].request.slot, 0
    for waiter in waiters:
        request = waiter.request
        if request.slot != slot or request.asking or request.in_full:
            break
        keys += len(request.keys)
    else:
        # As it nearly always is, but in a cluster.
        if keys <= MAX_KEYS:
            return [Call(list(waiters), False, keys)]
    calls: list[Call[Waiter]] = []
    open_calls: dict[tuple[int, bool, bool], Call[Waiter]] = {}
    for waiter in waiters:
        request = waiter.request
        kind = (request.slot, request.asking, request.in_full)
        call = open_calls.get(kind)
        if call is None or call.keys + len(request.keys) > MAX_KEYS:
            call = open_calls[kind] = Call([], request.asking)
            calls.append(call)
        call.waiters.append(waiter)
        call.keys += len(request.keys)
    return calls


def greet(ask: Callable[..., Any], *, must_lead: bool, is_new: bool) -> Flow[str]:
    """Prepare a server after connecting to it; `ask` sends a command. See `limen.flow`.

    It is given the script, if it does not have it. A server that forbids that is left alone: the
    script then goes along with the first call. With `must_lead`, a replica is refused: a sentinel
    may not know yet that it is one. Of one that `is_new`, return what to warn of; it may be empty.
    """
    if must_lead:
        role = yield ask("ROLE")
        if isinstance(role, list) and role[0] != b"master":
            raise ServerError("READONLY it is not the primary any more")
    reply = yield ask("SCRIPT", "EXISTS", _sha())
    if isinstance(reply, list) and not reply[0]:
        reply = yield ask("SCRIPT", "LOAD", script.text())
    if isinstance(reply, ServerError) and not str(reply).startswith("NOPERM"):
        raise reply
    return _warning((yield ask("INFO", "memory"))) if is_new else ""


def _warning(info: object) -> str:
    """Say that a server throws limits away when it is full; of what it does not tell, nothing."""
    if not isinstance(info, bytes):
        return ""
    told = dict(line.partition(":")[::2] for line in info.decode("utf-8", "replace").splitlines())
    policy = told.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or told.get("maxmemory", "0") == "0":
        return ""
    return (
        f"with maxmemory-policy {policy} it forgets limits when it is full, and so hands them out "
        "anew (give limits a server of their own, or CONFIG SET maxmemory-policy noeviction)"
    )


@cache
def _sha() -> str:
    return hashlib.sha1(script.text().encode(), usedforsecurity=False).hexdigest()


class Packer:
    """Turns checks and changes into requests."""

    def __init__(self, namespace: str, *, clustered: bool) -> None:
        self._namespace = namespace
        self._clustered = clustered

    def prepare(self, checks: tuple[Check, ...], charge: bool, holder: str) -> Prepared:
        """Encode checks; without a request where they are in several slots of a cluster."""
        request = self.checks(checks, charge, holder) if self.is_together(checks) else None
        return Prepared(checks, charge, holder, request)

    def checks(self, checks: Sequence[Check], charge: bool, holder: str) -> Request:
        """Return the request that decides checks which are all in one slot."""
        keys, packed = script.pack_checks(self._namespace, checks, charge, holder)
        return Request(keys, packed, script.answer_bytes(len(checks)), self._slot(keys[0]))

    def change(self, change: Change) -> Request:
        """Return the request that carries out a change in one slot."""
        keys, packed = script.pack_change(self._namespace, change)
        return Request(keys, packed, script.CHANGE_BYTES, self._slot(keys[0]))

    def slot_of(self, check: Check) -> int:
        """Return where a check's state is."""
        return self._slot(redis_key(self._namespace, check)) if self._clustered else 0

    def is_together(self, checks: Sequence[Check]) -> bool:
        """Return whether one call can decide all of these."""
        if not self._clustered or len(checks) == 1:
            return True
        subjects = {check.subject or check.key for check in checks}
        return len(subjects) == 1 or len({self.slot_of(check) for check in checks}) == 1

    def _slot(self, key: str) -> int:
        return key_slot(key.encode()) if self._clustered else 0


def is_suspicious(answer: Answer | None) -> bool:
    """Return whether the connection that brought an answer is not to be used again."""
    if isinstance(answer, Again):
        return answer.fresh
    return isinstance(answer, Fault) and answer.kind == "protocol"


def _answer(request: Request, reply: object, where: str) -> Answer:
    if isinstance(reply, bytes) and len(reply) == request.answer_bytes and reply[0] == 1:
        return reply
    if (
        isinstance(reply, list)
        and len(reply) == 2
        and reply[0] == 0
        and isinstance(reply[1], bytes)
    ):
        message = reply[1].decode("utf-8", "replace")
        # A replica lets a script begin, and refuses its first write: nothing was done.
        return Again(fresh=True) if "READONLY" in message else fault_of(message, where)
    return _not_done(reply, where)


def _not_done(reply: object, where: str) -> Fault | Again:
    if not isinstance(reply, ServerError):
        advice = "is somebody else's proxy in between?"
        return Fault("protocol", f"{where}: the reply is none of our script", advice)
    word, _, rest = str(reply).partition(" ")
    if word == "NOSCRIPT":
        return Again(in_full=True)
    if word in ("MOVED", "ASK"):
        host, _, port = rest.partition(" ")[2].rpartition(":")
        if port.isdigit():
            # Without a host it is that of the node that says so.
            return Again((host, int(port)), asking=word == "ASK")
    if word == "TRYAGAIN":
        return Again(pause_s=_TRY_AGAIN_S)
    if word == "READONLY":
        return Again(fresh=True)
    return fault_of(reply, where)
