"""`/live`: statistics, decisions and alerts as they happen (server-sent events).

One task collects the data of each second for all streams. Each stream has a short queue; a stream
whose queue is full is ended, and the client can open another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from typing import Annotated, Literal, get_args

import msgspec
from fastapi import Query, Request
from msgspec import Struct, structs
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from limen.errors import InvalidInput, did_you_mean, shown
from limen.observe.alerts import Alert
from limen.observe.recent import DecisionRecord, found
from limen.observe.slices import RuleSlice
from limen.observe.view import Picture
from limen.server.admin.authorization import AdminRoute, admit
from limen.server.admin.insight import (
    AllowedFilter,
    KeyFilter,
    RuleFilter,
    hidden_as,
    identity,
    lately,
    parse_flag,
)
from limen.server.admin.insight_responses import (
    Latencies,
    busiest,
    lasted,
    latencies_of,
    rates_of,
)
from limen.server.admin.rule_service import view
from limen.server.http.exchange import Rejected
from limen.server.insight.insight import Insight
from limen.server.worker.container import Service
from limen.server.worker.pools import PerToken

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
_MAX_WAIT_S = 2.0
"""How long a stream waits for data before it checks its token again."""
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


class Rates(Struct, frozen=True, kw_only=True):
    """Decisions in a second, on average of the last 5 to 10."""

    allowed: float
    denied: float
    degraded: float
    """Of requests: they are also among the others. Of a rule: they are not."""


class RuleRates(Rates, frozen=True, kw_only=True):
    """Decisions of one rule in a second."""

    rule: str
    shadow_denied: float


class ServerNow(Struct, frozen=True):
    """The state of one server of the store, as the process that sends it sees it."""

    where: str
    state: Literal["closed", "open"]
    """That of its circuit breaker: open means that it is left alone until it answers."""
    fault: str
    """The kind of the last fault since all was well; empty without one."""


class LiveHello(Struct, frozen=True, kw_only=True):
    """The event `hello`, the first one."""

    at: float
    instance: str
    """The process that sends the stream."""
    events: tuple[Event, ...]
    alerts: tuple[Alert, ...]
    """Those that are open already."""


class LiveStats(Struct, frozen=True, kw_only=True):
    """The event `stats`: rates and state, once a second."""

    at: float
    shared: bool
    """Whether the data are of all processes that share the store, or only of this one."""
    instances: int
    """The number of processes that saw requests in these seconds."""
    a_second: Rates
    rules: list[RuleRates]
    """Those with the most refusals first, at most 50; or the requested one."""
    latency: Latencies
    store: list[ServerNow]
    """Empty for a store in memory."""
    alerts: int
    """The number of open alerts."""


class LiveDecision(DecisionRecord, frozen=True, kw_only=True):
    """The event `decision`: one that was made since the last event of `stats`."""

    left_out: int
    """The number of decisions just before it that are left out: the newest 50 in a second are
    sent."""


class LiveAlert(Struct, frozen=True):
    """The event `alert`: an alert began or ended."""

    change: Literal["began", "ended"]
    alert: Alert


class LiveEnd(Struct, frozen=True):
    """The event `end`, the last one: the stream is over, and another may be opened."""

    reason: str


EVENTS = (LiveHello, LiveStats, LiveDecision, LiveAlert, LiveEnd)


class StreamFilter(Struct, frozen=True):
    """The events that a stream sends."""

    events: tuple[Event, ...]
    rule: str | None
    key: str | None
    """As it is kept."""
    allowed: bool | None


class LiveTick(Struct, frozen=True):
    """The data of one second."""

    picture: Picture
    stats: LiveStats
    seen: tuple[DecisionRecord, ...]
    """Decisions that are new."""
    changes: tuple[LiveAlert, ...]


Ticks = asyncio.Queue[LiveTick | str]
"""The queue of a stream: the data of seconds, or the reason to end."""


class Live:
    """All streams of one process, and the task that collects their data."""

    def __init__(self, service: Service) -> None:
        self.insight: Insight = service.insight
        self._service = service
        self._of_token = PerToken(MAX_TOKEN_STREAMS, "live streams")
        self._queues: list[Ticks] = []
        self._is_over = False
        self._known: dict[tuple[str, float], None] = {}
        self._alerts: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self.ready: asyncio.Event = asyncio.Event()
        """Whether the decisions and alerts before the first stream are known."""

    def end(self) -> None:
        """End every stream now. Called on the loop, when the service begins to stop."""
        self._is_over = True
        for queue in self._queues:
            _end(queue, _STOPPED)

    @contextlib.contextmanager
    def subscribe(self, token: str) -> Iterator[Ticks]:
        """Add a stream while the context lasts. Raises `Rejected` when there are too many."""
        with self._of_token.hold(token):
            if self._is_over or len(self._queues) >= MAX_STREAMS:
                why = _STOPPED if self._is_over else f"{MAX_STREAMS} streams are open already"
                retry = (b"retry-after", _RETRY_S)
                raise Rejected(503, f"{why}; come back a little later", [retry])
            queue = Ticks(MAX_BEHIND)
            self._queues.append(queue)
            if self._task is None:
                self._task = asyncio.create_task(self._run())
            try:
                yield queue
            finally:
                self._queues = [other for other in self._queues if other is not queue]
                if not self._queues:
                    self._rest()

    async def _run(self) -> None:
        while True:
            try:
                tick = await self._collect()
                # The first one is of the time before the streams.
                for queue in self._queues if self.ready.is_set() else ():
                    if queue.full():
                        _end(queue, _SLOW)
                    queue.put_nowait(tick)
            except Exception:  # the streams wait for the next second
                _logger.exception("the data for live streams cannot be collected; trying again")
            self.ready.set()
            await asyncio.sleep(TURN_S)

    def _rest(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = None
        self.ready.clear()
        self._known.clear()

    async def _collect(self) -> LiveTick:
        now, insight = time.time(), self.insight
        picture = await insight.view.picture(_WINDOW_S, now)
        seen, _ = await lately(insight, _MAX_READ)
        fresh = tuple(one for one in seen if identity(one) not in self._known)
        self._known.update(dict.fromkeys(map(identity, fresh)))
        for old in list(self._known)[: max(0, len(self._known) - _MAX_KNOWN)]:
            del self._known[old]
        judge = insight.alerts
        changes = [LiveAlert("began", alert) for alert in judge.open]
        changes += [LiveAlert("ended", alert) for alert in reversed(judge.ended)]
        # An alert can begin and end within one second: as two changes.
        new = tuple(change for change in changes if _change_id(change) not in self._alerts)
        self._alerts = set(map(_change_id, changes))
        return LiveTick(picture, self._stats(picture, now), fresh, new)

    def _stats(self, picture: Picture, now: float) -> LiveStats:
        whole, judge = picture.whole, self.insight.alerts
        seconds = lasted(whole, now)
        return LiveStats(
            at=round(now, 3),
            shared=picture.is_shared,
            instances=len(picture.instances),
            a_second=Rates(**rates_of(whole, seconds)),
            rules=_rates(busiest(whole.rules.items())[:MAX_RULES], seconds),
            latency=latencies_of(whole),
            store=view(self._service.limiter.shards, list[ServerNow]),
            alerts=len(judge.open) + judge.more,
        )


def _rates(rules: Sequence[tuple[str, RuleSlice]], seconds: float) -> list[RuleRates]:
    return [RuleRates(rule=name, **rates_of(rule, seconds)) for name, rule in rules]


def _change_id(change: LiveAlert) -> str:
    return f"{change.alert.id} {change.change}"


def _end(queue: Ticks, reason: str) -> None:
    """Replace the contents of a queue by the reason to end the stream."""
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(reason)


class Stream(StreamingResponse):
    """The response with the events of one stream."""

    media_type = _KIND

    def __init__(self, live: Live, wanted: StreamFilter, request: Request) -> None:
        super().__init__(())
        self.raw_headers: list[tuple[bytes, bytes]] = list(_HEADERS)
        self._live = live
        self._wanted = wanted
        self._access = request.app.state.service.access
        self._token = request.state.caller.token
        self._ids = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the stream ends or the client closes it."""
        with self._live.subscribe(self._token) as queue:
            self.body_iterator: AsyncIterator[bytes] = self._blocks(scope, queue)
            await super().__call__(scope, receive, send)

    async def _blocks(self, scope: Scope, queue: Ticks) -> AsyncIterator[bytes]:
        """Yield blocks of events."""
        await self._live.ready.wait()
        yield b"retry: 2000\n\n" + self._hello()
        loop = asyncio.get_running_loop()
        began = last = loop.time()
        while True:
            tick: LiveTick | str | None = None
            with contextlib.suppress(TimeoutError):
                tick = await asyncio.wait_for(queue.get(), _MAX_WAIT_S)
            reason = tick if isinstance(tick, str) else self._over(scope, loop.time() - began)
            if reason:
                yield self._event("end", LiveEnd(reason))
                return
            events = b"".join(self._events(tick)) if isinstance(tick, LiveTick) else b""
            if not events and loop.time() - last >= SILENCE_S:
                events = b": still here\n\n"
            if events:
                last = loop.time()
                yield events

    def _over(self, scope: Scope, age_s: float) -> str:
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
            events=self._wanted.events,
            alerts=insight.alerts.open,
        )
        return self._event("hello", hello)

    def _events(self, tick: LiveTick) -> Iterator[bytes]:
        wanted = self._wanted
        if "stats" in wanted.events:
            yield self._event("stats", self._stats(tick))
        if "decision" in wanted.events:
            yield from self._decisions(tick.seen)
        if "alert" in wanted.events:
            for change in tick.changes:
                if wanted.rule is None or change.alert.rule in (None, wanted.rule):
                    yield self._event("alert", change)

    def _stats(self, tick: LiveTick) -> LiveStats:
        rule = self._wanted.rule
        if rule is None:
            return tick.stats
        whole = tick.picture.whole
        seconds = lasted(whole, tick.stats.at)
        named = [(rule, whole.rules[rule])] if rule in whole.rules else []
        return structs.replace(tick.stats, rules=_rates(named, seconds))

    def _decisions(self, seen: Sequence[DecisionRecord]) -> Iterator[bytes]:
        wanted = self._wanted
        fitting = found(seen, wanted.key, None, wanted.rule, wanted.allowed, len(seen))
        left_out = len(fitting) - MAX_DECISIONS
        for one in reversed(fitting[:MAX_DECISIONS]):
            decision = LiveDecision(**structs.asdict(one), left_out=max(0, left_out))
            yield self._event("decision", decision)
            left_out = 0

    def _event(self, name: str, message: Struct) -> bytes:
        # In one line: JSON escapes line breaks.
        data = msgspec.json.encode(message)
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (next(self._ids), name.encode(), data)


