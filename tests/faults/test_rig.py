"""Who judges is judged: what goes wrong in a run is seen, and what does not is not."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest

from limen import Limit
from tests import servers
from tests.faults.figures import say
from tests.faults.nemesis import KINDS, Event, judge, plan
from tests.faults.rig import WORKERS, Asked, History, rig

TEN = Limit(10, 10, algorithm="packed_window")
HOT = {"hot": TEN}


def asked(
    at: float, *, took: float = 0.001, worker: int = 0, allowed: bool = True, source: str = "store"
) -> Asked:
    fault = "" if source == "store" else "timeout"
    return Asked(at, took, worker, "hot", allowed, source, fault, "")


def admitted(count: int, since: float, until: float, source: str = "store") -> list[Asked]:
    """Return so many admissions, evenly spread."""
    step = (until - since) / count
    return [asked(since + step * index, source=source) for index in range(count)]


def history(*parts: list[Asked]) -> History:
    return History(sorted(each for part in parts for each in part))


class TestWindows:
    def test_the_worst_window_is_found_wherever_it_begins(self) -> None:
        found = history(admitted(5, 0, 10), admitted(8, 13.5, 14), admitted(7, 22, 23))
        assert found.most_admitted("hot", 10) == 15
        assert found.most_admitted("hot", 5) == 8

    def test_a_window_is_shorter_than_the_distance_of_its_ends(self) -> None:
        found = history([asked(0.0), asked(10.0)])
        assert found.most_admitted("hot", 10) == 1
        assert found.most_admitted("hot", 10.1) == 2

    def test_what_reaches_over_an_edge_may_be_charged_beyond_it(self) -> None:
        found = history([asked(0.0), asked(9.98, took=0.04)])
        assert found.most_admitted("hot", 10) == 1

    def test_refusals_and_other_keys_are_not_counted(self) -> None:
        other = asked(1.0)._replace(key="other")
        found = history([asked(0.0), asked(0.5, allowed=False), other])
        assert found.most_admitted("hot", 10) == 1

    def test_without_a_key_it_is_the_worst_of_them(self) -> None:
        other = [each._replace(key="other") for each in admitted(3, 0, 1)]
        assert history(admitted(2, 0, 1), other).most_admitted(period=10) == 3


class TestHistory:
    def test_p99_is_of_what_was_asked_in_between(self) -> None:
        quick = [asked(at / 100, took=0.001) for at in range(99)]
        slow = [asked(0.995, took=0.5), asked(2.0, took=9.0)]
        found = history(quick, slow)
        assert found.p99(0, 1) == 0.001
        assert found.p99(0.5, 1) == 0.5
        assert found.p99(1, 3) == 9.0
        assert found.p99(5, 6) == 0.0

    def test_what_waits_while_the_machine_stands_still_says_nothing_of_the_limiter(self) -> None:
        found = history([asked(at / 50) for at in range(50)], [asked(0.5, took=0.3)])
        assert found.p99(0, 1) == 0.3
        found.freezes = [(0.4, 0.45), (0.6, 0.7)]
        assert found.p99(0, 1) == 0.001
        found.freezes = [(0.2, 0.3), (0.9, 1.0)]
        assert found.p99(0, 1) == 0.3

    def test_if_the_machine_stands_still_most_of_the_time_that_is_no_excuse(self) -> None:
        found = history([asked(0.1, took=0.3), asked(0.2, took=0.3), asked(0.9)])
        found.freezes = [(0.1, 0.3)]
        assert found.p99(0, 1) == 0.3

    def test_it_is_back_when_no_worker_is_told_otherwise(self) -> None:
        found = history(
            [asked(1.0), asked(1.5), asked(2.0)],
            [asked(1.0, worker=1, source="local"), asked(1.7, worker=1)],
        )
        assert found.back_on_store(0.9) == pytest.approx(0.1)
        assert found.back_on_store(1.2) == 0

    def test_it_is_not_back_while_the_last_answer_to_one_worker_is_not_the_stores(self) -> None:
        found = history([asked(1.0), asked(2.0)], [asked(1.9, worker=1, source="local")])
        assert found.back_on_store(0.9) == math.inf

    def test_it_is_not_back_when_nobody_asked(self) -> None:
        assert history([asked(1.0)]).back_on_store(2) == math.inf

    def test_what_the_store_did_not_decide_is_degraded(self) -> None:
        local, raised = asked(1.0, source="local"), asked(2.0, source="")
        found = history([asked(0.0), local, raised])
        assert found.degraded() == [local, raised]
        assert found.degraded(since=1.5) == [raised]
        assert found.degraded(until=1.5, keys=["hot"]) == [local]
        assert found.degraded(keys=["other"]) == []
        assert found.share_of_store(0, 1.5) == 0.5
        assert found.share_of_store(1, 3) == 0


class TestJudge:
    def test_without_a_fault_the_limit_is_the_bound(self) -> None:
        assert not judge(history(admitted(10, 0, 9)), [], HOT).violations
        [violation] = judge(history(admitted(11, 100, 109)), [], HOT).violations
        assert (violation.admitted, violation.bound) == (11, 10)
        assert 98 < violation.begins <= 100
        assert "11 admitted (11 by store), 10 allowed" in str(violation)

    def test_a_fault_allows_as_much_again(self) -> None:
        fault = Event(3, 5, "paused")
        before = admitted(10, 0, 2)
        enough, too_many = admitted(10, 3, 5, "local"), admitted(11, 3, 5, "local")
        assert not judge(history(before, enough), [fault], HOT).violations
        [violation] = judge(history(before, too_many), [fault], HOT).violations
        assert (violation.admitted, violation.bound) == (21, 20)
        assert violation.sources == {"store": 10, "local": 11}
        begins = violation.begins
        assert f"paused from {3 - begins:+.2f} to {5 - begins:+.2f}" in str(violation)

    def test_a_fault_of_another_window_allows_nothing(self) -> None:
        # The window that begins when the fault has been over for long enough has no excuse.
        fault = Event(0, 1, "paused")
        [violation] = judge(history(admitted(11, 2.1, 11)), [fault], HOT).violations
        assert (violation.admitted, violation.bound) == (11, 10)

    def test_each_loss_of_the_state_allows_as_much_again(self) -> None:
        flushes = [Event(2, 2.01, "flushed"), Event(4, 4.01, "flushed")]
        three = [admitted(10, 0, 2), admitted(10, 2.1, 4), admitted(10, 4.1, 5)]
        assert not judge(history(*three), flushes, HOT).violations
        assert judge(history(*three), flushes[:1], HOT).violations
        assert judge(history(*three, [asked(5)]), flushes, HOT).violations

    def test_a_flush_is_no_reason_to_count_locally(self) -> None:
        flush = Event(2, 2.01, "flushed")
        verdict = judge(history([asked(0), asked(3, source="local")]), [flush], HOT)
        assert [each.at for each in verdict.strays] == [3]

    def test_how_near_a_bound_was_is_told_for_each_bound(self) -> None:
        fault = Event(103, 105, "paused")
        found = history(admitted(9, 0, 2), admitted(10, 100, 102), admitted(5, 103, 104, "local"))
        assert judge(found, [fault], HOT).tightest == {1: 1.0, 2: 0.75}

    def test_a_calm_without_admissions_is_seen(self) -> None:
        asks = [asked(float(at), allowed=at < 20) for at in range(61)]
        assert judge(history(asks), [], HOT).calmest == 0
        assert judge(history(asks), [Event(12, 13, "paused")], HOT).calmest == 0
        assert judge(history(asks), [Event(45, 46, "paused")], HOT).calmest == 0
        assert judge(history(admitted(60, 0, 60)), [], HOT).calmest == 1
        assert judge(history(asks[:15]), [], HOT).calmest is None


class TestPlan:
    def test_a_seed_is_a_plan(self) -> None:
        assert plan(7, 600, 10) == plan(7, 600, 10)
        assert plan(7, 600, 10) != plan(8, 600, 10)

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_ten_minutes_have_all_kinds_and_some_calm(self, seed: int) -> None:
        hands = plan(seed, 600, 10)
        assert {each.kind for hand in hands for each in hand} == KINDS.keys()
        for hand in hands:
            assert all(one.after_s + one.lasts_s < other.after_s for one, other in pairwise(hand))
        both = sorted(each for hand in hands for each in hand)
        gaps = [b.after_s - a.after_s - a.lasts_s for a, b in pairwise(both)]
        assert max(gaps) > 10


class TestRig:
    def test_every_worker_asks_and_the_limit_holds(self, valkey: servers.Server) -> None:
        limit = Limit(40, 10, algorithm="packed_window")
        keys, own = ("hot", "hot", "cool"), {"cool": Limit(10, 10)}
        url = f"redis://127.0.0.1:{valkey.port}"
        with rig(url, keys=keys, rate=30, limit=limit, limits=own) as load:
            load.seconds(1)
            assert [each.fds > 0 and each.rss > 0 for each in load.shards()] == [True] * WORKERS
            found = load.stop()
        assert {each.worker for each in found.asked} == set(range(WORKERS))
        assert not found.errors()
        assert not found.degraded()
        assert found.most_admitted("hot") == 40
        assert found.most_admitted("cool") == 10
        assert 60 < len(found.asked) < 180
        assert len(found.before) == len(found.after) == WORKERS

    def test_what_a_limiter_raises_is_in_the_history(self, valkey: servers.Server) -> None:
        with rig(f"redis://127.0.0.1:{valkey.port}", keys=("fine", "")) as load:
            load.seconds(0.3)
            found = load.stop()
        assert {each.key for each in found.errors()} == {""}
        assert {each.worker for each in found.errors()} == set(range(WORKERS))
        assert "InvalidInput" in found.errors()[0].error

    def test_without_a_store_everybody_counts_alone(self) -> None:
        url = f"redis://127.0.0.1:{servers.free_port()}"
        with rig(url, limit=TEN, warm=False) as load:
            load.seconds(0.7)
            found = load.stop()
        assert not found.errors()
        assert set(found.sources()) == {"local"}
        # Four times a quarter of ten, rounded up.
        assert found.most_admitted("hot") == 12
        assert found.back_on_store(0) == math.inf


def test_figures_are_appended_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faults.figures.said", [])
    monkeypatch.setenv("LIMEN_FIGURES", str(tmp_path / "figures"))
    say("one", took=0.123456, bound=20)
    say("two")
    lines = (tmp_path / "figures").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"name": "one", "took": 0.1235, "bound": 20},
        {"name": "two"},
    ]
