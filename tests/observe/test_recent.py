"""Decisions of late: which are wanted, which are kept, and how they are found again."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen.errors import ConfigurationError
from limen.observe.hiding import cut, hashed, is_hidden, plain
from limen.observe.recent import MAX_BYTES, DecisionRecord, Recent, decode, encode, found

LONG = "k" * 300


def seen(**changed: Any) -> DecisionRecord:
    """Return a decision that is refused, but for what is changed."""
    fields: dict[str, Any] = {
        "at": 1_000.25,
        "id": "r1",
        "allowed": False,
        "rule": "login",
        "limit": "5/minute",
        "key": "user:1",
        "remaining": 0,
        "retry_after": 1.5,
        "cost": 1,
        "reason": "over 5/minute",
        "version": "17",
        "source": "store",
        "fault": "",
        "instance": "a1",
        "surface": "check",
        **changed,
    }
    return DecisionRecord(**fields)


def wanted(kept: Recent, times: int) -> int:
    return sum(kept.wants_passed() for _ in range(times))


def refuse(kept: Recent, key: str, rule: str = "login") -> None:
    """Refuse as the service does."""
    if kept.wants_refused(rule, key):
        kept.add(seen(key=key, rule=rule))


# which are wanted


def test_every_refused_one_is_wanted_until_the_second_is_full() -> None:
    kept = Recent(a_second=5)
    for number in range(5):
        assert kept.wants_refused("rule", str(number))
        kept.add(seen(key=str(number)))
    assert not kept.wants_refused("rule", "beyond")
    kept.add(seen(key="beyond"))
    assert [one.key for one in kept.tick()] == ["0", "1", "2", "3", "4"]
    assert kept.wants_refused("rule", "beyond")


@pytest.mark.parametrize(("sample", "wants"), [(0.0, 0), (-1.0, 0), (1.0, 1_000), (2.0, 1_000)])
def test_of_the_allowed_none_or_all_are_wanted(sample: float, wants: int) -> None:
    assert wanted(Recent(a_second=2, sample=sample), 1_000) == wants


@pytest.mark.parametrize("sample", [0.5, 0.01])
def test_of_the_allowed_a_share_is_wanted(sample: float) -> None:
    count = 200_000
    kept = Recent(sample=sample)
    deviation = (count * sample * (1 - sample)) ** 0.5
    assert abs(wanted(kept, count) - count * sample) < 7 * deviation


def test_a_second_that_begins_does_not_change_the_share() -> None:
    """Also where there are fewer decisions in a second than it takes to want one."""
    kept = Recent(sample=0.01)
    total = 0
    for _ in range(10_000):
        total += wanted(kept, 20)
        kept.tick()
    assert abs(total - 2_000) < 7 * 2_000**0.5


def test_a_sample_that_hardly_ever_comes_is_no_error() -> None:
    assert wanted(Recent(sample=5e-324), 100) == 0


def test_the_allowed_leave_half_of_a_second_to_the_refused() -> None:
    kept = Recent(a_second=10, sample=1.0)
    for number in range(50):
        if kept.wants_passed():
            kept.add(seen(allowed=True, key=str(number)))
    for number in range(50):
        refuse(kept, str(number))
    assert [one.allowed for one in kept.tick()] == [True] * 5 + [False] * 5


def test_what_a_program_draws_from_the_shared_generator_is_left_alone() -> None:
    random.seed(7)
    state = random.getstate()
    kept = Recent(sample=0.5)
    for _ in range(1_000):
        refuse(kept, "k")
    wanted(kept, 1_000)
    kept.tick()
    assert random.getstate() == state


# which are kept


def test_of_one_rule_and_key_only_a_few_are_kept_in_a_second() -> None:
    kept = Recent(of_one=3)
    for key in ("a", "b"):
        for rule in ("one", "two"):
            for _ in range(10):
                refuse(kept, key, rule)
    assert len(kept.tick()) == 12
    refuse(kept, "a", "one")
    assert len(kept.tick()) == 1


def test_one_key_that_floods_does_not_crowd_out_the_others() -> None:
    kept = Recent()
    for number in range(100_000):
        key = f"other {number // 10_000}" if number % 25 == 12 else "flood"
        refuse(kept, key)
    keys = [one.key or "" for one in kept.tick()]
    assert sorted(set(keys)) == ["flood", *[f"other {n}" for n in range(10)]]
    assert keys.count("flood") == 3


def test_no_more_are_kept_than_there_is_room_for_and_the_oldest_go() -> None:
    kept = Recent(most=10)
    for number in range(25):
        kept.add(seen(at=float(number), key=str(number)))
    assert [one.key for one in kept.newest()] == [str(number) for number in range(24, 14, -1)]


def test_without_a_tick_nothing_piles_up() -> None:
    kept = Recent(most=10, a_second=100)
    for number in range(10_000):
        refuse(kept, str(number))
        kept.add(seen(key=str(number)))
    assert len(kept._times) <= 100
    assert len(kept.tick()) == 100
    assert kept.tick() == []


# how they are found


def test_they_are_found_by_each_field_and_all_together() -> None:
    kept = Recent()
    kept.add(seen(at=1.0, id="1", key="a", rule="x"))
    kept.add(seen(at=2.0, id="2", key="a", rule="y", allowed=True))
    kept.add(seen(at=3.0, id="3", key="b", rule="x"))
    kept.add(seen(at=4.0, id="4", key=None, rule=None, allowed=True))

    def ids(**sought: Any) -> list[str]:
        return [one.id for one in found(kept.newest(), **sought)]

    assert ids() == ["4", "3", "2", "1"]
    assert ids(key="a") == ["2", "1"]
    assert ids(id="3") == ["3"]
    assert ids(rule="x") == ["3", "1"]
    assert ids(allowed=True) == ["4", "2"]
    assert ids(allowed=False) == ["3", "1"]
    assert ids(key="a", rule="x", allowed=False) == ["1"]
    assert ids(key="a", id="3") == []
    assert ids(key="") == []
    assert ids(most=2) == ["4", "3"]
    assert ids(most=0) == ids(most=-1) == []


def test_of_all_instances_the_newest_are_first_and_none_comes_twice() -> None:
    mine = seen(at=5.0, id="mine")
    others = [seen(at=float(at), id=str(at)) for at in (3, 9, 1)]
    told = decode(encode(mine))
    assert told is not None
    merged = found([mine, *others, told])
    assert [one.id for one in merged] == ["9", "mine", "3", "1"]


def test_what_is_long_is_cut_with_a_mark_and_found_by_the_whole_of_it() -> None:
    kept = Recent()
    kept.add(seen(id=LONG, key=LONG + "1"))
    kept.add(seen(id="x", key=LONG + "2"))
    assert [len(one.key or "") for one in kept.newest()] == [256, 256]
    assert all("…" in (one.key or "") for one in kept.newest())
    assert [one.id for one in found(kept.newest(), key=LONG + "2")] == ["x"]
    assert len(found(kept.newest(), id=LONG)) == 1
    assert found(kept.newest(), key=LONG) == []
    cut_key = found(kept.newest(), id="x")[0].key
    assert [one.id for one in found(kept.newest(), key=cut_key)] == ["x"]


def test_half_a_pair_of_surrogates_can_be_kept_told_and_found() -> None:
    kept = Recent()
    kept.add(seen(key="a\ud800"))
    [one] = found(kept.newest(), key="a\ud800")
    assert decode(encode(one)) == one
    assert decode(encode(seen(reason="\udfff")))


# how they are told


def test_what_is_told_is_read_as_it_was() -> None:
    for one in (seen(), seen(shadow=True), seen(rule=None, limit=None, key=None, remaining=None)):
        assert decode(encode(one)) == one


@pytest.mark.parametrize("letter", ["k", "\0", "é", "😀", '"', "\ud800"])
def test_whatever_users_send_what_is_told_fits_and_is_found(letter: str) -> None:
    kept = Recent()
    for length in (1, 63, 64, 65, 200, 256, 257, 5_000):
        kept.add(seen(key=letter * length, id=letter * length))
    for length in (1, 63, 64, 65, 200, 256, 257, 5_000):
        sought = letter * length
        [mine] = found(kept.newest(), key=sought)
        written = encode(mine)
        assert len(written) <= MAX_BYTES
        read = decode(written)
        assert read is not None
        assert found([read], key=sought, id=sought) == [read]
        assert not found([read], key=sought + letter)


@pytest.mark.parametrize(
    "poison",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 2_000,
        b" " * 3_000,
        b'{"at": 1.0}',
        encode(seen()) + b" " * MAX_BYTES,
        encode(seen()).replace(b"1000.25", b"1e999"),
        encode(seen()).replace(b"1000.25", b"1e300"),
        encode(seen()).replace(b"1000.25", b"-1"),
        encode(seen()).replace(b"1000.25", b"true"),
        encode(seen()).replace(b'"r1"', b"5"),
        encode(seen()).replace(b'"r1"', b'"' + b"x" * 257 + b'"'),
        encode(seen()).replace(b'"cost":1', b'"cost":1' + b"0" * 100),
        encode(seen())[:-1] + b',"more":' + b"[" * 1_500,
    ],
)
def test_what_is_no_decision_is_not_believed(poison: bytes) -> None:
    assert decode(encode(seen())) is not None
    assert decode(poison) is None


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    decode(data)


@given(st.text(), st.integers(64, 300))
def test_a_text_that_was_cut_is_never_longer_and_stays_as_it_is(text: str, most: int) -> None:
    once = cut(text * 20, most)
    assert len(once) <= most
    assert cut(once, most) == once
    assert msgspec.json.decode(msgspec.json.encode(once)) == once


# keys that are hidden


def test_a_plain_key_stays_and_a_hashed_one_tells_nothing() -> None:
    hide = hashed(b"secret")
    assert plain("user:1") == "user:1"
    assert is_hidden(hide("user:1"))
    assert hide("user:1") == hide("user:1") == hashed(b"secret")("user:1")
    assert hide("user:1") != hide("user:2")
    assert hide("user:1") != hashed(b"another")("user:1")
    assert not is_hidden("user:1")
    assert not is_hidden(hide("user:1") + "0")


def test_a_key_that_was_cut_is_hidden_as_the_whole_of_it() -> None:
    hide = hashed(b"s" * 1_000)
    assert hide(cut(LONG)) == hide(LONG) != hide(LONG + "1")
    assert is_hidden(hide("\ud800"))


def test_without_a_secret_nothing_is_hashed() -> None:
    with pytest.raises(ConfigurationError, match="takes a secret"):
        hashed(b"")
