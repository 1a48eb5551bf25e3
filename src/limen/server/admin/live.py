"""`/live`: what happens, as it happens, for as long as somebody listens (server-sent events).

However many listen, one look a second serves them all. Nothing is kept for who does not read: a
stream that falls behind is ended, and whoever opens another one is told how things stand.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Annotated, Any, Literal, get_args

import msgspec
from fastapi import Query, Request
from msgspec import Struct, structs
from pydantic import TypeAdapter
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from limen.errors import InvalidInput, did_you_mean, shown
from limen.observe.alerts import Alert
from limen.observe.recent import Seen, found
from limen.observe.slices import RuleSlice
from limen.observe.view import Picture
from limen.server.admin.desk import Desk
from limen.server.admin.guard import PREFIX, Door, admit, caller_of
from limen.server.admin.insight import Sought, YesOrNo, alert_of, hidden_as, lately, said, which
from limen.server.admin.insight_answers import (
    AlertOf,
    DecisionOf,
    Latencies,
    busiest,
    lasted,
    latencies_of,
)
from limen.server.admin.kinds import Model
from limen.server.exchange import Rejected
from limen.server.insight.insight import Insight
from limen.server.pools import PerToken
from limen.server.service import Service

TURN_S = 1.0
MAX_STREAMS = 32
"""How many may listen to one worker."""
MAX_TOKEN_STREAMS = 16
"""How many of them with one token."""
MAX_AGE_S = 3_600.0
MAX_DECISIONS = 50
"""How many decisions a stream tells in a turn."""
MAX_RULES = 50
"""Of how many rules a stream tells in a turn."""
MAX_BEHIND = 10
"""How many turns a stream may be behind."""
SILENCE_S = 15.0
"""After how long without an event there is a sign of life."""

_WINDOW_S = 10
_MAX_READ = 500
_MAX_KNOWN = 20_000
_RETRY_S = b"5"
_PATH = f"{PREFIX}/live"
_KIND = "text/event-stream"
_HEADERS = [
    (b"content-type", _KIND.encode()),
    (b"x-accel-buffering", b"no"),  # or a proxy keeps events until there are enough of them
    (b"connection", b"close"),  # it ends with the stream, and holds up nobody who stops
]
_OLD, _REVOKED = "an hour is over", "the token does not hold any more"
_SLOW, _STOPPED = "too slow to follow", "the service ends"
_logger = logging.getLogger("limen.server")

Event = Literal["stats", "decision", "alert"]
_EVENTS: tuple[str, ...] = get_args(Event)


class Rates(Model):
    """What is decided in a second, on average of the last 5 to 10."""

    allowed: float
    denied: float
    degraded: float
    """Of requests: they are among the others too. Of a rule: they are not."""


class RuleRates(Rates):
    """What one rule decides in a second."""

    rule: str
    shadow_denied: float


class ServerNow(Model):
    """How one server of the store is doing, as the process that tells it sees it."""

    where: str
    state: Literal["closed", "open"]
    """That of its circuit breaker: open means that it is left alone until it answers."""
    fault: str
    """The kind of the last fault since all was well; empty without one."""


class LiveHello(Model):
    """The event `hello`, the first one."""

    at: float
    instance: str
    """The process that tells."""
    events: list[Event]
    alerts: list[AlertOf]
    """Those that are open already."""


class LiveStats(Model):
    """The event `stats`: how things are, once a second."""

    at: float
    shared: bool
    """Whether all processes that share the store are in it; else it is the one that tells."""
    instances: int
    """How many processes have seen something in these seconds."""
    a_second: Rates
    rules: list[RuleRates]
    """Those with the most refusals first, at most 50; or the one that was asked for."""
    latency: Latencies
    store: list[ServerNow]
    """None for a store in memory."""
    alerts: int
    """How many are open."""


class LiveDecision(DecisionOf):
    """The event `decision`: one that was made since the last turn, by whichever process."""

    left_out: int
    """How many came just before it that are not told: of many, the newest 50 in a second are."""


class LiveAlert(Model):
    """The event `alert`: something began, or is over."""

    change: Literal["began", "ended"]
    alert: AlertOf


class LiveEnd(Model):
    """The event `end`, the last one: the stream is over, and another may be opened."""

    reason: str


_DATA = (LiveHello, LiveStats, LiveDecision, LiveAlert, LiveEnd)


class Wanted(Struct, frozen=True):
    """What a stream is to tell."""

    events: tuple[Event, ...]
    rule: str | None
    key: str | None
    """As it is kept."""
    allowed: bool | None


class Turn(Struct, frozen=True):
    """What was found in one look."""

    number: int
    picture: Picture
    stats: LiveStats
    seen: tuple[Seen, ...]
    """Decisions that are new."""
    began: tuple[Alert, ...]
    ended: tuple[Alert, ...]


class Live:
    """All streams of one worker, and the one look a second that serves them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._places = 0
        self._of_token = PerToken(MAX_TOKEN_STREAMS, "live streams")
        self._is_over = False
        self._turns: deque[Turn] = deque(maxlen=MAX_BEHIND)
        self._number = 0
        self._known: dict[tuple[str, float], None] = {}
        self._alerts: set[str] = set()
        self._look: asyncio.Task[None] | None = None
        self._first: asyncio.Task[None] | None = None
        self._news: asyncio.Future[None] | None = None

    @property
    def insight(self) -> Insight:
        """What is looked at."""
        return self._service.insight

    @property
    def is_over(self) -> bool:
        """Whether the service ends, and all streams with it."""
        return self._is_over

    @property
    def news(self) -> asyncio.Future[None]:
        """What is done at the next turn, or at the end."""
        assert self._news is not None  # whoever waits has a place
        return self._news

    def end(self) -> None:
        """End every stream now. Called on the loop, when the service begins to stop."""
        self._is_over = True
        self._wake()

    @contextlib.contextmanager
    def place(self, token: str) -> Iterator[None]:
        """Have a place among those that listen. Raises `Rejected` when there is none."""
        with self._of_token.hold(token), self._place():
            yield

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        if self._is_over or self._places >= MAX_STREAMS:
            why = "the service ends" if self._is_over else f"{MAX_STREAMS} streams are open already"
            raise Rejected(503, f"{why}; come back a little later", [(b"retry-after", _RETRY_S)])
        self._places += 1
        if self._places == 1:
            self._news = asyncio.get_running_loop().create_future()
            self._first = asyncio.create_task(self._begin())
        try:
            yield
        finally:
            self._places -= 1
            if not self._places:
                self._rest()

    async def begun(self) -> int:
        """Wait until what there was before is known; return the number of the last turn."""
        if self._first is not None:
            await asyncio.shield(self._first)
        return self._number

    def since(self, number: int) -> list[Turn] | None:
        """Return the turns behind one; None when not all of them are there any more."""
        turns = [turn for turn in self._turns if turn.number > number]
        return None if turns and turns[0].number > number + 1 else turns

    async def _begin(self) -> None:
        try:
            await self._turn()
        except Exception:
            _logger.exception("a look for the streams failed; it goes on")
        self._look = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TURN_S)
            try:
                self._turns.append(await self._turn())
            except Exception:  # whatever it is, those that listen are there for the next turn
                _logger.exception("a look for the streams failed; it goes on")
            self._wake()

    def _rest(self) -> None:
        for task in (self._first, self._look):
            if task is not None:
                task.cancel()
        self._first = self._look = None
        self._turns.clear()
        self._known.clear()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
            self._news = self._news.get_loop().create_future()

    async def _turn(self) -> Turn:
        now, insight = time.time(), self.insight
        picture = await insight.view.picture(_WINDOW_S, now)
        seen, _ = await lately(insight, _MAX_READ)
        fresh = [one for one in seen if which(one) not in self._known]
        self._known.update(dict.fromkeys(map(which, fresh)))
        for old in list(self._known)[: max(0, len(self._known) - _MAX_KNOWN)]:
            del self._known[old]
        judge = insight.alerts
        began = [alert for alert in judge.open if alert.id not in self._alerts]
        # One is open, or over, or both: as two different things to tell.
        ended = [alert for alert in judge.ended if f"{alert.id} ended" not in self._alerts]
        self._alerts = {alert.id for alert in judge.open}
        self._alerts.update(f"{alert.id} ended" for alert in judge.ended)
        self._number += 1
        return Turn(
            self._number,
            picture,
            self._stats(picture, now),
            tuple(fresh),
            tuple(began),
            tuple(reversed(ended)),
        )

    def _stats(self, picture: Picture, now: float) -> LiveStats:
        whole, judge = picture.whole, self.insight.alerts
        seconds = lasted(whole, now)
        return LiveStats(
            at=round(now, 3),
            shared=picture.is_shared,
            instances=len(picture.instances),
            a_second=Rates(
                allowed=_rate(whole.allowed, seconds),
                denied=_rate(whole.denied, seconds),
                degraded=_rate(whole.degraded, seconds),
            ),
            rules=_rates(busiest(whole.rules.items())[:MAX_RULES], seconds),
            latency=latencies_of(whole),
            store=[
                ServerNow(where=shard.where, state=shard.state, fault=shard.fault)
                for shard in self._service.limiter.shards
            ],
            alerts=len(judge.open) + judge.more,
        )


