"""When an alert begins, what it says, and when it is over."""

from __future__ import annotations

import math

import pytest

from limen.backends.histogram import TRIP_S
from limen.observe.alerts import MAX_ENDED, MAX_OPEN, MAX_TOP, STORE, Alert, Judge, Thresholds
from limen.observe.slices import RuleSlice, Slice

ALL = Thresholds(
    refusal_share=0.5, fallback_share=0.1, key_share=0.5, store_latency=0.05, least=100
)
OFF = Thresholds(refusal_share=0, fallback_share=0, key_share=0, store_latency=0, least=100)
NOW = 1_790_000_000.0
KEY = "sk_live_4242"
MANY = tuple((f"user:{number}", 10) for number in range(20))


def slice_of(
    rules: dict[str, RuleSlice] | None = None,
    *,
    requests: tuple[int, int] = (0, 0),
    degraded: int = 0,
    trips: tuple[int, ...] = (),
    seconds: int = 10,
) -> Slice:
    allowed, denied = requests
    return Slice(int(NOW), seconds, allowed, denied, degraded, trips, (), rules or {})


def trips(**counts: int) -> tuple[int, ...]:
    """Counts by the place of a bucket: `trips(b0=99, b11=1)`."""
    found = [0] * (len(TRIP_S) + 1)
    for place, count in counts.items():
        found[int(place[1:])] = count
    return tuple(found)


def rule(allowed: int, denied: int, *, top_denied: tuple[tuple[str, int], ...] = MANY) -> RuleSlice:
    return RuleSlice(allowed, denied, top_denied=top_denied)


BUSY = slice_of({"search": rule(100, 900)})
CALM = slice_of({"search": rule(900, 100)})
EMPTY = slice_of()


def judged(slice_: Slice, thresholds: Thresholds = ALL) -> list[Alert]:
    return Judge(thresholds).judge(slice_, NOW)


# What is told, and what is not


def test_a_rule_that_refuses_much_is_told_with_its_top_keys() -> None:
    top = ((KEY, 700), *MANY)
    (alert,) = judged(slice_of({"search-per-user": rule(246, 1_204, top_denied=top)}))
    assert (alert.kind, alert.rule) == ("refusals", "search-per-user")
    assert (alert.started, alert.ended, alert.threshold) == (NOW, None, 0.5)
    assert alert.value == alert.worst == 1_204 / 1_450
    assert alert.top == top[:MAX_TOP]
    assert alert.text == (
        "search-per-user refuses 83 % of its requests (1,204 of 1,450 in 10 s); "
        "more than 50 % is told"
    )


@pytest.mark.parametrize(
    ("allowed", "denied", "is_told"),
    [
        (50, 50, False),  # at the threshold, and not above it
        (49, 51, True),
        (0, 99, False),  # too few
        (0, 100, True),
        (0, 0, False),
        (0, 2**53, True),
    ],
)
def test_refusals_are_told_above_their_share_and_from_enough_decisions_on(
    allowed: int, denied: int, is_told: bool
) -> None:
    assert bool(judged(slice_of({"r": rule(allowed, denied)}))) is is_told


@pytest.mark.parametrize(
    ("total", "degraded", "is_told"),
    [
        (1_000, 100, False),
        (1_000, 101, True),
        (99, 98, False),
        (99, 99, True),  # few, but all of them
        (10, 10, True),
        (9, 9, False),
        (0, 0, False),
    ],
)
def test_fallback_is_told_from_few_requests_on_when_all_are_decided_by_it(
    total: int, degraded: int, is_told: bool
) -> None:
    found = judged(slice_of(requests=(total, 0), degraded=degraded))
    assert [alert.kind for alert in found] == (["fallback"] if is_told else [])


def test_fallback_says_of_how_many_requests() -> None:
    (alert,) = judged(slice_of(requests=(700, 300), degraded=400))
    assert alert.rule is None
    assert alert.text == (
        "40 % of all requests are decided without the store (400 of 1,000 in 10 s); "
        "more than 10 % is told"
    )


@pytest.mark.parametrize(
    ("counts", "value"),
    [
        ({"b0": 990, "b8": 10}, None),  # 99 of 100 are fast
        ({"b0": 989, "b8": 11}, 0.1),
        ({"b0": 900, "b7": 100}, None),  # up to 50 ms, which is not above 50 ms
        ({"b10": 100}, 1.0),
        ({"b11": 100}, 1.0),  # above all bounds
        ({"b8": 99}, None),  # too few
        ({}, None),
    ],
)
def test_latency_is_the_upper_bound_of_the_bucket_with_the_99th_percentile(
    counts: dict[str, int], value: float | None
) -> None:
    found = judged(slice_of(trips=trips(**counts)))
    assert [alert.value for alert in found] == ([] if value is None else [value])


