"""The language of limits, and what a `Limit` is."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen import Concurrency, InvalidLimit, LimenError, Limit
from limen.model import ALGORITHMS

READ: dict[str, Limit] = {
    "100/minute": Limit(100, 60),
    "100 per 2 hours": Limit(100, 7_200),
    "5/10s": Limit(5, 10),
    "5 / 10 sec": Limit(5, 10),
    "10/s burst 20": Limit(10, 1, burst=20),
    "10/s burst 20 leaky_bucket": Limit(10, 1, algorithm="leaky_bucket", burst=20),
    "100/minute token_bucket": Limit(100, 60, algorithm="token_bucket"),
    "100/minute min_interval 50ms count_denied": Limit(
        100, 60, min_interval=0.05, count_denied=True
    ),
    "100/minute count_denied min_interval 50ms rolling_window": Limit(
        100, 60, algorithm="rolling_window", min_interval=0.05, count_denied=True
    ),
    "2/s leaky_bucket max_delay 1.5s": Limit(2, 1, algorithm="leaky_bucket", max_delay=1.5),
    "10/h fixed_window from_first": Limit(10, 3_600, algorithm="fixed_window", from_first=True),
    "10/month": Limit(10, "month"),
    "10/calendar day": Limit(10, "calendar day"),
    "10 PER Month": Limit(10, "month"),
    "10/MINUTE Token_Bucket": Limit(10, 60, algorithm="token_bucket"),
    "1/ms": Limit(1, 0.001),
    "7/d": Limit(7, 86_400),
    "7/1 week": Limit(7, 604_800),
    "3/0.5 hours": Limit(3, 1_800),
    "50000/day packed_window": Limit(50_000, 86_400, algorithm="packed_window"),
    "  4/h  ": Limit(4, 3_600),
}


@pytest.mark.parametrize("text", READ)
def test_reads(text: str) -> None:
    assert Limit.parse(text) == READ[text]


@pytest.mark.parametrize(
    ("units", "seconds"),
    [
        ("ms", 0.001),
        ("s sec secs second seconds", 1),
        ("m min mins minute minutes", 60),
        ("h hour hours", 3_600),
        ("d day days", 86_400),
        ("w week weeks", 604_800),
    ],
)
def test_every_unit_has_its_length(units: str, seconds: float) -> None:
    for unit in units.split():
        assert Limit.parse(f"9/{unit}").period == seconds
        assert Limit.parse(f"9 per 3 {unit}").period == 3 * seconds


def test_a_month_is_not_a_minute() -> None:
    assert Limit.parse("10/month").period == "month"
    assert Limit.parse("10/m").period == 60


# Each hint, and spellings that people use and limen does not read.
HINTS: dict[str, str] = {
    "did you mean 'ms'?": "msec msecs milli millis millisecond milliseconds MSEC",
    "did you mean 'second'?": "seccond secnds",
    "did you mean 'minute'?": "mn mns minut mintues minutely",
    "did you mean 'hour'?": "hr hrs HRS hourly",
    "did you mean 'day'?": "dy dys daily",
    "did you mean 'week'?": "wk wks weekly",
    "did you mean 'month'?": "mo mos mon mons mth mths mnth mnths mont minth monthly Mo",
    "a year has no unit; write '365 days'": "y yr yrs year years yearly annum YR",
    "write microseconds as a fraction of 'ms', such as '0.5ms'": "us usec micros microseconds",
    "": "ns nanosecond weekday weekend fortnight biweekly quarter x",
}


@pytest.mark.parametrize(
    ("word", "hint"), [(word, hint) for hint, words in HINTS.items() for word in words.split()]
)
def test_a_suggested_unit_has_the_meaning_of_the_spelling(word: str, hint: str) -> None:
    with pytest.raises(InvalidLimit) as raised:
        Limit.parse(f"1000/{word}")
    assert re.findall(r" alone(?: \((.*)\))?, got", str(raised.value)) == [hint]


@pytest.mark.parametrize("period", ["2 months", "3mo", "1 mth"])
def test_a_number_of_months_is_not_suggested(period: str) -> None:
    hint = "(months differ in length; write days, or 'month' without a number)"
    with pytest.raises(InvalidLimit, match=re.escape(hint)):
        Limit.parse(f"10/{period}")
    with pytest.raises(InvalidLimit, match=re.escape(hint)):
        Limit.parse(f"10/day min_interval {period}")


MISTAKES: dict[str, str] = {
    "10/month-ish": "at position 9 expected",
    "10/monthish": "did you mean 'month'",
    "10/x": "at position 4 expected a unit",
    "10/fortnight": "expected a unit",
    "0/minute": "quota must be a whole number from 1 to 1,000,000,000, got 0",
    "-1/minute": "at position 1 expected",
    "1.5/minute": "at position 1 expected a whole number",
    "10/0s": "period must be between a microsecond and",
    "10/-1s": "at position 4 expected",
    "10/0.0000001s": "whole number of microseconds",
    "10/2 months": "'month' or 'calendar day' alone (months differ in length",
    "10/calendar week": "expected 'day' after 'calendar'",
    "10": "expected '/' or 'per'",
    "/minute": "at position 1 expected a whole number",
    "": "at position 1 expected a whole number of requests, got nothing more",
    "10/minute;": "got nothing more",
    "10/minute, 5/s": "at position 10 expected",
    "10/minute 5/s": "at position 11 expected",
    "10/minute tokenbucket": "did you mean 'token_bucket'",
    "10/minute gcra": "an algorithm or option",
    "10/minute burst": "a whole number after 'burst'",
    "10/minute burst 0": "burst must be a whole number from 1",
    "10/minute burst 5 burst 6": "'burst' only once",
    "10/minute fixed_window token_bucket": "'algorithm' only once",
    "10/minute burst 5 packed_window": "burst belongs to token_bucket and leaky_bucket",
    "10/month burst 5": "burst belongs to",
    "10/month packed_window": "needs fixed_window",
    "10/minute token_bucket count_denied": "count_denied belongs to packed_window",
    "10/minute fixed_window min_interval 1s": "min_interval belongs to packed_window",
    "10/minute min_interval 61s": "min_interval must be at most the period of 1 minute",
    "10/minute min_interval 5": "expected a unit",
    "10/minute max_delay 1s": "max_delay belongs to leaky_bucket",
    "10/minute from_first": "from_first belongs to fixed_window with a period of seconds",
    "10/month from_first": "from_first belongs to fixed_window with a period of seconds",
    "10001/minute": "add 'packed_window' to say that this is meant",
    "10001/minute rolling_window": "rolling_window holds at most 10,000 units",
    "1000001/day packed_window": "packed_window holds at most 1,000,000 units",
    "900000000/day token_bucket": "at most 90,000,000 units a period",
    "90000000/day burst 900000000": "below 2**53",
    "1/day burst 1000000": "must drain within 3,650 days",
    "10/4000 days": "period must be between",
    "\u0661\u0660/minute": "at position 1 expected",
    "10/minute\N{NO-BREAK SPACE}": "at position 10 expected",
    "1" * 40 + "/minute": "expected a whole number",
    "10/" + "x" * 2_000: "at most 1000 characters",
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text[:30])
def test_a_mistake_is_one_clear_line(text: str) -> None:
    with pytest.raises(InvalidLimit) as caught:
        Limit.parse(text)
    message = str(caught.value)
    assert MISTAKES[text] in message
    assert repr(text[:20])[:-1] in message or len(text) > 1_000
    assert "\n" not in message
    assert len(message) < 400
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, LimenError)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 60), {}, "quota must be a whole number from 1"),
        ((True, 60), {}, "got True"),
        ((1.0, 60), {}, "got 1.0"),
        (("10", 60), {}, "got '10'"),
        ((10**9 + 1, 60), {"algorithm": "fixed_window"}, "quota must be"),
        ((10**5_000, 60), {}, "an integer of"),
        ((10, 0), {}, "period must be"),
        ((10, -1), {}, "period must be"),
        ((10, float("nan")), {}, "period must be"),
        ((10, float("inf")), {}, "period must be"),
        ((10, True), {}, "period must be a number"),
        ((10, "minute"), {}, "Limit.parse reads text"),
        ((10, None), {}, "period must be a number"),
        ((10, 60), {"algorithm": "gcra"}, "unknown algorithm 'gcra'"),
        ((10, 60), {"algorithm": "packed"}, "did you mean 'packed_window'"),
        ((10, 60), {"burst": True}, "burst must be"),
        ((10, 60), {"min_interval": 0}, "min_interval must be"),
        ((10, 60), {"count_denied": 1}, "count_denied must be True or False"),
        ((10, 60), {"name": ""}, "name must be"),
        ((10, 60), {"name": 5}, "name must be"),
    ],
)
def test_bad_arguments_are_one_clear_line(
    arguments: tuple[Any, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidLimit) as caught:
        Limit(*arguments, **options)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


@st.composite
def any_limit(draw: st.DrawFn) -> Limit:
    algorithm = draw(st.sampled_from(list(ALGORITHMS)))
    options: dict[str, Any] = {}
    if algorithm.endswith("bucket"):
        options["burst"] = draw(st.none() | st.integers(1, 10**6))
    period: float | str = draw(st.integers(10**5, 10**12)) / 1e6
    if algorithm == "fixed_window":
        period = draw(st.sampled_from([period, "month", "calendar day"]))
        options["from_first"] = not isinstance(period, str) and draw(st.booleans())
    if algorithm in ("packed_window", "rolling_window"):
        options["min_interval"] = draw(st.none() | st.just(0.000001) | st.just(0.05))
        options["count_denied"] = draw(st.booleans())
    if algorithm == "leaky_bucket":
        options["max_delay"] = draw(st.none() | st.just(0) | st.just(1.25))
    return Limit(draw(st.integers(10**3, 10**4)), period, algorithm=algorithm, **options)


@given(any_limit())
def test_every_limit_reads_back_from_its_own_text(limit: Limit) -> None:
    again = Limit.parse(str(limit))
    assert again == limit
    assert hash(again) == hash(limit)
    assert str(again) == str(limit)


@given(st.text(max_size=40))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        limit = Limit.parse(text)
    except InvalidLimit:
        return
    assert Limit.parse(str(limit)) == limit


def test_prints_as_the_text_it_came_from() -> None:
    assert str(Limit.parse("100 per 2 hours")) == "100 per 2 hours"
    assert str(Limit.parse("  5/10s ")) == "5/10s"
    assert [str(limit) for limit in Limit.parse_all("10/second; 1000/hour")] == [
        "10/second",
        "1000/hour",
    ]


def test_prints_the_shortest_text_when_built_from_numbers() -> None:
    assert str(Limit(100, 60)) == "100/minute"
    assert str(Limit(5, 10)) == "5 per 10 seconds"
    assert str(Limit(10, 0.05)) == "10/50ms"
    assert str(Limit(10, 0.000015)) == "10/0.000015s"
    assert str(Limit(10, 1, burst=20)) == "10/second burst 20"
    assert str(Limit(20_000, 60, algorithm="packed_window")) == "20000/minute packed_window"
    assert repr(Limit(100, 60, name="search")) == "Limit('100/minute', name='search')"


def test_is_immutable_and_hashable() -> None:
    limit = Limit.parse("100/minute")
    with pytest.raises(AttributeError):
        limit.quota = 5  # type: ignore[misc]  # that it fails is the point
    assert {limit: 1}[Limit(100, 60)] == 1


def test_survives_copies_and_pickles() -> None:
    limit = Limit.parse("100 per minute burst 5")
    for again in (copy.copy(limit), copy.deepcopy(limit), pickle.loads(pickle.dumps(limit))):
        assert again == limit
        assert str(again) == str(limit)


def test_identity_leaves_out_every_number_but_the_period() -> None:
    assert Limit(10, 60).identity == Limit(20, 60, min_interval=1).identity
    different = [
        Limit(10, 60),
        Limit(10, 61),
        Limit(10, 60, name="a"),
        Limit(10, 60, name="b"),
        Limit(10, 60, algorithm="token_bucket"),
        Limit(10, 60, algorithm="fixed_window"),
        Limit(10, "month"),
        Limit(10, "calendar day"),
    ]
    assert len({limit.identity for limit in different}) == len(different)


def test_one_limit_expected() -> None:
    with pytest.raises(InvalidLimit, match="expected one limit, got 2"):
        Limit.parse("1/s; 2/s")
    with pytest.raises(InvalidLimit, match="must be text"):
        Limit.parse(5)  # type: ignore[arg-type]  # that it fails is the point


class TestConcurrency:
    def test_is_a_value(self) -> None:
        assert Concurrency(10, lease=30) == Concurrency(10, 30.0)
        assert repr(Concurrency(10, lease=30, name="a")) == "Concurrency(10, lease=30, name='a')"
        assert str(Concurrency(10, lease=30)) == "10 at once, lease 30 seconds"
        assert pickle.loads(pickle.dumps(Concurrency(3, 1))) == Concurrency(3, 1)

    def test_keeps_its_state_when_its_numbers_change(self) -> None:
        assert Concurrency(10, lease=30).identity == Concurrency(5, lease=60).identity
        assert Concurrency(10, lease=30).identity != Concurrency(10, lease=30, name="a").identity

    @pytest.mark.parametrize(
        ("slots", "lease"),
        [(0, 30), (-1, 30), (1.5, 30), (True, 30), (1, 0), (1, "30"), (20_000, 1)],
    )
    def test_refuses_what_makes_no_sense(self, slots: Any, lease: Any) -> None:
        with pytest.raises(InvalidLimit):
            Concurrency(slots, lease=lease)


@pytest.mark.parametrize(
    "text",
    [
        "100/minute",
        "10/s burst 20",
        "5/minute leaky_bucket",
        "7/calendar day",
        "100/minute min_interval 50ms count_denied",
        "1000000/day packed_window",
    ],
)
def test_a_limit_under_another_name_is_the_same_but_for_its_state(text: str) -> None:
    limit = Limit.parse(text)
    other = limit.named("uploads")
    assert (str(other), other.name) == (str(limit.named(None)), "uploads")
    assert other.identity != limit.identity
    assert other.named(None) == limit
