"""The same hits on our storage and on the one of `limits` in memory: the same answers.

Where `limits` documents one thing and its storages do another, ours is not like them: fixed windows
are not here, because of the refused hits that they count.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import limits.storage.memory
import limits.strategies
import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits import parse
from limits.storage import MemoryStorage

from limen.adapters.limits import LimenStorage
from limen.testing import ManualClock
from tests.adapters.limits.using import MOVING, SLIDING, STRATEGIES

# Hits come 7 seconds apart, or a multiple of that, and never on a whole second: so none is exactly
# one window after another, where `limits` still counts it; and no estimate is within a thousandth
# of a whole hit.
START_S, STEP_S = 1_700_000_040.2, 7

# For each hit: how many steps to wait before it, and what it costs.
HITS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 11)), max_size=60)


@pytest.mark.parametrize("strategy", [MOVING, SLIDING])
@given(hits=HITS)
def test_decides_as_the_storage_of_limits_does(strategy: str, hits: list[tuple[int, int]]) -> None:
    clock = ManualClock(START_S)
    time: Any = SimpleNamespace(time=lambda: clock.time_ns() / 1e9)
    item = parse("10/minute")
    with pytest.MonkeyPatch.context() as patch:
        theirs = STRATEGIES[strategy](MemoryStorage())
        ours = STRATEGIES[strategy](LimenStorage("limen+memory://", clock=clock))
        patch.setattr(limits.storage.memory, "time", time)
        patch.setattr(limits.strategies, "time", time)
        for steps, cost in hits:
            clock.advance(steps * STEP_S)
            assert ours.test(item, "k", cost=cost) == theirs.test(item, "k", cost=cost)
            assert ours.hit(item, "k", cost=cost) == theirs.hit(item, "k", cost=cost)
            reset_time, remaining = ours.get_window_stats(item, "k")
            stats = theirs.get_window_stats(item, "k")
            assert remaining == stats.remaining
            # Of a window with nothing in it, `limits` in memory tells when it was last used.
            if strategy == MOVING and remaining < item.amount:
                assert reset_time == pytest.approx(stats.reset_time, abs=1e-5)
