"""The driver for threads, in a process that cannot start threads."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import pytest

from limen import Limiter
from limen._internal import background
from limen.backends import Fault
from limen.backends.circuit_breaker import FAILURES
from limen.backends.redis.across import Step
from limen.backends.redis.batch import Request
from limen.backends.redis.sync import RedisBackend
from limen.connect import parse
from limen.flow import run
from tests.exhausted import no_thread

UNUSED = "127.0.0.1:1"


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with monkeypatch.context() as patch:
        patch.setattr(background, "start", no_thread)
        yield patch


def backend(scheme: str) -> RedisBackend:
    return RedisBackend(parse(f"{scheme}://{UNUSED}"), "limen", 0.05)


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_fallback_decides(scheme: str, no_threads: pytest.MonkeyPatch) -> None:
    with Limiter(f"{scheme}://{UNUSED}", deadline=0.05) as limiter:
        decisions = [limiter.check("k", "2/minute") for _ in range(3)]
        assert [decision.allowed for decision in decisions] == [True, True, False]
        assert {decision.source for decision in decisions} == {"local"}


def test_pending_charges_are_replayed_when_there_are_threads_again(
    no_threads: pytest.MonkeyPatch,
) -> None:
    with Limiter(f"redis://{UNUSED}", deadline=0.05) as limiter:
        limiter.check("k", "2/minute")
        limiter.check("k", "2/minute")
        assert limiter._guard.should_pay(0.0)


def test_probe_that_could_not_start_is_started_by_a_later_caller(
    no_threads: pytest.MonkeyPatch,
) -> None:
    store = backend("redis")
    server = store._server_at(("127.0.0.1", 1))
    for _ in range(FAILURES):
        server.failed(Fault("connection", "refused"))
    assert server.breaker.is_open
    # Meanwhile one caller after the other is the probe.
    assert [store._refusal(server) is None for _ in range(3)] == [True, False, False]
    started: list[object] = []
    no_threads.setattr(background, "start", lambda *work: started.append(work))
    store._tend(server)
    store._tend(server)
    assert len(started) == 1


def test_lookup_of_the_cluster_that_could_not_start_is_tried_again(
    no_threads: pytest.MonkeyPatch,
) -> None:
    store = backend("redis+cluster")
    store._refresh_if_due()
    assert not store._router.is_unknown_yet
    assert store._router.should_refresh(store._now() + 10)


def test_what_a_caller_does_not_wait_for_is_sent_by_it(no_threads: pytest.MonkeyPatch) -> None:
    store = backend("redis+cluster")
    sent: list[Request] = []

    def call_all(requests: Sequence[Request], *_: object, **options: bool) -> list[bytes]:
        sent.extend(requests)
        return [b""] * len(requests)

    no_threads.setattr(store, "_call_all", call_all)
    request = Request(["k"], b"x", 2, 0)

    def steps() -> Generator[Step, Sequence[bytes | Fault], None]:
        yield Step([request], undoes=1, behind=True)

    run(store._drive(steps(), store._deadline_in(1.0)))
    assert sent == [request]
