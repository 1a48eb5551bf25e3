"""`binding`: the limit whose figures a decision reports."""

from __future__ import annotations

import pytest

from limen import Check, Concurrency, Limit
from limen.model import NEVER_US, UNCHARGED, binding, decision_of

Part = tuple[Limit | Concurrency, bool, int, int]
"""A limit, whether it allows, the units left, and the microseconds to wait."""

TEN, HUNDRED = Limit(10, 60), Limit(100, 60)
LARGE = Limit(999_999_999, 60, algorithm="fixed_window")
SMALLER = Limit(999_999_997, 60, algorithm="fixed_window")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(TEN, True, 5, 0)], 0),
        ([(TEN, True, 5, 0), (HUNDRED, True, 49, 0)], 1),
        ([(TEN, True, 5, 0), (HUNDRED, True, 50, 0)], 0),
        ([(HUNDRED, True, 50, 0), (TEN, True, 5, 0)], 0),
        ([(TEN, True, 10, 0), (Concurrency(4, lease=30), True, 1, 0)], 1),
        ([(Limit(10, 1, burst=40), True, 10, 0), (TEN, True, 3, 0)], 0),
        ([(TEN, True, 0, 0), (HUNDRED, False, 90, 1)], 1),
        ([(TEN, False, 0, 5), (HUNDRED, False, 0, 9), (TEN, False, 0, 9)], 1),
        ([(TEN, False, 0, 5), (HUNDRED, False, 0, NEVER_US), (TEN, True, 0, 0)], 1),
        ([(TEN, False, 0, 0)], 0),
        # The quotients are equal as floating-point numbers.
        ([(LARGE, True, 499_999_999, 0), (SMALLER, True, 499_999_998, 0)], 1),
    ],
)
def test_is_the_longest_refusal_or_the_smallest_share(parts: list[Part], expected: int) -> None:
    decisions = [
        decision_of(
            Check(limit, "k"), (allowed, remaining, retry_us, 0, 0, UNCHARGED), "store", index
        )
        for index, (limit, allowed, remaining, retry_us) in enumerate(parts)
    ]
    assert binding(decisions) == expected