async def follow(
    request: Request,
    events: Annotated[
        str, Query(max_length=100, description="Which events, with commas between.")
    ] = ",".join(_EVENTS),
    rule: RuleFilter = None,
    key: KeyFilter = None,
    allowed: AllowedFilter = None,
) -> Stream:
    """Follow what happens, as server-sent events. First comes `hello`; then each second `stats`,
    and whenever there are any `decision` and `alert`, each with one line of JSON; and in the end
    `end`, after an hour, when the token holds no more, or when the service stops. A client opens
    another one then. At most 32 may be open in each process, and 16 with one token."""
    live: Live = request.app.state.live
    hidden = None if key is None else hidden_as(live.insight, key)
    return Stream(live, StreamFilter(_events(events), rule, hidden, parse_flag(allowed)), request)


def _events(words: str) -> tuple[Event, ...]:
    asked = words.split(",")
    for word in asked:
        if word not in _EVENTS:
            hint = did_you_mean(word, _EVENTS) or f"; there are {', '.join(_EVENTS)}"
            raise InvalidInput(f"events: there is no event {shown(word)}{hint}")
    return tuple(event for event in get_args(Event) if event in asked)


_RESPONSES = {
    "200": {
        "description": "The events. Their data are LiveHello, LiveStats, LiveDecision, "
        "LiveAlert and LiveEnd."
    },
    "429": {"description": "The token has 16 streams, or too many requests in progress."},
    "503": {"description": "As many streams are open as may be, or the service ends."},
}
ROUTES = (
    AdminRoute("viewer", "GET", "/live", follow, also=(503,), extra={"responses": _RESPONSES}),
)
