"""`/v1/auth`: a gateway forwards the head of a request, and is told whether to let it through.

The status says it: 200, or that of a refusal, with the headers and the body that a client may see.
The body has the form that the client asks for, since a gateway hands it on.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import NamedTuple

from limen.backends.sampled import SampledLog
from limen.engine import Asked, Verdict
from limen.errors import InvalidInput
from limen.http import answer_of_verdict, refusal, status_of
from limen.model import MAX_COST, Check
from limen.server import answers
from limen.server.access import admit
from limen.server.exchange import NO_STORE, Headers, Receive, Rejected, Reply, Scope, read_body
from limen.server.faces import Faces, Gallery
from limen.server.gateway.forwarded import Question, Reader
from limen.server.memo import Memo
from limen.server.service import Service

PATH = "/v1/auth"
PREFIX = f"{PATH}/"
_RAW_PREFIX = PREFIX.encode()
_PAIR = re.compile(rb"[&;]")
_OPTION = re.compile(rb"(?:(cost)=([0-9]{1,16})|(deny_status)=([45][0-9][0-9]))")
_OTHER_SITES = (b"cross-site", b"same-site")
_LOG_S, _KIND = 60.0, 24
"""How often a line of one kind is logged, and by how many of its letters the kind is told."""
_ROOM = 40_000_000
"""For what was asked before, in bytes."""


class Options(NamedTuple):
    """What a gateway asks for besides a decision."""

    cost: int = 1
    deny_status: int | None = None
    """The status of every refusal, for gateways that understand only some; None for the true one.
    """
    away_status: int | None = None
    """The status where the store is away and the limit closed meanwhile; None for the true one."""


class _Known(NamedTuple):
    asked: Asked
    checks: tuple[Check, ...]
    faces: Faces | None
    """What is said of the limits whatever is decided; None when the rules alone refuse."""


_USUAL = Options()
# Envoy takes every 5xx for no answer at all, and may be told to let pass then.
_ENVOYS = Options(away_status=429)


class Auth:
    """Answers gateways."""

    def __init__(self, service: Service) -> None:
        settings = service.settings
        self._service = service
        self._watch = service.watch
        self._reader = Reader(settings.gateway)
        self._is_open = settings.checks_are_open
        self._within = settings.gateway_deadline
        self._styles = settings.http.headers
        self._gallery = Gallery()
        self._memo: Memo[_Known] = Memo(_ROOM)
        self._log = SampledLog(_LOG_S)

    async def answer(self, scope: Scope, receive: Receive, id_: str) -> Reply:
        """Decide the request that a gateway forwards, and charge it when it is allowed."""
        peer = scope["client"][0] if scope["client"] else None
        start = time.perf_counter()
        try:
            reply = await self._answer(scope, receive, id_, peer)
            self._watch.durations["auth"].add(time.perf_counter() - start)
            return reply
        except (Rejected, InvalidInput) as error:
            # A gateway may be told to let pass then, and says nothing of it.
            text = f"a question of the gateway at {peer} is not answered: {error}"
            self._log.warn(str(error)[:_KIND], text)
            raise

    async def _answer(self, scope: Scope, receive: Receive, id_: str, peer: str | None) -> Reply:
        question, options = self._read(scope, peer)
        self._admit(question)
        # 503 is the status of a rule that is closed, which a gateway that fails open must not pass.
        self._service.require_rules(504)
        known = self._recalled(question, peer, options)
        await read_body(scope, receive, self._service.settings.http.max_body)
        verdict = await self._decide(known)
        self._watch.see(verdict, "auth", id_)
        if not verdict.allowed:
            return self._refused(verdict, options, id_, _accept(scope))
        headers: Headers = [(b"limen-status", b"200"), NO_STORE]
        faces = known.faces
        if faces is not None and faces.policy:
            standings = answers.standings_of(verdict, faces)
            headers += answers.headers_of(verdict, faces, standings, self._styles, time.time())
        return Reply(b"", headers)

    def _read(self, scope: Scope, peer: str | None) -> tuple[Question, Options]:
        headers = scope["headers"]
        if scope["path"] == PATH:
            question = self._reader.forwarded(peer, headers)
            query = scope["query_string"]
            return question, options_of(query, question.query) if query else _USUAL
        path: bytes = scope["raw_path"]
        if not path.startswith(_RAW_PREFIX):
            raise Rejected(404, f"what follows {PATH} is the client's own path, and begins with /")
        # The query is the client's as well, and no option of the gateway.
        method, path = scope["method"], path[len(PATH) :]
        return self._reader.prefixed(peer, headers, method, path), _ENVOYS

    def _admit(self, question: Question) -> None:
        token = question.token
        if token:
            secret = token.decode("latin-1").removeprefix("Bearer ")
            admit(self._service.access.holder(secret), "")
        elif not self._is_open:
            admit(None, "'X-Limen-Token: ...'")
        elif question.site in _OTHER_SITES:
            # What listens on loopback without a token is not for the pages in a browser there.
            raise Rejected(403, "pages of other sites may not ask without a token")

    def _recalled(self, question: Question, peer: str | None, options: Options) -> _Known:
        """Return what a question comes under, from memory if it was asked under the same rules."""
        engine, key = self._service.engine, (options.cost, question.request)
        rules = engine.rules
        known = self._memo.get(key, rules)
        if known is not None:
            return known
        if not self._reader.trusts(peer):
            raise Rejected(400, "you may not forward requests: see gateway.trusted_proxies")
        try:
            asked = engine.ask(self._reader.attributes(question.request), options.cost)
        except (Rejected, InvalidInput) as error:
            raise _denied(error, options) from None
        faces = None if asked.found.refused else self._gallery.faces(asked)
        known = _Known(asked, tuple(asked.checks), faces)
        # Not if other rules came in between, nor where the time of day has a say.
        if asked.rules is rules and rules.is_timeless:
            letters = sum([len(value) for value in question.request[2:] if value])
            self._memo.keep(key, known, 1_500 + 500 * len(known.checks) + 3 * letters)
        return known

    async def _decide(self, known: _Known) -> Verdict:
        if not known.checks:
            return known.asked.verdict(None)
        decision = await self._service.limiter.ask(known.checks, within=self._within)
        return known.asked.verdict(decision)

    def _refused(self, verdict: Verdict, options: Options, id_: str, accept: str) -> Reply:
        answer = answer_of_verdict(verdict)
        true = status_of(answer)
        told = refusal(
            answer,
            self._styles,
            now=time.time(),
            instance=f"urn:limen:{id_}",
            status=options.deny_status or (options.away_status if true >= 500 else None),
            accept=accept,
        )
        headers: Headers = [(b"limen-status", b"%d" % true)]
        headers += [(name.lower().encode(), value.encode()) for name, value in told.headers]
        return Reply(told.body, headers, told.status)


def _denied(error: Rejected | InvalidInput, options: Options) -> Rejected:
    """Return the refusal of a request that cannot be counted, with the status of all refusals."""
    status = error.status if isinstance(error, Rejected) else 422
    headers: Headers = [(b"limen-status", b"%d" % status)]
    return Rejected(options.deny_status or status, str(error), headers)


def _accept(scope: Scope) -> str:
    """Return what the client likes to read, where the gateway passes it on."""
    lines = [value for name, value in scope["headers"] if name == b"accept"]
    return b",".join(lines).decode("latin-1")


def options_of(query: bytes, clients: bytes) -> Options:
    """Return what the query of a question asks for. Raises `Rejected`.

    Some gateways pass the query of their client on, unless they are told not to. Then it is all in
    that of the forwarded request, too; and a client must not choose what it is charged.
    """
    pairs = set(_PAIR.split(query))
    is_clients = bool(clients) and pairs <= set(_PAIR.split(clients))
    if not is_clients:
        return _parsed(query)
    if all(map(_OPTION.fullmatch, pairs)):
        raise Rejected(
            400,
            "the options of the question are in the query of the client too, and nobody can tell "
            "whose they are",
        )
    return _USUAL


@lru_cache(maxsize=256)
def _parsed(query: bytes) -> Options:
    found: dict[str, int] = {}
    for pair in query.split(b"&"):
        option = _OPTION.fullmatch(pair)
        name, number = (option[1] or option[3], int(option[2] or option[4])) if option else (b"", 0)
        if not name or name.decode() in found or number > MAX_COST:
            raise Rejected(
                400,
                f"the query takes cost, from 0 to {MAX_COST:,}, and deny_status, from 400 to 599, "
                "each once at most",
            )
        found[name.decode()] = number
    return Options(**found)
