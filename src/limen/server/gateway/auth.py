"""`/v1/auth`: a gateway forwards the head of a request, and is told whether to let it through.

The status says it: 200, or that of a refusal, with the headers and the body that a client may see.
The body has the form that the client asks for, since a gateway hands it on.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import NamedTuple

from limen.backends import Prepared
from limen.backends.sampled import SampledLog
from limen.engine import Asked, Verdict
from limen.errors import InvalidInput
from limen.http import answer_of_verdict, refusal, status_of
from limen.model import MAX_COST
from limen.server.api.cache import Memo
from limen.server.api.response_templates import ResponseTemplate, TemplateCache
from limen.server.api.verdict_response import rate_limit_headers
from limen.server.auth.tokens import admit
from limen.server.gateway.forwarded import Question, Reader
from limen.server.http import Headers, Request, Response
from limen.server.http.exchange import NO_STORE, Rejected
from limen.server.worker.container import Service

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


class _Parsed(NamedTuple):
    asked: Asked
    prepared: Prepared | None
    """None when the rules alone decide."""
    template: ResponseTemplate


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
        self._templates = TemplateCache()
        self._cache: Memo[_Parsed] = Memo(_ROOM)
        self._log = SampledLog(_LOG_S)

    async def respond(self, request: Request) -> Response:
        """Decide the request that a gateway forwards, and charge it when it is allowed."""
        start = time.perf_counter()
        try:
            response = await self._respond(request)
        except (Rejected, InvalidInput) as error:
            # A gateway may be configured to let the request pass then, and says nothing of it.
            peer = request.peer.address
            text = f"a question of the gateway at {peer} is not answered: {error}"
            self._log.warn(str(error)[:_KIND], text)
            raise
        self._watch.durations["auth"].add(time.perf_counter() - start)
        return response

    async def _respond(self, request: Request) -> Response:
        question, options = self._read(request)
        self._admit(question)
        # 503 is the status of a rule that is closed, which a gateway that fails open must not pass.
        self._service.require_rules(504)
        parsed = self._parsed(question, request.peer.address, options)
        decision = None
        if parsed.prepared is not None:
            decision = await self._service.limiter.run(parsed.prepared, self._within)
        verdict = parsed.asked.verdict(decision)
        self._watch.see(verdict, "auth", request.id)
        if not verdict.allowed:
            return self._refused(verdict, options, request.id, _accept(request))
        headers = rate_limit_headers(verdict, parsed.template, self._styles, time.time())
        return Response(200, [(b"limen-status", b"200"), NO_STORE, *headers])

    def _read(self, request: Request) -> tuple[Question, Options]:
        peer = request.peer.address
        if request.path == PATH:
            question = self._reader.forwarded(peer, request.headers)
            query = request.query
            return question, options_of(query, question.query) if query else _USUAL
        path = request.raw_path
        if not path.startswith(_RAW_PREFIX):
            raise Rejected(404, f"what follows {PATH} is the client's own path, and begins with /")
        # The query is the client's as well, and no option of the gateway.
        path = path[len(PATH) :]
        return self._reader.prefixed(peer, request.headers, request.method, path), _ENVOYS

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

    def _parsed(self, question: Question, peer: str | None, options: Options) -> _Parsed:
        """Return the checks of a question, from the cache if the rules are the same."""
        engine, key = self._service.engine, (options.cost, question.request)
        rules = engine.rules
        parsed = self._cache.get(key, rules)
        if parsed is not None:
            return parsed
        if not self._reader.trusts(peer):
            raise Rejected(400, "you may not forward requests: see gateway.trusted_proxies")
        try:
            asked = engine.ask(self._reader.attributes(question.request), options.cost)
        except (Rejected, InvalidInput) as error:
            raise _denied(error, options) from None
        checks = tuple(asked.checks)
        prepared = self._service.limiter.prepare(checks) if checks else None
        parsed = _Parsed(asked, prepared, self._templates.get(asked))
        # Not if the rules changed meanwhile, nor if rules depend on the time of day.
        if asked.rules is rules and rules.is_timeless:
            request = question.request
            letters = sum([len(name) + len(value) for name, value in request.headers])
            letters += len(request.target[1]) if request.target is not None else 0
            self._cache.keep(key, parsed, 1_500 + 700 * len(checks) + 3 * letters)
        return parsed

    def _refused(self, verdict: Verdict, options: Options, id_: str, accept: str) -> Response:
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
        return Response(told.status, headers, told.body)


def _denied(error: Rejected | InvalidInput, options: Options) -> Rejected:
    """Return the refusal of a request that cannot be counted, with the status of all refusals."""
    status = error.status if isinstance(error, Rejected) else 422
    headers: Headers = [(b"limen-status", b"%d" % status)]
    return Rejected(options.deny_status or status, str(error), headers)


def _accept(request: Request) -> str:
    """Return the `Accept` of the client, where the gateway passes it on."""
    lines = [value for name, value in request.headers if name == b"accept"]
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