def _rates(rules: Sequence[tuple[str, RuleSlice]], seconds: float) -> list[RuleRates]:
    return [
        RuleRates(
            rule=name,
            allowed=_rate(rule.allowed, seconds),
            denied=_rate(rule.denied, seconds),
            shadow_denied=_rate(rule.shadow_denied, seconds),
            degraded=_rate(rule.degraded, seconds),
        )
        for name, rule in rules
    ]


def _rate(number: int, seconds: float) -> float:
    return round(number / seconds, 3)


class Stream(Response):
    """One answer that goes on."""

    media_type = _KIND

    def __init__(self, live: Live, wanted: Wanted, request: Request) -> None:
        self.status_code: int = 200
        self.background: None = None
        self.raw_headers: list[tuple[bytes, bytes]] = list(_HEADERS)
        self._live = live
        self._wanted = wanted
        self._access = request.app.state.access
        self._token = caller_of(request).token
        self._ids = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell what happens until one of the two goes."""
        with self._live.place(self._token):
            # Before anything is sent: what happens from the first event on is told.
            number = await self._live.begun()
            headers = self.raw_headers
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send(_part(b"retry: 2000\n\n" + self._hello()))
            gone = asyncio.create_task(_until_gone(receive))
            try:
                reason = await self._follow(scope, send, gone, number)
            finally:
                gone.cancel()
                await asyncio.gather(gone, return_exceptions=True)
            if reason:
                end = self._event("end", LiveEnd(reason=reason).model_dump_json())
                await send({"type": "http.response.body", "body": end, "more_body": False})

    async def _follow(self, scope: Scope, send: Send, gone: asyncio.Task[None], number: int) -> str:
        """Tell turn by turn; return why it is over, or nothing when the client has gone."""
        live, loop = self._live, asyncio.get_running_loop()
        began = spoke = loop.time()
        while not gone.done():
            news = live.news  # of what comes from now on, also while this is being sent
            if reason := self._over(scope, loop.time() - began):
                return reason
            turns = live.since(number)
            if turns is None:
                return _SLOW
            written = b"".join(event for turn in turns for event in self._told(turn))
            number = turns[-1].number if turns else number
            if not written and loop.time() - spoke >= SILENCE_S:
                written = b": still here\n\n"
            if written:
                spoke = loop.time()
                await send(_part(written))
            await asyncio.wait({gone, news}, return_when=asyncio.FIRST_COMPLETED)
        return ""

    def _over(self, scope: Scope, age_s: float) -> str:
        if self._live.is_over:
            return _STOPPED
        if age_s >= MAX_AGE_S:
            return _OLD
        try:
            admit(self._access, scope, "viewer")
        except Rejected:
            return _REVOKED
        return ""

    def _hello(self) -> bytes:
        insight = self._live.insight
        hello = LiveHello(
            at=round(time.time(), 3),
            instance=insight.instance,
            events=list(self._wanted.events),
            alerts=[alert_of(alert) for alert in insight.alerts.open],
        )
        return self._event("hello", hello.model_dump_json())

    def _told(self, turn: Turn) -> Iterator[bytes]:
        wanted = self._wanted
        if "stats" in wanted.events:
            yield self._event("stats", self._stats(turn).model_dump_json())
        if "decision" in wanted.events:
            yield from self._decisions(turn.seen)
        if "alert" in wanted.events:
            for change, alerts in (("began", turn.began), ("ended", turn.ended)):
                for alert in alerts:
                    if wanted.rule is None or alert.rule in (None, wanted.rule):
                        # In one line: JSON escapes what would begin another.
                        told = {"change": change, "alert": structs.asdict(alert)}
                        yield self._event("alert", msgspec.json.encode(told).decode())

    def _stats(self, turn: Turn) -> LiveStats:
        rule = self._wanted.rule
        if rule is None:
            return turn.stats
        whole = turn.picture.whole
        seconds = lasted(whole, turn.stats.at)
        named = [(rule, whole.rules[rule])] if rule in whole.rules else []
        return turn.stats.model_copy(update={"rules": _rates(named, seconds)})

    def _decisions(self, seen: Sequence[Seen]) -> Iterator[bytes]:
        wanted = self._wanted
        fitting = found(seen, wanted.key, None, wanted.rule, wanted.allowed, len(seen))
        left_out = len(fitting) - MAX_DECISIONS
        for one in reversed(fitting[:MAX_DECISIONS]):
            told = {**structs.asdict(one), "left_out": max(0, left_out)}
            yield self._event("decision", msgspec.json.encode(told).decode())
            left_out = 0

    def _event(self, name: str, data: str) -> bytes:
        return f"id: {next(self._ids)}\nevent: {name}\ndata: {data}\n\n".encode()


def _part(written: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": written, "more_body": True}


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def follow(
    request: Request,
    events: Annotated[
        str, Query(max_length=100, description="Which events, with commas between.")
    ] = ",".join(_EVENTS),
    rule: Annotated[
        Sought | None, Query(description="Of this rule: its decisions, numbers and alerts.")
    ] = None,
    key: Annotated[Sought | None, Query(description="Only decisions of this key.")] = None,
    allowed: Annotated[
        YesOrNo | None, Query(description="Only decisions that were, or were not.")
    ] = None,
) -> Response:
    """Follow what happens, as server-sent events. First comes `hello`; then each second `stats`,
    and whenever there are any `decision` and `alert`, each with one line of JSON; and in the end
    `end`, after an hour, when the token holds no more, or when the service stops. A client opens
    another one then. At most 32 may be open in each process, and 16 with one token."""
    live: Live = request.app.state.live
    hidden = None if key is None else hidden_as(live.insight, key)
    return Stream(live, Wanted(_events(events), rule, hidden, said(allowed)), request)


def _events(words: str) -> tuple[Event, ...]:
    asked = words.split(",")
    for word in asked:
        if word not in _EVENTS:
            hint = did_you_mean(word, _EVENTS) or f"; there are {', '.join(_EVENTS)}"
            raise InvalidInput(f"events: there is no event {shown(word)}{hint}")
    return tuple(event for event in get_args(Event) if event in asked)


def install(door: Door, desk: Desk) -> None:
    """Add the route."""
    door.add("viewer", "GET", "/live", follow, also=(503,))


def describe(description: dict[str, Any]) -> None:
    """Say what a stream holds: FastAPI describes answers that are JSON and come to an end."""
    template = "#/components/schemas/{model}"
    schemas = description["components"]["schemas"]
    for model in _DATA:
        schema = TypeAdapter(model).json_schema(ref_template=template, mode="serialization")
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    told = description["paths"][_PATH]["get"]["responses"]
    told["200"] = {
        "description": "The events. Their data are LiveHello, LiveStats, LiveDecision, LiveAlert "
        "and LiveEnd.",
        "content": {_KIND: {"schema": {"type": "string"}}},
    }
    told["429"]["description"] = "The token has 16 streams, or too many requests in progress."
    told["503"]["description"] = "As many streams are open as may be, or the service ends."
