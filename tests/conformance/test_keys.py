"""Keys: whatever text users send, no two share a count, and none makes a store's key long."""

from __future__ import annotations

from typing import Any

from limen import Check, Concurrency, Limit
from limen.keys import MAX_BYTES
from limen.model.text import digest
from tests.conformance.stores import Store

MEGABYTE = "x" * 1_000_000
NASTY: list[str | bytes] = [
    *("a", "A", "a ", " a", "a\n", "a\r\n", "\na", "a\0", "\0", "a\0b"),
    *("{a}", "{}", "a{b}", "a{c}", "}{", "{a", "a}", "{{a}}"),
    *("a:b", "a|b", "a|", "#a", "%61", "%", "pw:86400000000:|a", "limen:{a}pw:86400000000:|"),
    *("é", "e\u0301", "ß", "ss", "\u202ea", "😀", "\ud83d", "\ude00", "\ud800", "\udfff"),
    *(b"\xff", b"\xfe\xff", b"\xc3\x28", b"\x80\n{}"),
    *("x" * 43, "x" * 44, "x" * 200, "x" * 201, "é" * 43, MEGABYTE, MEGABYTE + "y"),
    *(digest(MEGABYTE), digest("x" * 44), "#" + digest(MEGABYTE)),
]
LIMIT = Limit(1_000, 86_400)


def test_are_all_counted_apart(limiter: Any) -> None:
    for number, key in enumerate(NASTY, start=1):
        assert limiter.check(key, LIMIT, cost=number).allowed
    left = [limiter.peek(key, LIMIT).remaining for key in NASTY]
    assert left == [1_000 - number for number in range(1, len(NASTY) + 1)]


def test_are_short_on_the_store_and_there_is_one_for_each(
    limiter: Any, store: Store, namespace: str
) -> None:
    for key in NASTY:
        limiter.refund(limiter.check(key, LIMIT, Limit(5, 86_400, name="n" * 200)))
        limiter.check(key, LIMIT)
    found = store.ttls_ms(f"{namespace}*")
    if store.is_shared:
        states = [key for key in found if key.endswith(b":|")]
        assert len(states) >= len(NASTY)
    assert all(len(key) <= MAX_BYTES for key in found)
    assert all(key.isascii() and key.decode().isprintable() for key in found)


def test_as_bytes_are_their_text(limiter: Any) -> None:
    for text in ("a", "é", "😀", "a\n{}"):
        limiter.check(text, "1/day")
        assert not limiter.check(text.encode(), "1/day").allowed


def test_of_subjects_are_all_counted_apart(limiter: Any) -> None:
    keys = [key for key in NASTY if isinstance(key, str)]
    checks = [
        Check(LIMIT, f"{number}:{key[:50]}", number, subject=key)
        for number, key in enumerate(keys, start=1)
    ]
    for check in checks:
        assert limiter.decide(check).allowed
    for check in checks:
        free = limiter.decide(Check(LIMIT, check.key, 0, subject=check.subject))
        assert free.remaining == 1_000 - check.cost


def test_of_names_are_all_counted_apart(limiter: Any) -> None:
    names = [key for key in NASTY if isinstance(key, str) and len(key) <= 200]
    limits = [Limit(1_000, 86_400, name=name) for name in names]
    for number, limit in enumerate(limits, start=1):
        limiter.check("k", limit, cost=number)
    left = [limiter.peek("k", limit).remaining for limit in limits]
    assert left == [1_000 - number for number in range(1, len(limits) + 1)]


def test_of_slots_are_all_counted_apart(limiter: Any) -> None:
    one = Concurrency(1, lease=30)
    for key in NASTY:
        assert limiter.slot(key, one).acquire().allowed
    assert not any(limiter.slot(key, one).acquire().allowed for key in NASTY)


def test_no_name_and_key_can_pose_as_others(limiter: Any) -> None:
    """A text cut at another place is another text: `ab` and `c` are not `a` and `bc`."""
    pairs = [("ab", "c"), ("a", "bc"), ("abc", "|"), ("a:", "b"), ("a", ":b"), ("a|", "b")]
    for name, key in pairs:
        assert limiter.check(key, Limit(1, 86_400, name=name)).allowed
    for name, key in pairs:
        assert not limiter.check(key, Limit(1, 86_400, name=name)).allowed
