"""A store that does not answer: a decision all the same, or an error for those who asked for it."""

from __future__ import annotations

import time

import pytest
from limits import parse
from limits.errors import StorageError

from limen.errors import StoreError
from tests import servers
from tests.adapters.limits.conftest import Open
from tests.adapters.limits.using import ALL, FIXED, MOVING, SLIDING
from tests.waiting import wait_until

TWO, TEN = parse("2/year"), parse("10/year")
SECRET = "hunter2"
SLOW_MACHINE_S = 2.0


@pytest.fixture(scope="module")
def dead() -> str:
    """The address of a server that is not there."""
    return f"limen+redis://:{SECRET}@{servers.HOST}:{servers.free_port()}"


@pytest.mark.parametrize("strategy", ALL)
class TestDeadStore:
    def test_this_process_counts_instead(
        self, open_storage: Open, dead: str, strategy: str
    ) -> None:
        used = open_storage(dead).by(strategy)
        assert used.hits(3, TWO, "k") == [True, True, False]
        assert not used.test(TWO, "k")
        assert used.hit(TWO, "other")
        assert used.stats(TWO, "k").remaining == 0
        assert used.stats(TWO, "other").remaining == 1
        assert used.stats(TWO, "k").reset_time >= time.time()

    def test_it_counts_its_share_of_the_limit(
        self, open_storage: Open, dead: str, strategy: str
    ) -> None:
        used = open_storage(f"{dead}?instances=5").by(strategy)
        assert used.hits(3, TEN, "k") == [True, True, False]
        assert used.stats(TEN, "k").remaining == 0
        assert used.stats(TEN, "other").remaining == 2

    def test_its_share_is_never_nothing(self, open_storage: Open, dead: str, strategy: str) -> None:
        used = open_storage(dead, instances=1_000).by(strategy)
        assert used.hits(2, TWO, "k") == [True, False]
        used.stats(TWO, "k")

    def test_open_lets_everybody_pass(self, open_storage: Open, dead: str, strategy: str) -> None:
        used = open_storage(f"{dead}?on_error=open").by(strategy)
        assert used.hits(5, TWO, "k") == [True] * 5
        assert used.stats(TWO, "k").remaining == 2

    def test_closed_refuses_everybody(self, open_storage: Open, dead: str, strategy: str) -> None:
        used = open_storage(f"{dead}?on_error=closed").by(strategy)
        assert not used.hit(TWO, "k")
        assert not used.test(TWO, "k")
        reset_time, remaining = used.stats(TWO, "k")
        assert remaining == 0
        assert time.time() < reset_time < time.time() + 60

    def test_raise_is_an_error_for_whoever_has_a_fallback(
        self, open_storage: Open, dead: str, strategy: str
    ) -> None:
        used = open_storage(f"{dead}?on_error=raise").by(strategy)
        for verb in (used.hit, used.test, used.stats, used.clear):
            with pytest.raises(StoreError) as caught:
                verb(TWO, "k")
            assert SECRET not in str(caught.value)

    def test_an_error_is_wrapped_where_that_was_asked_for(
        self, open_storage: Open, dead: str, strategy: str
    ) -> None:
        used = open_storage(dead, on_error="raise", wrap_exceptions=True).by(strategy)
        for verb in (used.hit, used.test, used.stats, used.clear):
            with pytest.raises(StorageError) as caught:
                verb(TWO, "k")
            assert isinstance(caught.value.storage_error, StoreError)

    def test_what_cannot_be_forgotten_is_an_error_by_any_policy(
        self, open_storage: Open, dead: str, strategy: str
    ) -> None:
        with pytest.raises(StoreError):
            open_storage(dead).by(strategy).clear(TWO, "k")


def test_check_says_that_the_store_does_not_answer(open_storage: Open, dead: str) -> None:
    assert open_storage(dead).check() is False


def test_a_store_that_stands_still_costs_no_more_than_the_deadline(
    open_storage: Open, own_valkey: servers.Server
) -> None:
    storage = open_storage(f"limen+redis://{servers.HOST}:{own_valkey.port}", deadline=0.05)
    used = storage.by(MOVING)
    used.hit(TWO, "warm")
    own_valkey.pause()
    for strategy in ALL:
        began = time.monotonic()
        assert storage.by(strategy).hits(3, TWO, "k") == [True, True, False]
        # Three decisions, none of which may take 50 ms; the rest is for a busy machine.
        assert time.monotonic() - began < SLOW_MACHINE_S
    own_valkey.resume()


def test_a_store_that_comes_back_decides_again(
    open_storage: Open, own_valkey: servers.Server
) -> None:
    storage = open_storage(f"limen+redis://{servers.HOST}:{own_valkey.port}")
    strict = open_storage(f"limen+redis://{servers.HOST}:{own_valkey.port}?on_error=raise")
    own_valkey.kill()
    assert all(storage.by(strategy).hits(3, TWO, "k")[0] for strategy in ALL)
    assert storage.check() is False
    own_valkey.restart()
    wait_until(lambda: strict.by(FIXED).hit(TEN, "probe") or True, ignoring=StoreError)
    for strategy in ALL:
        assert strict.by(strategy).hits(3, TWO, "afterwards") == [True, True, False]
        assert strict.by(strategy).hit(TEN, "new", cost=7)
        used = storage.by(strategy)
        wait_until(lambda used=used: used.stats(TEN, "new").remaining == 3)  # type: ignore[misc]


def test_small_limits_of_many_processes_are_counted_apart_from_no_other(
    open_storage: Open, uri: str
) -> None:
    """In whole hits instead of thousandths, which nobody may take for the same."""
    one = open_storage(uri, deadline=5).by(SLIDING)
    many = open_storage(uri, deadline=5, instances=3).by(SLIDING)
    assert one.hits(3, TWO, "k") == [True, True, False]
    assert many.hits(3, TWO, "k") == [True, True, False]
