"""Slices of time: short ones become long ones, old ones go, and what others lack is known."""

from __future__ import annotations

from limen.observe.packed import decode
from limen.observe.ring import LONG_KEPT_S, LONG_S, SHORT_KEPT_S, SHORT_S, Ring, start_of
from limen.observe.slices import RuleSlice, Slice

MINUTE = 1_700_000_040
"""The start of one."""


def slice_at(start: int, allowed: int = 1) -> Slice:
    rules = {"rule": RuleSlice(allowed, top_allowed=(("key", allowed),))}
    return Slice(start, SHORT_S, allowed, 0, 0, (), (), rules)


def allowed(ring: Ring, seconds: int, start: int) -> int | None:
    written = ring.get(seconds, start)
    found = None if written is None else decode(written)
    return None if found is None else found.allowed


def test_slices_begin_at_multiples_of_their_length() -> None:
    assert start_of(MINUTE + 4.9, SHORT_S) == MINUTE
    assert start_of(MINUTE + 5, SHORT_S) == MINUTE + 5
    assert start_of(MINUTE + 59.9, LONG_S) == MINUTE


def test_what_is_not_over_is_replaced_by_what_is_known_later() -> None:
    ring = Ring()
    ring.put(slice_at(MINUTE, 1), is_over=False)
    ring.put(slice_at(MINUTE, 3), is_over=False)
    assert allowed(ring, SHORT_S, MINUTE) == 3


def test_a_minute_of_short_slices_becomes_a_long_one() -> None:
    ring = Ring()
    for start in range(MINUTE, MINUTE + LONG_S, SHORT_S):
        assert ring.get(LONG_S, MINUTE) is None
        ring.put(slice_at(start, 2), is_over=False)
        ring.put(slice_at(start, 2), is_over=True)
    assert allowed(ring, LONG_S, MINUTE) == 24


def test_a_minute_that_was_not_seen_to_its_end_is_a_long_one_too() -> None:
    ring = Ring()
    ring.put(slice_at(MINUTE + 50), is_over=True)
    ring.put(slice_at(MINUTE + LONG_S + 5), is_over=True)
    assert allowed(ring, LONG_S, MINUTE) == 1


def test_what_is_old_is_forgotten() -> None:
    ring = Ring()
    for start in range(MINUTE, MINUTE + LONG_KEPT_S + 10 * LONG_S, SHORT_S):
        ring.put(slice_at(start), is_over=True)
    assert ring.get(SHORT_S, start) is not None
    assert ring.get(SHORT_S, start - SHORT_KEPT_S) is None
    assert ring.get(LONG_S, MINUTE) is None
    assert ring.get(LONG_S, MINUTE + 10 * LONG_S) is not None
    assert len(ring._short) == SHORT_KEPT_S // SHORT_S
    assert len(ring._long) == LONG_KEPT_S // LONG_S


def test_what_was_sent_is_sent_again_only_when_it_has_changed() -> None:
    ring = Ring()
    ring.put(slice_at(MINUTE, 1), is_over=False)
    unsent = ring.unsent()
    assert [each[:2] for each in unsent] == [(SHORT_S, MINUTE)]
    ring.sent(unsent)
    assert ring.unsent() == []
    ring.put(slice_at(MINUTE, 2), is_over=False)
    unsent = ring.unsent()
    ring.put(slice_at(MINUTE, 3), is_over=False)  # while it was on its way
    ring.sent(unsent)
    assert [each[:2] for each in ring.unsent()] == [(SHORT_S, MINUTE)]


def test_what_could_not_be_sent_for_long_is_not_kept_for_ever() -> None:
    ring = Ring()
    for start in range(MINUTE, MINUTE + 3 * LONG_KEPT_S, SHORT_S):
        ring.put(slice_at(start), is_over=True)
    assert len(ring.unsent()) <= SHORT_KEPT_S // SHORT_S + LONG_KEPT_S // LONG_S
