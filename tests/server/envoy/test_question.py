"""What Envoy asks: what makes no sense charges nobody, and what does is counted as Envoy says."""

from __future__ import annotations

from typing import Any

import pytest

from limen.errors import InvalidInput
from limen.rules import parse_text
from limen.server.envoy.schema import RateLimitResponse
from tests.server.envoy.conftest import Alone, Make
from tests.server.envoy.describing import (
    DAY,
    HOUR,
    MINUTE,
    MONTH,
    OK,
    OVER_LIMIT,
    SECOND,
    YEAR,
    RateLimitRequest,
    asked,
    codes,
    described,
    headers,
    remaining,
    request,
)

UNLIMITED = 4_294_967_295
USER = {"user": "1"}
NEGATIVE = described(USER)
NEGATIVE.is_negative_hits = True


def raw(*descriptors: Any, **more: Any) -> bytes:
    found: bytes = request(*descriptors, **more).SerializeToString()
    return found


# Columns: what is sent, and what is said of it.
BAD = {
    "not protobuf": (b"\xff", "not a RateLimitRequest"),
    "another message": (b"\x0a\x02\xff\xff", "not a RateLimitRequest"),
    "cut short": (raw(USER)[:-2], "not a RateLimitRequest"),
    "nothing": (b"", "the domain is empty"),
    "no domain": (raw(USER, domain=""), "the domain is empty"),
    "no descriptors": (raw(), "expected 1 to 100 descriptors, got 0"),
    "101 descriptors": (raw(*[USER] * 101), "expected 1 to 100 descriptors, got 101"),
    "10,000 descriptors": (raw(*[USER] * 10_000), "expected 1 to 100 descriptors, got 10,000"),
    "4 MB": (raw({"user": "x" * 4 * 2**20}, described({})), "descriptors[1]: expected 1 to 64"),
    "no entries": (raw(USER, described({})), r"descriptors[1]: expected 1 to 64 entries, got 0"),
    "65 entries": (raw({f"k{n}": "v" for n in range(65)}), "1 to 64 entries, got 65"),
    "an empty key": (raw({"": "v"}), "descriptors[0]: an entry has an empty key"),
    "an empty key behind others": (raw(USER, {"a": "b", "": "v"}), "descriptors[1]: an entry"),
    "hits to be given back": (raw(USER, NEGATIVE), "descriptors[1]: is_negative_hits"),
    "no unit": (raw(USER, described(USER, None, (5, 0))), "descriptors[1]: limit: there is no"),
    "a unit that is not there": (raw(described(USER, None, (5, 7))), "no unit with the number 7"),
    "a unit below all": (raw(described(USER, None, (5, -1))), "no unit with the number -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_sense_charges_nobody(alone: Alone, name: str) -> None:
    sent, said = BAD[name]
    for _ in range(2):
        with pytest.raises(InvalidInput) as caught:
            alone.run(alone.service.envoy.should_limit(sent))
        assert said in str(caught.value)
        assert len(str(caught.value)) < 300
    assert remaining(asked(alone, described(USER, 0))) == [5]
    assert alone.service.watch.refused == 0


def test_more_limits_than_one_call_takes_are_refused(make: Make) -> None:
    rules = "rules: [{name: a, key: [user], limits: [1/s, 1/minute]}]"
    asker = make(rules)
    assert len(asked(asker, *[{"user": str(n)} for n in range(50)]).statuses) == 50
    # An error would let it pass, where Envoy lets pass what nobody answers for.
    refused = asked(asker, *[{"user": f"x{n}"} for n in range(51)])
    assert (refused.overall_code, {status.code for status in refused.statuses}) == (2, {2})
    assert len(refused.statuses) == 51
    assert asked(asker, {"user": "x1"}).overall_code == 1, "nobody was charged"


def test_fields_that_a_newer_envoy_sends_are_skipped(alone: Alone) -> None:
    newer = raw(USER) + b"\x9a\x3e\x03new"
    assert alone.run(alone.service.envoy.should_limit(newer))


def test_an_unknown_domain_or_descriptor_is_allowed_and_counted_nowhere(alone: Alone) -> None:
    for response in (
        asked(alone, USER, domain="elsewhere"),
        asked(alone, {"unheard": "of"}),
        asked(alone, {"user": "1", "path": "/"}),
    ):
        assert codes(response) == [OK, OK]
        [status] = response.statuses
        assert not status.HasField("current_limit")
        assert not status.HasField("duration_until_reset")
        assert status.limit_remaining == 0
        assert headers(response) == {}


# Hits


@pytest.mark.parametrize(
    ("of_request", "of_descriptor", "left"),
    [(0, None, 4), (1, None, 4), (3, None, 2), (0, 2, 3), (3, 2, 3), (3, 0, 5), (0, 0, 5)],
)
def test_hits_are_those_of_the_descriptor_else_those_of_the_request_else_one(
    alone: Alone, of_request: int, of_descriptor: int | None, left: int
) -> None:
    response = asked(alone, described(USER, of_descriptor), hits=of_request)
    assert remaining(response) == [left]
    assert remaining(asked(alone, described(USER, 0))) == [left]


def test_who_only_looks_pays_nothing_whatever_a_rule_takes(alone: Alone) -> None:
    for entries in ({"paid": "1"}, {"by": "1", "tokens": "7"}):
        first = asked(alone, described(entries, 0))
        assert remaining(first) == remaining(asked(alone, described(entries, 0)))
    assert remaining(asked(alone, {"paid": "1"})) == [7]
    assert remaining(asked(alone, described({"paid": "1"}, 0))) == [7]
    assert remaining(asked(alone, {"by": "1", "tokens": "7"})) == [92]


def test_a_look_at_what_is_used_up_refuses_nobody(alone: Alone) -> None:
    asked(alone, described(USER, 5))
    response = asked(alone, described(USER, 0))
    assert (codes(response), remaining(response)) == ([OK, OK], [0])
    assert codes(asked(alone, USER)) == [OVER_LIMIT, OVER_LIMIT]


def test_a_look_at_a_limit_of_nothing_is_allowed(alone: Alone) -> None:
    blocked = {"agent": "robot"}
    override = (0, HOUR)
    assert codes(asked(alone, described(blocked, 0))) == [OK, OK]
    assert codes(asked(alone, described(USER, 0, override))) == [OK, OK]
    assert codes(asked(alone, blocked)) == [OVER_LIMIT, OVER_LIMIT]
    # The other descriptor pays; the look at the block does not stop it.
    response = asked(alone, described(blocked, 0), USER)
    assert (codes(response), remaining(response)) == ([OK, OK, OK], [0, 4])


def test_one_descriptor_may_look_while_another_pays(alone: Alone) -> None:
    assert remaining(asked(alone, described({"user": "a"}, 0), {"user": "b"})) == [5, 4]
    assert remaining(asked(alone, described(USER, 0), described(USER, 2))) == [3, 3]


def test_the_same_descriptor_twice_is_charged_the_sum(alone: Alone) -> None:
    assert remaining(asked(alone, USER, USER, {"user": "2"})) == [3, 3, 4]
    assert remaining(asked(alone, described(USER, 2), USER)) == [0, 0]
    response = asked(alone, described({"user": "2"}, 3), described({"user": "2"}, 2))
    assert codes(response) == [OVER_LIMIT, OVER_LIMIT, OVER_LIMIT]
    assert remaining(asked(alone, described({"user": "2"}, 0))) == [4]


@pytest.mark.parametrize(
    "descriptors",
    [
        [described(USER, 10**9 + 1)],
        [described(USER, 2**64 - 1)],
        [described(USER, 2**64 - 1), described(USER, 2**64 - 1)],
        [described(USER, 10**9)] * 2,
        [described(USER, 2**64 - 1, (5, MINUTE))],
    ],
)
def test_more_hits_than_anything_holds_are_refused(alone: Alone, descriptors: list[Any]) -> None:
    response = asked(alone, {"user": "2"}, *descriptors)
    assert codes(response) == [OVER_LIMIT, OK, *[OVER_LIMIT] * len(descriptors)]
    looks = [described(USER, 0), described({"user": "2"}, 0)]
    assert remaining(asked(alone, *looks)) == [5, 5]
    assert codes(asked(alone, USER, hits=2**32 - 1)) == [OVER_LIMIT, OVER_LIMIT]


@pytest.mark.parametrize("cost", ["many", "-1", "1e3", "9" * 30, "1.5", "٣"])
def test_a_cost_that_is_none_is_refused(alone: Alone, cost: str) -> None:
    """An error would let it pass, where Envoy lets pass what nobody answers for."""
    response = asked(alone, USER, {"by": "1", "tokens": cost})
    assert codes(response) == [OVER_LIMIT, OK, OVER_LIMIT]
    assert remaining(asked(alone, described(USER, 0))) == [5]


# All or nothing


def test_a_refused_request_charges_none_of_its_descriptors(alone: Alone) -> None:
    asked(alone, described({"user": "full"}, 5))
    response = asked(alone, {"user": "a"}, {"user": "full"}, {"path": "/"}, {"unheard": "of"})
    assert codes(response) == [OVER_LIMIT, OK, OVER_LIMIT, OK, OK]
    looks = [described({"user": "a"}, 0), described({"path": "/"}, 0)]
    assert remaining(asked(alone, *looks)) == [5, 3]


def test_a_block_refuses_all_and_charges_none(alone: Alone) -> None:
    response = asked(alone, USER, {"agent": "robot"})
    assert codes(response) == [OVER_LIMIT, OK, OVER_LIMIT]
    assert [status.HasField("current_limit") for status in response.statuses] == [True, False]
    assert remaining(asked(alone, described(USER, 0))) == [5]
    assert codes(asked(alone, {"agent": "human"})) == [OK, OK]


@pytest.mark.parametrize("limit", [None, (0, HOUR)])
def test_limit_and_remaining_are_told_beside_a_limit_of_nothing(
    alone: Alone, limit: tuple[int, int] | None
) -> None:
    asked(alone, described(USER, 2))
    nothing = described({"agent": "robot"}, None, limit)
    response = asked(alone, USER, nothing, {"user": "2"}, described({"path": "/"}, 2), USER)
    assert codes(response) == [OVER_LIMIT, OK, OVER_LIMIT, OK, OK, OK]
    assert remaining(response) == [3, 0, 5, 3, 3]
    assert [each.current_limit.requests_per_unit for each in response.statuses] == [5, 0, 5, 3, 5]
    assert remaining(asked(alone, described(USER, 0))) == [3], "nobody was charged"
    over = asked(alone, described(USER, 4), nothing)
    assert (codes(over), remaining(over)) == ([OVER_LIMIT] * 3, [3, 0])


def test_of_several_limits_on_one_descriptor_the_nearest_is_told(alone: Alone) -> None:
    response = asked(alone, {"path": "/"}, {"both": "x"})
    found = [
        (status.current_limit.requests_per_unit, status.current_limit.unit, status.limit_remaining)
        for status in response.statuses
    ]
    assert found == [(3, HOUR, 2), (3, MINUTE, 2)]
    for _ in range(2):
        asked(alone, {"both": "x"})
    [status] = asked(alone, {"both": "x"}).statuses
    assert (status.code, status.current_limit.unit) == (OVER_LIMIT, MINUTE)
    assert 0 < status.duration_until_reset.seconds <= 60
    # The rule that would have let it pass was not charged.
    facts = {"domain": "d", "descriptor": "both", "both": "x"}
    parts = alone.run(alone.engine.peek(facts, 0)).parts
    assert [part.remaining for part in parts] == [5, 0]


# Who is not counted


def test_the_unlimited_are_told_so(alone: Alone) -> None:
    response = asked(alone, {"plan": "gold"}, {"user": "friend"}, {"plan": "other"})
    assert codes(response) == [OK, OK, OK, OK]
    assert remaining(response) == [UNLIMITED, UNLIMITED, 1]
    assert [status.HasField("current_limit") for status in response.statuses] == [
        False,
        False,
        True,
    ]


def test_shadows_are_not_told(alone: Alone) -> None:
    for _ in range(3):
        response = asked(alone, {"seen": "x"}, {"watched": "gold"}, {"watched": "other"})
        assert codes(response) == [OK, OK, OK, OK]
        assert remaining(response) == [0, 0, 0]
        assert not any(status.HasField("current_limit") for status in response.statuses)
        assert headers(response) == {}


def test_a_rule_that_needs_a_slot_is_not_asked(alone: Alone) -> None:
    for _ in range(3):
        assert codes(asked(alone, {"slot": "x"})) == [OK, OK]


# Limits that a descriptor brings along


@pytest.mark.parametrize(
    ("unit", "longest"),
    [
        (SECOND, 1),
        (MINUTE, 60),
        (HOUR, 3_600),
        (DAY, 86_400),
        (MONTH, 30 * 86_400),
        (YEAR, 365 * 86_400),
    ],
)
def test_a_limit_of_its_own_holds_instead_of_the_rules(
    alone: Alone, unit: int, longest: int
) -> None:
    response = asked(alone, described(USER, 3, (7, unit)))
    [status] = response.statuses
    assert (status.code, status.limit_remaining) == (OK, 4)
    assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (7, unit)
    assert 0 < status.duration_until_reset.seconds <= longest
    assert remaining(asked(alone, described(USER, 0))) == [5]


def test_a_limit_of_its_own_of_nothing_refuses(alone: Alone) -> None:
    response = asked(alone, USER, described({"any": "thing"}, None, (0, MINUTE)))
    assert codes(response) == [OVER_LIMIT, OK, OVER_LIMIT]
    assert remaining(asked(alone, described(USER, 0))) == [5]


@pytest.mark.parametrize("limit", [(0, HOUR), (1, HOUR), (1, 0)])
def test_a_limit_of_its_own_is_ignored_in_an_unknown_domain(
    alone: Alone, limit: tuple[int, int]
) -> None:
    for _ in range(3):
        response = asked(alone, described(USER, None, limit), domain="elsewhere")
        assert (codes(response), remaining(response)) == ([OK, OK], [0])
        assert not response.statuses[0].HasField("current_limit")
    known = [asked(alone, described(USER, None, (1, HOUR))).overall_code for _ in range(2)]
    assert known == [OK, OVER_LIMIT]


def test_a_limit_of_its_own_counts_each_list_of_entries_apart(alone: Alone) -> None:
    lists: list[Any] = [
        [("a", "1"), ("b", "2")],
        [("b", "2"), ("a", "1")],
        [("a", "1")],
        [("a", "1"), ("a", "1")],
        [("a", '1","b","2')],
    ]
    for entries in lists:
        assert remaining(asked(alone, described(entries, None, (9, DAY)))) == [8]
    same = described(lists[0], None, (9, DAY))
    assert remaining(asked(alone, same)) == [7]
    alone.engine.use(parse_text("rules: [{name: a, key: [user], limits: 1/day}]"))
    assert remaining(asked(alone, same, domain="other")) == [8], "all domains are known"


def test_a_limit_of_its_own_may_be_looked_at_and_may_be_larger_than_any(alone: Alone) -> None:
    look = described(USER, 0, (7, DAY))
    assert remaining(asked(alone, look)) == [7]
    assert remaining(asked(alone, described(USER, 10**9, (2**32 - 1, DAY)))) == [0]


# Values of all kinds


def test_bytes_that_are_no_text_are_counted_apart_too(alone: Alone) -> None:
    """Envoy puts into an entry what a client sent in a header."""
    for value, left in ((b"\xff", 4), (b"\xff", 3), (b"\xfe", 4), (b"\xc3\xbf", 4)):
        sent = raw({"user": "????"[: len(value)]}).replace(b"????"[: len(value)], value)
        answer = alone.run(alone.service.envoy.should_limit(sent))
        assert remaining(RateLimitResponse.FromString(answer)) == [left]


@pytest.mark.parametrize("value", ["", "∅", "\0", "a|b=c", "𝄞", "x" * 50_000, "{1}", "\r\n"])
def test_every_value_is_counted_apart(alone: Alone, value: str) -> None:
    assert remaining(asked(alone, {"user": value}, {"user": "1"})) == [4, 4]
    assert remaining(asked(alone, {"user": value})) == [3]
    own = described({"user": value}, None, (5, DAY))
    assert remaining(asked(alone, own)) == [4]


# What is remembered


def test_other_rules_are_followed_at_once(alone: Alone) -> None:
    assert remaining(asked(alone, USER)) == [4]
    alone.service.engine.use(parse_text("rules: [{name: user, key: [user], limits: 3/day}]"))
    assert remaining(asked(alone, USER)) == [1]
    alone.service.engine.use(parse_text("rules: []"))
    [status] = asked(alone, USER).statuses
    assert not status.HasField("current_limit")


def test_a_request_that_is_remembered_is_charged_each_time(alone: Alone) -> None:
    sent = raw(USER, {"path": "/"})
    lefts = []
    for _ in range(4):
        answer = alone.run(alone.service.envoy.should_limit(sent))
        lefts.append(remaining(RateLimitResponse.FromString(answer)))
    assert lefts == [[4, 2], [3, 1], [2, 0], [2, 0]]


def test_the_numbers_of_the_messages_are_envoys() -> None:
    """Bytes from Envoy's own definitions, written down once."""
    sent = bytes.fromhex(
        "0a0164"  # domain: "d"
        "121f"  # descriptors
        "0a090a0475736572120131"  # entries: user, 1
        "1204080a1002"  # limit: 10 a minute
        "1a020803"  # hits_addend: 3
        "0a080a036162631201" + "7a"  # another entry: abc, z
        "1802"  # hits_addend: 2
    )
    found = RateLimitRequest.FromString(sent)
    assert found == request(
        described([("user", "1"), ("abc", "z")], 3, (10, MINUTE)), domain="d", hits=2
    )