def test_latency_above_all_bounds_says_so_and_passes_also_a_threshold_of_a_second() -> None:
    slow = slice_of(trips=trips(b11=100), seconds=7)
    (alert,) = judged(slow, Thresholds(store_latency=1.0))
    assert alert.text == (
        "1 of 100 round trips to the store takes more than 1 s (100 in 7 s); more than 1 s is told"
    )
    assert judged(slice_of(trips=trips(b10=100)), Thresholds(store_latency=1.0)) == []


def test_trips_with_other_buckets_than_ours_are_borne() -> None:
    assert judged(slice_of(trips=(500,))) == []
    (alert,) = judged(slice_of(trips=(0,) * 63 + (500,)))
    assert alert.value == 1.0


def test_a_key_that_makes_most_of_a_rule_is_told_without_its_name_in_the_text() -> None:
    top = ((KEY, 700), *MANY)
    (alert,) = judged(slice_of({"search": RuleSlice(1_000, top_allowed=top)}))
    assert (alert.kind, alert.rule, alert.value) == ("key", "search", 0.7)
    assert alert.top == top[:MAX_TOP]
    assert alert.text == (
        "one key makes 70 % of the requests of search (700 of 1,000 in 10 s); "
        "more than 50 % is told"
    )
    assert KEY not in alert.text + alert.id


@pytest.mark.parametrize(
    ("found", "is_told"),
    [
        (RuleSlice(1_000, top_allowed=((KEY, 500), *MANY)), False),
        (RuleSlice(1_000, top_allowed=((KEY, 501), *MANY)), True),
        (RuleSlice(1_000, top_allowed=((KEY, 700), *MANY), error=(199, 0)), True),
        (RuleSlice(1_000, top_allowed=((KEY, 700), *MANY), error=(200, 0)), False),
        (RuleSlice(1_000, top_allowed=((KEY, 700), *MANY), error=(0, 900)), True),
        (RuleSlice(600, 400, top_denied=((KEY, 400), *MANY)), False),
        # What it was allowed and what it was refused are of the same key.
        (RuleSlice(700, 300, top_allowed=((KEY, 300),), top_denied=((KEY, 300),)), True),
        (RuleSlice(700, 300, top_allowed=(("a", 300),), top_denied=((KEY, 300),)), False),
        (RuleSlice(50, 0, 50, 0, top_allowed=((KEY, 50), ("a", 1))), False),
        (RuleSlice(60, 0, 0, 39, top_allowed=((KEY, 60), ("a", 1))), False),
        (RuleSlice(60, 0, 0, 40, top_allowed=((KEY, 60), ("a", 1))), True),
        (RuleSlice(1_000), False),
        (RuleSlice(100, top_allowed=((KEY, 10**9), ("a", 1))), True),
    ],
)
def test_a_keys_share_counts_only_what_is_certain(found: RuleSlice, is_told: bool) -> None:
    alerts = judged(slice_of({"r": found}), Thresholds(refusal_share=0))
    assert [alert.kind for alert in alerts] == (["key"] if is_told else [])
    assert all(alert.value <= 1 for alert in alerts)


@pytest.mark.parametrize(
    ("found", "is_told"),
    [
        (RuleSlice(1_000, top_allowed=(("everybody", 1_000),)), False),
        (RuleSlice(999, 1, top_allowed=((KEY, 999),), top_denied=((KEY, 1),)), True),
        # There may be others that are not known.
        (RuleSlice(1_000, top_allowed=((KEY, 900),), error=(10, 0)), True),
        # A rule without a key.
        (RuleSlice(500, 500, top_allowed=(("", 500),), top_denied=(("", 500),)), False),
    ],
)
def test_a_rule_that_has_but_one_key_is_told_only_when_that_is_refused(
    found: RuleSlice, is_told: bool
) -> None:
    assert bool(judged(slice_of({"r": found}), Thresholds(refusal_share=0))) is is_told


def test_what_is_off_is_never_told() -> None:
    worst = slice_of(
        {"r": RuleSlice(0, 1_000, top_denied=((KEY, 1_000),))},
        requests=(0, 1_000),
        degraded=1_000,
        trips=trips(b11=1_000),
    )
    # Fallback and latency have one cause.
    assert {alert.kind for alert in judged(worst)} == {"refusals", "fallback", "key"}
    assert judged(worst, OFF) == []
    for none in (math.nan, -1.0):
        assert judged(worst, Thresholds(none, none, none, none)) == []


