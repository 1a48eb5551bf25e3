"""Figures of several processes as one: counters are of all, gauges of those that live."""

from __future__ import annotations

import pytest
from msgspec import msgpack

from limen.backends.histogram import BATCH, TRIP_S, Histogram, Spread
from limen.observe.cells import MOST_NAMES, OTHERS
from limen.observe.figures import (
    MOST_SERVERS,
    Figures,
    ServerFigures,
    counters,
    fresh,
    merged,
)

NOW = 1_000.0


def spread(*values: float, bounds: tuple[float, ...] = TRIP_S) -> Spread:
    histogram = Histogram(bounds)
    for value in values:
        histogram.add(value)
    return histogram.spread


def busy_one(instance: str = "one", at: float = NOW) -> Figures:
    """Return figures with something in each field."""
    server = ServerFigures(
        is_open=True,
        opened=2,
        faults={"timeout": 3},
        trips=spread(0.001, 0.3),
        batches=spread(1, 5, bounds=BATCH),
        memory=1_000,
        ops=7.5,
        ping_s=0.001,
    )
    return Figures(
        instance=instance,
        at=at,
        decisions={"login": [5, 4, 3, 2], "api": [1, 0, 0, 0]},
        requests=[10, 6],
        fallback={"local": [1, 1]},
        durations={"check": spread(0.002)},
        servers={"valkey:6379": server},
        lost_refunds=1,
        tables={"local": 9},
        rules_version="12",
        rules_source="store",
        rules_age=60.0,
        rules=2,
        rules_trouble=1,
        kill_switch=True,
        instances=4,
        alerts=2,
        cpu_s=1.5,
        busy=0.25,
    )


def test_counters_are_of_all_processes() -> None:
    both = merged([busy_one(), busy_one("two"), busy_one("gone", at=NOW - 3_600)], NOW)
    assert both.decisions == {"login": [15, 12, 9, 6], "api": [3, 0, 0, 0]}
    assert (both.requests, both.fallback) == ([30, 18], {"local": [3, 3]})
    assert both.durations == {"check": spread(0.002, 0.002, 0.002)}
    assert (both.lost_refunds, both.cpu_s) == (3, 4.5)
    server = both.servers["valkey:6379"]
    assert (server.opened, server.faults) == (6, {"timeout": 9})
    assert server.trips.counts == spread(*[0.001, 0.3] * 3).counts
    assert server.trips.total == pytest.approx(0.903)
    assert server.batches == spread(*[1, 5] * 3, bounds=BATCH)


def test_gauges_of_a_process_that_ended_go() -> None:
    left = merged([busy_one(at=NOW - 6)], NOW)
    assert left.tables == {}
    assert (left.rules_version, left.rules_source, left.rules, left.rules_age) == ("", "", 0, 0.0)
    assert (left.rules_trouble, left.kill_switch, left.instances, left.alerts) == (0, False, 0, 0)
    assert left.busy == 0.0
    server = left.servers["valkey:6379"]
    assert (server.is_open, server.memory, server.ops, server.ping_s) == (False, None, None, None)
    assert left.requests == [10, 6]


def test_each_gauge_is_taken_as_fits_it() -> None:
    newer = Figures(
        "two",
        NOW,
        servers={"valkey:6379": ServerFigures(memory=2_000, ping_s=None)},
        tables={"local": 1, "owed": 5},
        rules_version="13",
        rules_source="cache",
        rules_age=2.0,
        rules=3,
        instances=5,
        busy=0.75,
    )
    both = merged([newer, busy_one(at=NOW - 1)], NOW)
    assert both.tables == {"local": 10, "owed": 5}
    assert (both.rules_version, both.rules_source, both.rules) == ("13", "cache", 3)
    assert (both.rules_age, both.rules_trouble, both.kill_switch) == (60.0, 1, True)
    assert (both.instances, both.alerts, both.busy) == (5, 2, 0.75)
    server = both.servers["valkey:6379"]
    assert server.is_open
    assert (server.memory, server.ops, server.ping_s) == (2_000, 7.5, 0.001)


