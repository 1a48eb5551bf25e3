"""`Figures`: all numbers of one process at one moment, and those of several processes as one.

Counters only grow while a process lives; gauges say how it is now. Knows neither who writes these
numbers down nor how they are shown. Rules are named here, keys never.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from limen.backends import Shard, Vitals
from limen.backends.histogram import BATCH, TRIP_S, Spread
from limen.observe.cells import MOST_NAMES, OTHERS

FRESH_S = 5.0
"""For how many seconds the gauges of a process hold."""
MOST_SERVERS = 128
"""How many servers of a store have numbers of their own."""
_MOST_BYTES = 4 * 2**20
_ENDED = 0.0

_V = TypeVar("_V")
_MOST = 2**53  # what a number in Prometheus holds exactly; sums of these overflow nothing
_Count = Annotated[int, Meta(ge=0, le=_MOST)]
_Pair = Annotated[list[_Count], Meta(min_length=2, max_length=2)]
_Four = Annotated[list[_Count], Meta(min_length=4, max_length=4)]
_Amount = Annotated[float, Meta(ge=0, le=_MOST)]


class ServerFigures(Struct):
    """The numbers of one server of the store, as one process sees it."""

    is_open: bool = False
    """A gauge: whether its circuit breaker is open, so that it is left alone."""
    opened: _Count = 0
    """How often that has happened."""
    faults: dict[str, _Count] = {}
    """By kind, `timeout`: how often it did not answer as it should."""
    trips: Spread = Spread()
    """In seconds, by the bounds `TRIP_S`: how long it took to answer."""
    batches: Spread = Spread()
    """By the bounds `BATCH`: how many decisions travelled together."""
    memory: _Count | None = None
    """A gauge: the bytes it uses; None when it did not say."""
    ops: _Amount | None = None
    """A gauge: the commands that it carries out in a second; None when it did not say."""
    ping_s: _Amount | None = None
    """A gauge: in how many seconds it answered last; None when it did not."""


class Figures(Struct):
    """The numbers of one process. Counters are since its start; gauges are named as such."""

    instance: str
    at: float
    """When they were taken, in seconds since 1970; 0.0 when they are of processes that ended."""
    decisions: dict[str, _Four] = {}
    """By rule: allowed, denied, shadow_denied, degraded."""
    requests: _Pair = field(default_factory=lambda: [0, 0])
    """Allowed, denied."""
    fallback: dict[str, _Pair] = {}
    """By who decided instead of the store (`local`, `open`, `closed`): allowed, denied."""
    undelivered: dict[str, _Pair] = {}
    """By surface (`auth`, `envoy`): allowed, denied, where the gateway did not wait for it."""
    durations: dict[str, Spread] = {}
    """By surface (`check`, `slots`, `auth`, `envoy`): seconds, by the bounds `TRIP_S`."""
    servers: dict[str, ServerFigures] = {}
    """By address, without a password."""
    lost_refunds: _Count = 0
    tables: dict[str, _Count] = {}
    """A gauge: the entries of each table in the memory of the process, `local`."""
    rules_version: str = ""
    """A gauge, as are all of the rules."""
    rules_source: str = ""
    rules_age: _Amount = 0.0
    """For how many seconds the rules have been in force."""
    rules: _Count = 0
    """How many there are."""
    rules_trouble: _Count = 0
    """How many of the ways by which rules come do not work."""
    kill_switch: bool = False
    instances: _Count = 0
    """A gauge: how many processes enforce rules, on all hosts."""
    alerts: _Count = 0
    """A gauge: how many alerts are open."""
    cpu_s: _Amount = 0.0
    """How many seconds the process was on the CPU."""
    busy: _Amount = 0.0
    """A gauge: the share of the last second that it was on the CPU, 0.0 to 1.0."""


def servers_of(
    shards: Iterable[Shard], vitals: Mapping[str, Vitals] | None = None
) -> dict[str, ServerFigures]:
    """Return what is known of the servers of a store, and what they say of themselves."""
    found: dict[str, ServerFigures] = {}
    for shard in shards:
        said = (vitals or {}).get(shard.where)
        found[shard.where] = ServerFigures(
            shard.state == "open",
            shard.opened,
            dict(shard.faults),
            shard.trips,
            shard.batches,
            None if said is None else said.memory,
            None if said is None else said.operations,
            None if said is None else said.ping_s,
        )
    return found


_decoder = msgspec.msgpack.Decoder(Figures)


def encode(figures: Figures) -> bytes:
    """Return figures as bytes, which workers of other versions read too."""
    return msgspec.msgpack.encode(writable(figures))


def decode(data: bytes) -> Figures | None:
    """Return the figures in some bytes; None for what is wrong in any way, or too much."""
    if len(data) > _MOST_BYTES:
        return None
    try:
        figures = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return figures if is_sound(figures) else None


def is_sound(figures: Figures) -> bool:
    """Say whether figures that were read can be added up: what their types do not say."""
    servers = figures.servers.values()
    return (
        math.isfinite(figures.at)
        and all(_is_sound(each, TRIP_S) for each in figures.durations.values())
        and all(_is_sound(each.trips, TRIP_S) for each in servers)
        and all(_is_sound(each.batches, BATCH) for each in servers)
    )


def writable(figures: Figures) -> Figures:
    """Return figures with what UTF-8 has no place for, in their names, spelt out.

    Names that become one by that are added up.
    """
    tables: Sequence[Mapping[str, object]] = (
        figures.decisions,
        figures.fallback,
        figures.undelivered,
        figures.durations,
        figures.tables,
    )
    names = [figures.rules_version, figures.rules_source, *figures.servers]
    names += [name for table in tables for name in table]
    names += [kind for server in figures.servers.values() for kind in server.faults]
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        return _spelt_out(figures)
    return figures


def _spelt_out(figures: Figures) -> Figures:
    def spelt(text: str) -> str:
        return text.encode("utf-8", "backslashreplace").decode()

    servers = [
        (where, msgspec.structs.replace(told, faults=_by_name([told.faults], sum, spelt)))
        for where, told in figures.servers.items()
    ]
    return msgspec.structs.replace(
        figures,
        decisions=_by_name([figures.decisions], _added, spelt),
        fallback=_by_name([figures.fallback], _added, spelt),
        undelivered=_by_name([figures.undelivered], _added, spelt),
        durations=_by_name([figures.durations], _spread, spelt),
        servers=_by_name([dict(servers)], _together, spelt),
        tables=_by_name([figures.tables], sum, spelt),
        rules_version=spelt(figures.rules_version),
        rules_source=spelt(figures.rules_source),
    )


def fresh(figures: Iterable[Figures], now: float) -> list[Figures]:
    """Return the figures of those that live: who wrote in the last `FRESH_S` seconds."""
    return [each for each in figures if abs(now - each.at) <= FRESH_S]


def counters(figures: Sequence[Figures]) -> Figures:
    """Return what stays of processes that have ended: their counters, and no gauge.

    At most `MOST_NAMES` rules keep their names, those of the last ones that ended before others.
    """
    whole = merged(figures, math.inf)
    return msgspec.structs.replace(
        whole,
        at=_ENDED,
        decisions=_bounded(whole.decisions, MOST_NAMES, _added),
        servers=_bounded(whole.servers, MOST_SERVERS, _together),
    )


def merged(figures: Sequence[Figures], now: float) -> Figures:
    """Return the figures of several processes as one.

    Counters are added up over all of them. Gauges are of those that wrote in the last `FRESH_S`
    seconds: who ended has none.

    Of the rules that processes tell of, `MOST_NAMES` keep their names: the first in the order of
    the alphabet. What is left is added up as `(others)`. So whoever merges the same figures names
    the same rules; and while the same processes live, and none of them forgets a rule, no counter
    falls. A new name never brings back one that has lost its place, because it can only move the
    others further down. (The order in which rules are met would: a process that stands further in
    front may meet, late, what another has met behind the last place.) What remains:

    - a rule loses its name when a new one comes before it, and then `(others)` grows at once by all
      that was counted under the name;
    - when a process ends or forgets rules, those that it alone told of make room: a rule may get
      its name back, and `(others)` falls by what was counted under it.

    Rules that only ended processes knew keep their names too, up to `MOST_NAMES` more: if they had
    to make room, they would come back when a process meets them again. The same holds for servers.
    """
    living = fresh(figures, now)
    known = {id(each) for each in living}
    ended = [each for each in figures if each.at == _ENDED]
    running = [each for each in figures if each.at != _ENDED]
    ordered = running + ended
    newest = max(ordered, key=_at, default=Figures("", now))
    gauges = max(living, key=_at, default=Figures("", now))
    return Figures(
        instance=newest.instance,
        at=newest.at,
        decisions=_by_name(
            (each.decisions for each in ordered),
            _added,
            _Places(
                [each.decisions for each in running], [each.decisions for each in ended], MOST_NAMES
            ),
        ),
        requests=_added([[0, 0], *[each.requests for each in figures]]),
        fallback=_by_name((each.fallback for each in figures), _added),
        undelivered=_by_name((each.undelivered for each in figures), _added),
        durations=_by_name((each.durations for each in figures), _spread),
        servers=_servers(running, ended, known),
        lost_refunds=sum(each.lost_refunds for each in figures),
        tables=_by_name((each.tables for each in living), sum),
        rules_version=gauges.rules_version,
        rules_source=gauges.rules_source,
        rules_age=max((each.rules_age for each in living), default=0.0),
        rules=gauges.rules,
        rules_trouble=max((each.rules_trouble for each in living), default=0),
        kill_switch=any(each.kill_switch for each in living),
        instances=max((each.instances for each in living), default=0),
        alerts=max((each.alerts for each in living), default=0),
        cpu_s=math.fsum(each.cpu_s for each in figures),
        busy=max((each.busy for each in living), default=0.0),
    )


class _Places:
    """Says under which name something is counted: its own if it has a place, else `(others)`."""

    def __init__(
        self, running: Sequence[Iterable[str]], ended: Sequence[Iterable[str]], most: int
    ) -> None:
        met = {name for names in running for name in names} - {OTHERS}
        gone = [name for name in dict.fromkeys(chain(*ended)) if name != OTHERS]
        self._without = {*sorted(met)[most:], *(set(gone[most:]) - met)}

    def __call__(self, name: str) -> str:
        return OTHERS if name in self._without else name


def _servers(
    running: Sequence[Figures], ended: Sequence[Figures], fresh: set[int]
) -> dict[str, ServerFigures]:
    """Return what all say of each server; what it says of itself, as the newest heard it."""
    ordered = [*running, *ended]
    by_age = sorted(ordered, key=_at, reverse=True)
    found = {
        where: _server(
            [(each, each.servers[where]) for each in by_age if where in each.servers], fresh
        )
        for where in dict.fromkeys(name for each in ordered for name in each.servers)
    }
    places = _Places(
        [each.servers for each in running], [each.servers for each in ended], MOST_SERVERS
    )
    return _by_name([found], _together, places)


def _server(seen: Sequence[tuple[Figures, ServerFigures]], fresh: set[int]) -> ServerFigures:
    """Return one server as all see it; `seen` has the newest first."""
    now = [server for figures, server in seen if id(figures) in fresh]
    told = _together([server for _, server in seen])
    told.is_open = any(server.is_open for server in now)
    told.memory = _first(server.memory for server in now)
    told.ops = _first(server.ops for server in now)
    told.ping_s = _first(server.ping_s for server in now)
    return told


def _together(parts: Sequence[ServerFigures]) -> ServerFigures:
    """Add up servers. Of several, what one says of itself is left out."""
    if len(parts) == 1:
        return msgspec.structs.replace(parts[0])
    return ServerFigures(
        is_open=any(part.is_open for part in parts),
        opened=sum(part.opened for part in parts),
        faults=_by_name((part.faults for part in parts), sum),
        trips=_spread([part.trips for part in parts]),
        batches=_spread([part.batches for part in parts]),
    )


def _as_it_is(name: str) -> str:
    return name


def _by_name(
    tables: Iterable[dict[str, _V]],
    add: Callable[[list[_V]], _V],
    called: Callable[[str], str] = _as_it_is,
) -> dict[str, _V]:
    """Add up what is called the same."""
    found: dict[str, list[_V]] = {}
    for table in tables:
        for name, value in table.items():
            found.setdefault(called(name), []).append(value)
    return {name: add(values) for name, values in found.items()}


def _bounded(table: dict[str, _V], most: int, add: Callable[[list[_V]], _V]) -> dict[str, _V]:
    """Return a table of which the first names are kept, and `(others)`."""
    return _by_name([table], add, _Places([], [table], most))


def _added(rows: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*rows, fillvalue=0)]


def _spread(spreads: Iterable[Spread]) -> Spread:
    parts = list(spreads)
    counts = tuple(_added([part.counts for part in parts]))
    return Spread(counts, math.fsum(part.total for part in parts))


def _first(values: Iterable[_V | None]) -> _V | None:
    return next((value for value in values if value is not None), None)


def _is_sound(spread: Spread, bounds: Sequence[float]) -> bool:
    """Say whether it has one number for each bound and one above, or none at all."""
    return (
        len(spread.counts) in (0, len(bounds) + 1)
        and all(0 <= count <= _MOST for count in spread.counts)
        and 0 <= spread.total <= _MOST
    )


def _at(figures: Figures) -> float:
    return figures.at