def test_an_empty_slice_tells_nothing_whatever_the_floor() -> None:
    for least in (-5, 0, 1):
        assert judged(EMPTY, Thresholds(least=least)) == []
        assert judged(slice_of({"r": RuleSlice()}), Thresholds(least=least)) == []


def test_a_rule_with_a_wild_name_is_one_short_line() -> None:
    (alert,) = judged(slice_of({"a\nb\x1b[31m" + "x" * 500: rule(0, 1_000)}))
    assert alert.text.isprintable()
    assert len(alert.text) < 250


# From begin to end


def test_an_alert_begins_at_once_goes_on_in_silence_and_ends_after_five_calm_seconds() -> None:
    judge = Judge(ALL)
    (began,) = judge.judge(BUSY, NOW)
    assert judge.open == (began,)
    assert judge.judge(BUSY, NOW + 1) == []
    for second in range(2, 7):
        assert judge.judge(CALM, NOW + second) == []
    assert [alert.id for alert in judge.open] == [began.id]
    (ended,) = judge.judge(CALM, NOW + 7)
    assert (ended.id, ended.started, ended.ended) == (began.id, NOW, NOW + 7)
    assert ended.text == "search refused up to 90 % of its requests; over after 7 s"
    assert list(judge.open) == []
    assert list(judge.ended) == [ended]
    assert judge.judge(CALM, NOW + 8) == []


def test_what_goes_up_and_down_is_one_alert() -> None:
    judge = Judge(ALL)
    changes = [judge.judge(BUSY if second % 5 == 0 else CALM, NOW + second) for second in range(60)]
    assert [len(each) for each in changes] == [1] + [0] * 59


def test_an_open_alert_tells_the_latest_value_and_keys_and_remembers_the_worst() -> None:
    judge = Judge(ALL)
    judge.judge(BUSY, NOW)
    later = slice_of({"search": rule(400, 600, top_denied=(("other", 9),))})
    judge.judge(later, NOW + 1)
    (alert,) = judge.open
    assert (alert.value, alert.worst, alert.top) == (0.6, 0.9, (("other", 9),))
    assert "refuses 60 %" in alert.text
    judge.judge(CALM, NOW + 2)
    assert judge.open == (alert,)


def test_a_rule_that_vanishes_is_calm() -> None:
    judge = Judge(ALL)
    judge.judge(BUSY, NOW)
    judge.judge(EMPTY, NOW + 1)
    assert [alert.ended for alert in judge.judge(EMPTY, NOW + 6)] == [NOW + 6]


def test_the_same_again_later_is_another_alert() -> None:
    judge = Judge(ALL)
    (first,) = judge.judge(BUSY, NOW)
    judge.judge(CALM, NOW + 1)
    judge.judge(CALM, NOW + 6)
    (second,) = judge.judge(BUSY, NOW + 7)
    assert first.id != second.id
    assert first.id.startswith("refusals-")
    assert len(first.id) < 30


def test_ids_are_the_same_for_whoever_judges_the_same() -> None:
    assert judged(BUSY) == judged(BUSY)
    others = slice_of({"other": rule(100, 900)})
    assert judged(BUSY)[0].id != judged(others)[0].id


def test_while_time_stands_still_nothing_ends() -> None:
    judge = Judge(ALL)
    judge.judge(BUSY, NOW)
    assert [judge.judge(CALM, NOW) for _ in range(100)] == [[]] * 100
    assert judge.judge(CALM, NOW + 5)


def test_a_clock_that_steps_back_neither_ends_an_alert_nor_keeps_it_for_ever() -> None:
    judge = Judge(ALL)
    (began,) = judge.judge(BUSY, NOW)
    judge.judge(CALM, NOW + 1)
    back = NOW - 3_600
    for second in range(4):
        assert judge.judge(CALM, back + second) == []
    (ended,) = judge.judge(CALM, back + 5)
    assert ended.ended == began.started  # never before it began


def test_a_time_that_is_none_changes_nothing() -> None:
    judge = Judge(ALL)
    for now in (math.nan, math.inf, -math.inf):
        assert judge.judge(BUSY, now) == []
    assert judge.judge(BUSY, NOW)
    assert judge.judge(CALM, math.nan) == []


# Bounds


