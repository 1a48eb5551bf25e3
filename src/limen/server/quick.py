"""The short way of `POST /v1/check`: a request with a head that is known, looked up and not read.

A client sends the same head again and again. What was read once, and found to be as usual, means
the same the next time: its bytes are remembered, all but the ids that change with each request. All
else goes the long way, through the parser and the app, which is also how a head comes to be known;
so nothing is allowed here that is not there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from limen.rules.stores.tokens import digest_of
from limen.server.access import Access, may_ask, token_of
from limen.server.decisions import Decisions
from limen.server.exchange import GIVEN_ID, Headers, Scope, Tell, mistake
from limen.server.memo import Memo
from limen.server.questions import Asking

_BEGIN = b"POST /v1/check HTTP/1.1\r\n"
_ROOM = 8_000_000
"""For heads, in bytes."""
_END = b"\r\n\r\n"
_UNUSUAL = frozenset(
    {b"origin", b"expect", b"connection", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
"""What makes a request more than a question and its answer."""
_SAYS_NOTHING = (b"connection", b"keep-alive")
"""What many clients add, and HTTP/1.1 takes for granted."""
_CHANGING = re.compile(
    rb"(\r\n(?i:x-(?:request-id|correlation-id|trace-id|b3-(?:trace|span|parentspan)id"
    rb"|amzn-trace-id|cloud-trace-context|datadog-(?:trace-id|parent-id|tags))"
    rb"|trace(?:parent|state)|request-id|baggage|b3|uber-trace-id|sentry-trace"
    rb"|elastic-apm-traceparent|newrelic): )([!-~]+(?: [!-~]+)*)(?=\r\n)"
)
"""A header that is another one with each request: its name, and a value that no parser stumbles at.

All but the id are read by nobody here.
"""
_ID, _ID_LINE = b"x-request-id", b"\r\nx-request-id: "
_LENGTH = re.compile(rb"[1-9][0-9]{0,8}")
_MOST_SEEN = 4_096


class _Head(Struct, frozen=True, gc=False):
    length: int
    """How long the body is."""
    token: str | None
    """The digest of the token that was sent along; None without one."""
    id_at: int
    """Which of its values that change is the id of the request; -1 when there is none."""


class Quick:
    """Answers what is asked as it was asked before."""

    def __init__(
        self,
        decisions: Decisions,
        access: Access,
        new_id: Callable[[], str],
        has_rules: Callable[[], bool],
        *,
        is_open: bool,
        max_body: int,
        max_header: int,
    ) -> None:
        self._decisions = decisions
        self._access = access
        self._new_id = new_id
        self._has_rules = has_rules
        self._is_open = is_open
        self._max_body = max_body
        self._max_header = max_header
        self._heads: Memo[_Head] = Memo(_ROOM)
        self._seen: set[int] = set()
        """The hashes of heads that came once."""
        self._start = 0.0
        self._head: _Head | None = None
        self._id: str | None = None
        """What was read last."""

    def learn(self, packet: bytes, scope: Scope, *, is_whole: bool) -> None:
        """Remember the head of a request that came whole, or all of it but its body; if as usual.

        At the second time: many a client says something else with each request. Nothing is
        remembered before rules are loaded, so all goes the long way, which refuses then.
        """
        if not packet.startswith(_BEGIN) or not self._has_rules():
            return
        end = packet.find(_END) + len(_END)
        lasting, changing = _parted(packet[:end])
        if self._heads.get(lasting, self) is not None:
            return
        if hash(lasting) not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen.add(hash(lasting))
            return
        headers: Headers = scope["headers"]
        length = _length(headers)
        if length is None or length > self._max_body:
            return
        # Nothing else can have been in the packet: no other request, no part of a head or a body.
        if len(packet) != (end + length if is_whole else end):
            return
        if any(each[0] in _UNUSUAL and each != _SAYS_NOTHING for each in headers):
            return
        lines = [line.lower() for line in lasting[1::2]] if isinstance(lasting, tuple) else []
        ids = [value for line, value in zip(lines, changing, strict=True) if line == _ID_LINE]
        if len(ids) > 1 or ids != [value for name, value in headers if name == _ID]:
            return
        sent, token = [value for name, value in headers if name == b"authorization"], None
        if len(sent) > 1:
            return
        if sent:
            token = digest_of(token_of(sent[0].decode("latin-1")))
        if self._is_open if token is None else may_ask(self._access.known(token)):
            id_at = lines.index(_ID_LINE) if ids else -1
            pieces = lasting if isinstance(lasting, tuple) else (lasting,)
            size = 400 + sum([60 + len(piece) for piece in pieces])
            self._heads.keep(lasting, _Head(length, token, id_at), size)

    def read(self, packet: bytes) -> Asking | None:
        """Return what is asked; None for what has to go the long way. Charges nobody."""
        self._start = time.perf_counter()
        self._head = self._id = None
        if not packet.startswith(_BEGIN):
            return None
        end = packet.find(_END) + len(_END)
        head = self._head = self._known(packet[:end])
        if head is None or len(packet) != end + head.length:
            return None
        if head.token is not None and not may_ask(self._access.known(head.token)):
            return None
        body = packet[end:]
        if body[:1] != b"{":
            return None
        try:
            asking = self._decisions.questions.one(body)
        except Exception:  # which the long way comes upon too, and tells of
            return None
        return None if asking.asked is None else asking

    def awaits(self, packet: bytes) -> bool:
        """Return whether what was read last is a head that is known, and its body yet to come."""
        return self._head is not None and packet.find(_END) + len(_END) == len(packet)

    def answer(self, asking: Asking, tell: Tell) -> Coroutine[Any, Any, None] | None:
        """Decide what was read last, and tell what is sent: status, headers and body.

        Return what is left to run where that takes a task of its own.
        """
        id_, start = self._id or self._new_id(), self._start
        try:
            if self._decisions.answer_soon(asking, id_, start, tell):
                return None
        except Exception:
            tell(*mistake(id_).sent(id_))
            return None
        return self._answer(asking, id_, start, tell)

    async def _answer(self, asking: Asking, id_: str, start: float, tell: Tell) -> None:
        try:
            reply = await self._decisions.answer(asking, id_, start)
        except Exception:
            reply = mistake(id_)
        tell(*reply.sent(id_))

    def _known(self, head: bytes) -> _Head | None:
        """Return what a head means, if it is known; keep the id that the client gave along."""
        found = self._heads.get(head, self)
        if found is not None or len(head) > self._max_header:
            return found
        lasting, changing = _parted(head)
        found = self._heads.get(lasting, self) if changing else None
        if found is not None and found.id_at >= 0:
            given = changing[found.id_at]
            if not GIVEN_ID.fullmatch(given):
                return None
            self._id = given.decode("ascii")
        return found


def _parted(head: bytes) -> tuple[bytes | tuple[bytes, ...], list[bytes]]:
    """Return what stays of a head from one request to the next, and the values that change.

    No head as it was sent equals one of which a value was taken out.
    """
    pieces = _CHANGING.split(head)
    if len(pieces) == 1:
        return head, []
    changing = pieces[2::3]
    del pieces[2::3]
    return tuple(pieces), changing


def _length(headers: Headers) -> int | None:
    """Return how long the body is, if that is said once, and as it is usually said."""
    said = [value for name, value in headers if name == b"content-length"]
    if len(said) != 1 or not _LENGTH.fullmatch(said[0]):
        return None
    return int(said[0])
