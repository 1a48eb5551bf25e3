"""Faults at random against the whole rig: whatever happens, no window has more than it may."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import pytest
import redis

from limen import Limit
from tests import servers
from tests.faults.figures import say
from tests.faults.nemesis import OPTIONS, RECOVERY_S, Event, Nemesis, Place, judge, plan, write
from tests.faults.proxy import proxy
from tests.faults.rig import LIMIT, History, Vitals, rig
from tests.waiting import FULL, wait_until

SECONDS = 600.0 if FULL else 12.0
# In the short form a seed by which every kind of fault comes.
SEEDS = [
    int(seed) for seed in os.environ.get("LIMEN_SEED", "1,2,3" if FULL else "19647").split(",")
]
HOT = LIMIT if FULL else Limit(40, 2, algorithm="packed_window")
COOL = Limit(20, 4 if FULL else 2, algorithm="packed_window")
LIMITS = {"hot": HOT, "cool": HOT, "other": COOL, "another": COOL}
KEYS = ("hot", "cool", "hot", "other", "hot", "another", "hot", "hot")
PERIOD_S = HOT.period_us / 1e6
MEGABYTE = 2**20
WELL = 0.95 if FULL else 0.8
"""What the store decides at least when all is well."""
MOST_STRAYS = 0.02 if FULL else 0.2
"""Which part of all it may leave to others though nothing is wrong: on a busy machine an answer is
late now and then."""
CALM = 0.5 if FULL else 0.25
"""Which part of its limit a key is given at least when nothing has been wrong for long."""
STRICT_WINDOWS = 300 if FULL else 1
"""How many windows have to be judged by the limit alone, as those without any fault are."""


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_window_has_more_than_the_faults_allow(seed: int) -> None:
    with (
        servers.process(servers.binaries()["valkey"], *OPTIONS) as server,
        proxy(server.port) as between,
    ):
        place = Place(server, between, Random(seed))
        hands = plan(seed, SECONDS, PERIOD_S)
        with rig(f"redis://127.0.0.1:{between.port}", keys=KEYS, limits=LIMITS) as load:
            with Nemesis(place, hands) as nemesis:
                load.seconds(SECONDS / 4)
                meanwhile = load.shards()
                nemesis.wait()
            healed = time.monotonic()
            load.seconds(RECOVERY_S + 2.1 * PERIOD_S)
            history = load.stop()
        stopped = time.monotonic()
        with place.admin() as admin:
            lasting = [key for key in admin.scan_iter(count=1_000) if admin.pttl(key) == -1]
            left = wait_until_empty(admin)
    verdict = judge(history, nemesis.log, LIMITS)
    strays = [each for each in verdict.strays if not history.is_frozen(each)]
    say(
        f"nemesis, seed {seed}",
        seconds=healed - history.asked[0].at,
        faults=len(nemesis.log),
        asked=len(history.asked),
        by=dict(history.sources()),
        windows=verdict.windows,
        strict=verdict.strict,
        tightest={times: round(share, 3) for times, share in sorted(verdict.tightest.items())},
        strays=dict(Counter(each.fault for each in strays)),
        strays_in_freezes=len(verdict.strays) - len(strays),
        freezes=len(history.freezes),
        frozen_share=history.frozen_share(),
        cpu_share=history.cpu_share(),
        passed={key: round(share, 3) for key, share in verdict.passed.items()},
        calmest=verdict.calmest,
        back=history.back_on_store(healed, until=healed + 2),
        opened=history.opened(),
        p99=history.p99(0, stopped),
        grown_mb=[round(each, 1) for each in grown(history.before, history.after)],
        grown_later_mb=[round(each, 1) for each in grown(meanwhile, history.after)],
        logged=sum(each.logged for each in history.after),
    )
    with kept_if_it_fails(seed, history, nemesis.log):
        assert not history.errors()
        assert not verdict.violations, "\n".join(map(str, verdict.violations))
        assert verdict.strict >= STRICT_WINDOWS, "hardly a window was without a fault"
        assert verdict.calmest is not None
        assert verdict.calmest > CALM, "nothing was wrong, and hardly anything let through"
        assert history.share_of_store(healed + RECOVERY_S, healed + RECOVERY_S + 1) > WELL
        assert len(strays) < MOST_STRAYS * len(history.asked)
        assert not lasting, "keys that are there for ever"
        assert not left, "keys that are left when all limits are over"
        check_vitals(history)


@contextmanager
def kept_if_it_fails(seed: int, history: History, log: list[Event]) -> Iterator[None]:
    """Write all of it where it outlives the test, and runs of pytest after that, and say where."""
    try:
        yield
    except BaseException as error:
        folder = Path(mkdtemp(prefix="limen-nemesis-"))
        write(folder, history, log)
        error.add_note(f"seed {seed}, all of it in {folder}")
        raise


def grown(before: list[Vitals], after: list[Vitals]) -> list[float]:
    """Return by how many MB each worker has grown."""
    pairs = zip(before, after, strict=True)
    return [(later.rss - earlier.rss) / MEGABYTE for earlier, later in pairs]


def check_vitals(history: History) -> None:
    """What each worker takes up is back where it was."""
    assert max(grown(history.before, history.after)) < 16
    for before, after in zip(history.before, history.after, strict=True):
        assert after.fds <= before.fds + 2  # a connection more or less
        assert after.tasks <= before.tasks
        assert after.threads <= before.threads


def wait_until_empty(admin: redis.Redis) -> int:
    """Return how many keys are left after the longest period, and a little."""
    with suppress(AssertionError):
        wait_until(lambda: not admin.dbsize(), 2 * PERIOD_S + 2, 0.1)
    return int(admin.dbsize())