def test_the_worst_hundred_are_open_and_the_rest_is_a_number() -> None:
    judge = Judge(ALL)
    rules = {f"r{number:04}": rule(1_000 - number, 1_000 + number) for number in range(1, 501)}
    began = judge.judge(slice_of(rules, requests=(0, 100), degraded=100), NOW)
    assert len(began) == len(judge.open) == MAX_OPEN
    assert judge.more == 501 - MAX_OPEN
    assert [alert.rule for alert in judge.open[:3]] == [None, "r0500", "r0499"]
    assert judge.open[-1].rule == "r0402"


def test_those_that_were_left_out_come_when_there_is_room() -> None:
    judge = Judge(ALL)
    rules = {f"r{number:04}": rule(0, 1_000) for number in range(MAX_OPEN + 1)}
    judge.judge(slice_of(rules), NOW)
    late = f"r{MAX_OPEN:04}"
    assert judge.more == 1
    left = {late: rules[late]}
    assert judge.judge(slice_of(left), NOW + 1) == []
    changed = judge.judge(slice_of(left), NOW + 6)
    assert len([alert for alert in changed if alert.ended]) == MAX_OPEN
    assert [alert.rule for alert in judge.open] == [late]
    assert judge.more == 0


def test_the_history_is_bounded_and_newest_first() -> None:
    judge = Judge(ALL)
    for turn in range(5):
        rules = {f"r{turn}-{number}": rule(0, 1_000) for number in range(90)}
        judge.judge(slice_of(rules), NOW + 20 * turn)
        judge.judge(EMPTY, NOW + 20 * turn + 1)
        judge.judge(EMPTY, NOW + 20 * turn + 6)
    assert len(judge.ended) == MAX_ENDED
    ended = [alert.ended or 0 for alert in judge.ended]
    assert ended == sorted(ended, reverse=True)
    assert ended[0] == NOW + 86


def test_no_text_holds_a_key() -> None:
    judge = Judge(ALL)
    busy = slice_of(
        {"r": RuleSlice(0, 1_000, top_denied=((KEY, 900), ("b", 100)))},
        requests=(0, 1_000),
        degraded=500,
        trips=trips(b11=1_000),
    )
    changed = judge.judge(busy, NOW)
    changed += judge.judge(EMPTY, NOW + 1)
    changed += judge.judge(EMPTY, NOW + 6)
    assert len(changed) == 6
    assert not any(KEY in alert.text for alert in changed)


# One cause, one alert


SLOW = slice_of(requests=(500, 0), trips=trips(b8=500))
AWAY = slice_of(requests=(500, 0), degraded=500, trips=trips(b8=500))


def test_a_store_that_gets_slow_then_stops_and_comes_back_slow_is_one_alert() -> None:
    judge = Judge(ALL)
    (began,) = judge.judge(SLOW, NOW)
    assert (began.kind, began.id.split("-")[0]) == ("latency", "store")
    assert judge.judge(AWAY, NOW + 1) == []
    (alert,) = judge.open
    assert (alert.id, alert.started, alert.kind) == (began.id, NOW, "fallback")
    assert (alert.value, alert.worst, alert.threshold) == (1.0, 1.0, 0.1)
    assert judge.judge(SLOW, NOW + 8) == []
    assert [each.kind for each in judge.open] == ["fallback"]
    changed = [change for second in range(9, 20) for change in judge.judge(EMPTY, NOW + second)]
    (ended,) = changed
    assert ended.id == began.id
    assert (
        ended.text == "up to 100 % of all requests were decided without the store; over after 14 s"
    )


def test_an_alert_whose_cause_is_held_does_not_end() -> None:
    judge = Judge(ALL)
    (began,) = judge.judge(AWAY, NOW)
    for second in range(1, 60):
        assert judge.judge(EMPTY, NOW + second, held=(STORE,)) == []
    assert judge.open == (began,)
    changed = [change for second in range(60, 66) for change in judge.judge(EMPTY, NOW + second)]
    assert [(each.id, each.ended) for each in changed] == [(began.id, NOW + 65)]


def test_an_adopted_alert_goes_on_and_a_cause_that_is_open_is_not_opened_twice() -> None:
    alone, leader = Judge(ALL), Judge(ALL)
    (began,) = alone.judge(AWAY, NOW)
    assert leader.adopt([began]) == [began.id]
    assert leader.judge(AWAY, NOW + 7) == []
    assert [(each.id, each.started) for each in leader.open] == [(began.id, NOW)]
    (other,) = Judge(ALL).judge(AWAY, NOW - 20)
    assert leader.adopt([other]) == []
    assert leader.adopt([other], replaceable={began.id}) == [other.id]
    assert [(each.id, each.started) for each in leader.open] == [(other.id, NOW - 20)]
