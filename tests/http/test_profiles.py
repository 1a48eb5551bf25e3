"""Every style is read back, for thousands of random decisions, and says what was decided.

draft-11 is read by a parser of others; the rest by small ones that know nothing of how they are
written. What they ought to say is worked out from the decision alone.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen import Limiter
from limen.errors import ConfigurationError
from limen.http import (
    Answer,
    HeaderStyle,
    Quota,
    answer_of,
    headers,
    raw_headers,
    valid_styles,
)
from limen.model import Check, Concurrency, Limit
from limen.testing import ManualClock
from tests.http.histories import History, slots
from tests.http.test_headers import quotas

EVERY: tuple[HeaderStyle, ...] = get_args(HeaderStyle)
OLDER = EVERY[1:]
SEEDS = 400
REQUESTS = 15
NOW = 1_790_000_000.25
NUMBER = r"(0|[1-9][0-9]{0,14})"
MOST_DIGITS = 999_999_999_999_999


class Told(NamedTuple):
    """What a client reads of the one limit that binds, in whatever style."""

    limit: int
    remaining: int
    reset: int | None
    """In seconds from now."""


class Read(NamedTuple):
    """What one style says."""

    told: Told | None
    windows: dict[int, int] | None
    """Quota and seconds of each policy, where the style lists them."""
    retry_after: int | None


# Parsers, one for each form


def number(text: str) -> int:
    assert re.fullmatch(NUMBER, text), text
    return int(text)


def listed(text: str) -> dict[int, int]:
    """Read `10;w=1, 100;w=60`."""
    found: dict[int, int] = {}
    for item in text.split(", "):
        quota, window = map(int, re.fullmatch(rf"{NUMBER};w={NUMBER}", item).groups())  # type: ignore[union-attr]  # fails here if it is none
        assert quota not in found, "the draft: no two policies of the same quota units"
        assert window >= 1
        found[quota] = window
    return found


def read_draft_07(sent: dict[str, str]) -> tuple[Told | None, dict[int, int]]:
    windows = listed(sent.pop("RateLimit-Policy")) if "RateLimit-Policy" in sent else {}
    if "RateLimit" not in sent:
        return None, windows
    text = sent.pop("RateLimit")
    pairs = [pair.split("=") for pair in text.split(", ")]
    assert [key for key, _ in pairs] == ["limit", "remaining", "reset"]
    told = Told(*[number(value) for _, value in pairs])
    # It is a dictionary of structured fields as well.
    parsed: Any = http_sf.parse(text.encode(), tltype="dictionary")
    assert {key: value for key, (value, _) in parsed.items()} == told._asdict()
    return told, windows


def read_draft_03(sent: dict[str, str]) -> tuple[Told | None, dict[int, int]]:
    if "RateLimit-Limit" not in sent:
        return None, {}
    limit, _, policies = sent.pop("RateLimit-Limit").partition(", ")
    windows = listed(policies) if policies else {}
    remaining, reset = sent.pop("RateLimit-Remaining"), sent.pop("RateLimit-Reset")
    return Told(number(limit), number(remaining), number(reset)), windows


def read_x_ratelimit(sent: dict[str, str], start: float) -> Told | None:
    if "X-RateLimit-Limit" not in sent:
        return None
    limit, remaining = sent.pop("X-RateLimit-Limit"), sent.pop("X-RateLimit-Remaining")
    reset = sent.pop("X-RateLimit-Reset", None)
    seconds = None if reset is None else math.floor(number(reset) - start)
    return Told(number(limit), number(remaining), seconds)


def read_draft_11(sent: dict[str, str], answer: Answer) -> tuple[Told | None, dict[int, int]]:
    """Read the item of the limit that binds, which is found by its place."""
    policies: Any = http_sf.parse(sent.pop("RateLimit-Policy", "").encode(), tltype="list")
    limits: Any = http_sf.parse(sent.pop("RateLimit", "").encode(), tltype="list")
    by_name = {name: terms["q"] for name, terms in policies}
    told = [Told(by_name[name], item["r"], item.get("t")) for name, item in limits]
    counted = [
        each for each in answer.quotas if each.allowed == answer.allowed and is_counted(each)
    ]
    at = next((at for at, each in enumerate(counted) if each is binding(answer)), None)
    windows: dict[int, int] = {}
    for _, terms in policies:
        if "w" in terms:
            windows[terms["q"]] = max(terms["w"], windows.get(terms["q"], 0))
    return None if at is None else told[at], windows


def read(answer: Answer, style: HeaderStyle, now: float = NOW) -> Read:
    """Read one style, and see that nothing else was sent, and nothing twice."""
    pairs = headers(answer, [style], now)
    sent = dict(pairs)
    assert len(sent) == len(pairs)
    after = sent.pop("Retry-After", None)
    windows: dict[int, int] | None = None
    if style == "draft-11":
        told, windows = read_draft_11(sent, answer)
    elif style == "draft-07":
        told, windows = read_draft_07(sent)
    elif style == "draft-03":
        told, windows = read_draft_03(sent)
    else:
        told = read_x_ratelimit(sent, now if style == "x-ratelimit" else 0.0)
    assert not sent
    return Read(told, windows, None if after is None else number(after))


# What they ought to say


def is_counted(quota: Quota) -> bool:
    return quota.source in ("store", "local")


def most(limit: Limit | Concurrency) -> int:
    return limit.slots if isinstance(limit, Concurrency) else limit.capacity


def binding(answer: Answer) -> Quota | None:
    """Return the longest to wait for; else the nearest to its limit; of equals the first."""
    found = [quota for quota in answer.quotas if is_counted(quota)]
    found = [quota for quota in found if quota.allowed == answer.allowed]
    if answer.allowed:
        return min(found, key=lambda each: each.remaining / most(each.limit), default=None)
    waits = [math.inf if each.retry_after is None else each.retry_after for each in found]
    return found[waits.index(max(waits))] if found else None


def window_of(limit: Limit | Concurrency) -> int | None:
    """Return in how many whole seconds all of a limit comes back."""
    if isinstance(limit, Concurrency) or limit.period == "month":
        return None
    if limit.period == "calendar day":
        return 86_400
    # In whole microseconds, so that nothing is lost before it is rounded up.
    return math.ceil(math.ceil(limit.period_us * limit.capacity / limit.quota) / 1_000_000)


def expected(answer: Answer) -> Told | None:
    quota = binding(answer)
    if quota is None:
        return None
    reset: int | None
    if not quota.allowed and quota.retry_after is not None:
        reset = max(1, math.ceil(quota.retry_after))
    elif isinstance(quota.limit, Concurrency):
        reset = None
    else:
        reset = max(0, math.ceil(quota.reset_after)) or window_of(quota.limit)
    whole = most(quota.limit)
    return Told(whole, min(max(quota.remaining, 0), whole), reset and min(reset, MOST_DIGITS))


def see(answer: Answer, style: HeaderStyle, now: float = NOW) -> Read:
    """See that a style says what was decided; return what it says."""
    found, wanted = read(answer, style, now), expected(answer)
    if style in ("draft-07", "draft-03") and wanted is not None and wanted.reset is None:
        wanted = None  # these drafts require a reset
    assert found.told == wanted, (style, answer)
    if found.told is not None:
        assert 0 <= found.told.remaining <= found.told.limit
        assert found.told.reset is None or found.told.reset >= 0
    if not answer.allowed and answer.retry_after is not None:
        assert found.retry_after == min(max(1, math.ceil(answer.retry_after)), MOST_DIGITS)
    else:
        assert found.retry_after is None
    is_listed = found.windows is not None and (style != "draft-03" or found.told is not None)
    if is_listed and len(answer.quotas) <= 16:
        windows: dict[int, int] = {}
        for quota in answer.quotas:
            window = window_of(quota.limit)
            if window is not None:
                windows[most(quota.limit)] = max(window, windows.get(most(quota.limit), 0))
        assert found.windows == windows
    return found


def together() -> list[tuple[HeaderStyle, ...]]:
    """Return every list of styles that may go together, each in one order."""
    found = []
    for size in range(len(EVERY) + 1):
        for styles in itertools.combinations(EVERY, size):
            try:
                found.append(valid_styles(styles))
            except ConfigurationError:
                assert {"draft-11", "draft-07"} <= {*styles} or len(
                    {"x-ratelimit", "x-ratelimit-delta"} & {*styles}
                ) == 2
    return found


TOGETHER = together()


def alone(answer: Answer, styles: Iterable[HeaderStyle], now: float) -> list[tuple[str, str]]:
    """Return the headers of styles that are written one by one."""
    found = [
        pair
        for style in styles
        for pair in headers(answer, [style], now)
        if pair[0] != "Retry-After"
    ]
    return found + headers(answer, [])


# What is seen


def test_there_are_eighteen_ways_to_be_told() -> None:
    assert len(TOGETHER) == 3 * 2 * 3


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
def test_every_style_says_what_was_decided(first: int) -> None:
    of = random.Random(first)
    refused = never = 0
    for seed in range(first, first + 100):
        history = History(seed)
        for _ in range(REQUESTS):
            history.pause()
            decision = history.ask()
            answer = answer_of(decision)
            now = history.clock.time_ns() / 1e9
            for style in EVERY:
                found = see(answer, style, now)
                if found.told is not None:
                    # Of the decision itself, and not only of its parts.
                    assert found.told[:2] == (most(decision.limit), decision.remaining)
                    if found.retry_after is not None:
                        assert found.told.reset == found.retry_after
            styles = of.choice(TOGETHER)
            sent = headers(answer, styles, now)
            assert sent == alone(answer, styles, now)
            assert len(dict(sent)) == len(sent)
            assert raw_headers(answer, styles, now) == [
                (name.lower().encode(), value.encode()) for name, value in sent
            ]
            refused += not decision.allowed
            never += decision.retry_after is None
    assert refused > 200
    assert never > 10


def test_every_style_says_what_was_decided_of_slots() -> None:
    refused = 0
    for seed in range(40):
        for decision, clock, _, _ in slots(seed, 12):
            for style in EVERY:
                found = see(answer_of(decision), style, clock.time_ns() / 1e9)
                has_reset = style in ("draft-07", "draft-03")
                assert (found.told is None) == (has_reset and decision.allowed)
            refused += not decision.allowed
    assert refused > 50


@pytest.mark.parametrize("style", OLDER)
def test_who_waits_exactly_until_the_reset_is_admitted(style: HeaderStyle) -> None:
    waits = 0
    for seed in range(100):
        history = History(seed)
        for _ in range(REQUESTS):
            decision = history.ask()
            if decision.allowed or decision.retry_after is None:
                continue
            told = read(answer_of(decision), style, history.clock.time_ns() / 1e9).told
            assert told is not None
            assert told.reset is not None
            history.clock.advance(told.reset)
            assert history.again().allowed
            waits += 1
    assert waits > 50


@given(st.lists(quotas(), max_size=30), st.sampled_from(TOGETHER))
def test_whatever_the_answer_every_style_can_be_read(
    found: list[Quota], styles: tuple[HeaderStyle, ...]
) -> None:
    refusing = [quota for quota in found if not quota.allowed]
    waits = [quota.retry_after for quota in refusing]
    retry_after = None if None in waits else max([wait for wait in waits if wait], default=0.0)
    answer = Answer(not refusing, tuple(found), retry_after)
    for style in OLDER:
        if style != "x-ratelimit":  # whose reset has no more digits than a field may have
            see(answer, style)
    sent = headers(answer, styles, NOW)
    assert sent == alone(answer, styles, NOW)
    assert len(dict(sent)) == len(sent)
    for name, value in sent:
        assert len(value) <= 2_600
        # No name of a limit, however odd, is in what older clients read.
        assert "draft-11" in styles or re.fullmatch(r"[0-9a-z=;, ]+", value), (name, value)


@pytest.mark.parametrize(
    ("limits", "policy"),
    [
        (["10/s", "100/minute", "1000/hour"], "10;w=1, 100;w=60, 1000;w=3600"),
        # Two of the same number: the longer window is the stricter one.
        (["10/s", "10/minute", "99/hour"], "10;w=60, 99;w=3600"),
        (["10/minute token_bucket", "10/s"], "10;w=60"),
        (["10/s burst 20"], "20;w=2"),
        (["7/s", "1000/month"], "7;w=1"),
        (["1000/month"], ""),
    ],
)
def test_policies_are_listed_as_older_drafts_have_them(limits: list[str], policy: str) -> None:
    answer = answer_of(Limiter(clock=ManualClock()).check("key", *limits))
    assert dict(headers(answer, ["draft-07"])).get("RateLimit-Policy", "") == policy
    limit, _, listed = dict(headers(answer, ["draft-03"]))["RateLimit-Limit"].partition(", ")
    assert listed == policy
    assert answer.binding is not None
    assert limit == str(most(answer.binding.limit))


def test_many_policies_are_cut_in_every_style() -> None:
    parts = [Quota(f"n{at}", Limit(1_000 + at, 60), True, at, 0.0, 9.0) for at in range(40)]
    answer = Answer(True, tuple(parts))
    for style in ("draft-07", "draft-03"):
        windows = read(answer, style).windows
        assert windows is not None
        assert list(windows) == [1_000 + at for at in range(16)]


def test_what_nobody_counted_is_not_promised_by_older_drafts() -> None:
    with Limiter("redis://127.0.0.1:1", on_error="closed") as limiter:
        answer = answer_of(limiter.check("key", "9/day"))
    assert headers(answer, ["draft-07"]) == [
        ("RateLimit-Policy", "9;w=86400"),
        ("Retry-After", "1"),
    ]
    assert headers(answer, ["draft-03"]) == [("Retry-After", "1")]


def test_without_a_reset_older_drafts_say_nothing() -> None:
    limiter = Limiter()
    taken = answer_of(limiter.slot("key", Concurrency(3, lease=30)).acquire())
    untouched = answer_of(limiter.peek("key", "5/month"))
    free = answer_of(limiter.decide(Check(Limit(5, "month"), "key", 0)))
    for answer in (taken, untouched, free):
        assert headers(answer, ["draft-07", "draft-03"]) == []