def test_who_wrote_five_seconds_ago_lives_and_so_does_who_is_ahead() -> None:
    ages = {"now": 0.0, "just": 5.0, "old": 5.1, "ahead": -5.0, "far ahead": -5.1}
    written = [Figures(name, NOW - age) for name, age in ages.items()]
    assert [each.instance for each in fresh(written, NOW)] == ["now", "just", "ahead"]


def test_of_nobody_there_is_nothing() -> None:
    assert merged([], NOW) == Figures("", NOW)


def test_what_is_merged_is_left_as_it_was() -> None:
    one, two = busy_one(), busy_one("two", at=0.0)
    merged([one, two], NOW)
    assert (one, two) == (busy_one(), busy_one("two", at=0.0))


def test_counters_alone_stay_of_those_that_ended() -> None:
    ended = counters([busy_one(), busy_one("two")])
    assert (ended.at, ended.rules_version, ended.tables, ended.busy) == (0.0, "", {}, 0.0)
    assert not ended.servers["valkey:6379"].is_open
    again = merged([counters([ended, busy_one("three")]), busy_one("four")], NOW)
    whole = merged([busy_one(str(number)) for number in range(4)], NOW)
    assert (again.decisions, again.requests) == (whole.decisions, whole.requests)
    assert again.servers["valkey:6379"].faults == {"timeout": 12}
    assert again.rules_version == "12"


def test_what_was_written_is_read() -> None:
    assert msgpack.decode(msgpack.encode(busy_one()), type=Figures) == busy_one()


def test_rules_of_processes_that_ended_take_no_name_from_others_and_are_bounded() -> None:
    one = Figures("one", NOW, {f"a{number}": [1, 2, 3, 4] for number in range(MOST_NAMES)})
    two = Figures("two", NOW, {f"b{number}": [1, 0, 0, 0] for number in range(MOST_NAMES)})
    ended = counters([one])
    both = merged([ended, two], NOW).decisions
    assert both == one.decisions | two.decisions
    # Who ended last tells of what is there; the others make room.
    ended = counters([two, ended])
    assert ended.decisions == two.decisions | {OTHERS: [n * MOST_NAMES for n in (1, 2, 3, 4)]}


def test_rules_of_running_processes_are_bounded_and_named_alike_by_all() -> None:
    running = [
        Figures(str(n), NOW, {f"{n}-{rule:04}": [1, 0, 0, 0] for rule in range(MOST_NAMES)})
        for n in range(4)
    ]
    decisions = merged(running, NOW).decisions
    assert decisions == running[0].decisions | {OTHERS: [3 * MOST_NAMES, 0, 0, 0]}
    assert merged(running[::-1], NOW).decisions == decisions


def test_a_rule_that_is_called_others_is_added_up_with_them() -> None:
    one = Figures("one", NOW, {OTHERS: [5, 0, 0, 0]})
    one.decisions |= {f"a{number}": [1, 0, 0, 0] for number in range(MOST_NAMES)}
    two = Figures("two", NOW, {"b": [7, 0, 0, 0], OTHERS: [2, 0, 0, 0]})
    assert merged([one, two], NOW).decisions[OTHERS] == [14, 0, 0, 0]
    ended = counters([counters([one]), two])
    assert sum(counts[0] for counts in ended.decisions.values()) == MOST_NAMES + 14


def test_servers_that_came_and_went_are_added_up_when_there_are_too_many() -> None:
    gone = [
        Figures(str(number), 0.0, servers={f"10.0.0.{number}": ServerFigures(opened=1)})
        for number in range(2 * MOST_SERVERS)
    ]
    alive = Figures("alive", NOW, servers={"10.0.1.1": ServerFigures(is_open=True, memory=1)})
    servers = merged([alive, counters(gone)], NOW).servers
    assert len(servers) == MOST_SERVERS + 2
    assert servers["10.0.1.1"] == ServerFigures(is_open=True, memory=1)
    assert sum(server.opened for server in servers.values()) == 2 * MOST_SERVERS
    assert len(counters([*gone, counters(gone)]).servers) == MOST_SERVERS + 1
