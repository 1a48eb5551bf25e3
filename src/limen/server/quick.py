"""The short way of `POST /v1/check`: a request that came in one packet, looked up and not read.

A client sends the same head again and again. What was read once, and found to be as usual, means
the same the next time: its bytes are remembered. All else goes the long way, through the parser and
the app, which is also how a head comes to be known; so nothing is allowed here that is not there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from limen.rules.stores.tokens import digest_of
from limen.server.access import Access, may_ask, token_of
from limen.server.decisions import Decisions
from limen.server.exchange import Scope, Tell, header, mistake
from limen.server.memo import Memo
from limen.server.questions import Asking

PATH = "/v1/check"
_ROOM = 8_000_000
"""For heads, in bytes."""
_END = b"\r\n\r\n"
_UNUSUAL = frozenset(
    {
        b"x-request-id",
        b"origin",
        b"expect",
        b"connection",
        b"proxy-connection",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""What makes a request more than a question and its answer, or asks for a certain one."""
_MOST_SEEN = 4_096


class _Head(Struct, frozen=True, gc=False):
    length: int
    """How long the body is."""
    token: str | None
    """The digest of the token that was sent along; None without one."""


class Quick:
    """Answers what is asked as it was asked before."""

    def __init__(
        self,
        decisions: Decisions,
        access: Access,
        new_id: Callable[[], str],
        *,
        is_open: bool,
        max_body: int,
    ) -> None:
        self._decisions = decisions
        self._access = access
        self._new_id = new_id
        self._is_open = is_open
        self._max_body = max_body
        self._heads: Memo[_Head] = Memo(_ROOM)
        self._seen: set[int] = set()
        """The hashes of heads that came once."""
        self._start = 0.0

    def learn(self, packet: bytes, scope: Scope) -> None:
        """Remember the head of a request that came whole, in one packet, if it is as usual.

        At the second time: many a client gives each request a number of its own.
        """
        if scope["path"] != PATH or scope["method"] != "POST" or scope["http_version"] != "1.1":
            return
        end = packet.find(_END) + len(_END)
        head = packet[:end]
        if self._heads.get(head, self) is not None:
            return
        if hash(head) not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen.add(hash(head))
            return
        length = len(packet) - end
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        # The packet ends where the body does: nothing else can have been in it.
        if lengths != [b"%d" % length] or length > self._max_body:
            return
        if any(name in _UNUSUAL for name, _ in scope["headers"]):
            return
        sent, token = header(scope, b"authorization"), None
        if sent is not None:
            token = digest_of(token_of(sent.decode("latin-1")))
        if self._is_open if token is None else may_ask(self._access.known(token)):
            self._heads.keep(head, _Head(length, token), 300 + end)

    def read(self, packet: bytes) -> Asking | None:
        """Return what is asked; None for what has to go the long way. Charges nobody."""
        self._start = time.perf_counter()
        end = packet.find(_END) + len(_END)
        head = self._heads.get(packet[:end], self)
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

    def answer(self, asking: Asking, tell: Tell) -> Coroutine[Any, Any, None] | None:
        """Decide what was read last, and tell what is sent: status, headers and body.

        Return what is left to run where that takes a task of its own.
        """
        id_, start = self._new_id(), self._start
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
