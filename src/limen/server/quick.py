"""The short way of `POST /v1/check`: a request that came in one packet, looked up and not read.

A client sends the same head again and again. What was read once, and found to be as usual, means
the same the next time: its bytes are remembered. All else goes the long way, through the parser and
the app, which is also how a head comes to be known; so nothing is allowed here that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from limen.errors import InvalidInput, InvalidLimit
from limen.rules.stores.tokens import digest_of
from limen.server.access import Access, may_ask, token_of
from limen.server.decisions import Decisions
from limen.server.exchange import Rejected, Scope, Tell, header, mistake
from limen.server.memo import Memo
from limen.server.questions import Asking

PATH = "/v1/check"
_ROOM = 8_000_000
"""For heads, in bytes."""
_END = b"\r\n\r\n"
_UNUSUAL = frozenset(
    {b"x-request-id", b"origin", b"expect", b"connection", b"transfer-encoding", b"upgrade"}
)
"""What makes a request another one each time, or more than a question and its answer."""


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

    def learn(self, packet: bytes, scope: Scope) -> None:
        """Remember the head of a request that came whole, in one packet, if it is as usual."""
        if scope["path"] != PATH or scope["method"] != "POST" or scope["http_version"] != "1.1":
            return
        end = packet.find(_END) + len(_END)
        length, token = len(packet) - end, None
        lengths = 0
        for name, value in scope["headers"]:
            if name in _UNUSUAL:
                return
            if name == b"content-length":
                lengths += 1
                if not value.isdigit() or int(value) != length:
                    return
        if lengths != 1 or length > self._max_body:
            return
        sent = header(scope, b"authorization")
        if sent is not None:
            token = digest_of(token_of(sent.decode("latin-1")))
        elif not self._is_open:
            return
        self._heads.keep(packet[:end], _Head(length, token), 300 + end)

    def read(self, packet: bytes) -> Asking | None:
        """Return what is asked; None for what has to go the long way. Charges nobody."""
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
        except (Rejected, InvalidInput, InvalidLimit):
            return None
        return None if asking.asked is None else asking

    def answer(self, asking: Asking, tell: Tell) -> Coroutine[Any, Any, None] | None:
        """Decide, and tell what is sent: the status, the headers and the body.

        Return what is left to run where that takes a task of its own.
        """
        id_ = self._new_id()
        if self._decisions.answer_soon(asking, id_, tell):
            return None
        return self._answer(asking, id_, tell)

    async def _answer(self, asking: Asking, id_: str, tell: Tell) -> None:
        try:
            reply = await self._decisions.answer(asking, id_)
        except Exception:
            reply = mistake(id_)
        tell(*reply.sent(id_))
