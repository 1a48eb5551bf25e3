"""A service that is killed, frozen or started again: callers get a decision all the same."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from limen import Client
from limen._internal import background
from limen.client import ServiceRefused, Verdict
from tests.client.conftest import Connect, Leaving
from tests.client.drivers import Threaded, somebody
from tests.client.services import Served, free_port, served
from tests.waiting import generous, wait_until

TIMEOUT = 0.25
SLACK = 0.1


@pytest.fixture
def nowhere() -> str:
    """An address where nobody listens."""
    return f"http://127.0.0.1:{free_port()}"


@contextmanager
def lag() -> Iterator[Callable[[], float]]:
    """Measure by how much this machine, with all else that it does, wakes sleepers too late."""
    longest, stop = 0.0, threading.Event()

    def watch() -> None:
        nonlocal longest
        while not stop.is_set():
            began = time.monotonic()
            time.sleep(0.005)
            longest = max(longest, time.monotonic() - began - 0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: longest
    finally:
        stop.set()
        thread.join()


class Load:
    """What many callers were told, and when."""

    def __init__(self) -> None:
        self.told: list[tuple[float, float, Any]] = []
        """When, after how long, and what."""

    def call(self, client: Threaded) -> Callable[[], Any]:
        facts = somebody("/nothing")

        def ask() -> Any:
            began = time.monotonic()
            answer = client.decide(facts)
            if isinstance(answer, Verdict):
                self.took(began, answer)
                time.sleep(0.002)
                return answer
            return self._ask_async(began, answer)

        return ask

    async def _ask_async(self, began: float, answer: Any) -> Any:
        self.took(began, await answer)
        await asyncio.sleep(0.002)

    def took(self, began: float, answer: Any) -> None:
        now = time.monotonic()
        self.told.append((now, now - began, answer))

    def longest(self) -> float:
        return max(took for _, took, _ in self.told)

    def sources(self, after: float, before: float = float("inf")) -> set[str]:
        return {answer.source for at, _, answer in self.told if after <= at < before}


def run(client: Threaded, load: Load, story: Callable[[], None]) -> None:
    """Have 16 callers ask for as long as a story lasts; none of them sees an exception."""
    ended = threading.Event()
    raised: list[BaseException] = []

    def tell() -> None:
        try:
            story()
        except BaseException as error:
            raised.append(error)
        finally:
            ended.set()

    def calls() -> Iterator[Callable[[], Any]]:
        while not ended.is_set():
            yield load.call(client)

    thread = threading.Thread(target=tell)
    thread.start()
    said = client.during(calls(), 16)
    thread.join()
    assert not raised, raised
    assert said == []


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service that tests may kill and freeze, as long as they start it again."""
    with served(tmp_path_factory.mktemp("fragile")) as started:
        yield started


@pytest.mark.parametrize("fault", ["frozen", "killed"])
def test_every_call_is_answered_in_time_and_the_service_comes_back_by_itself(
    connect: Connect, fragile: Served, fault: str
) -> None:
    client, load = connect(fragile.url, timeout=TIMEOUT), Load()
    at: dict[str, float] = {}

    def story() -> None:
        time.sleep(0.3)
        at["away"] = time.monotonic()
        if fault == "frozen":
            fragile.freeze()
            time.sleep(1.5)
            at["called"] = time.monotonic()
            fragile.thaw()
        else:
            fragile.kill()
            time.sleep(1.2)
            at["called"] = time.monotonic()
            fragile.start()
        at["back"] = time.monotonic()
        wait_until(lambda: "store" in load.sources(at["back"]))
        at["end"] = time.monotonic()

    with lag() as lagged:
        run(client, load, story)
        assert load.longest() < generous(TIMEOUT) + lagged()
    assert "store" in load.sources(0, at["away"])
    # What was seen of it: nothing limits this request.
    assert load.sources(at["away"] + 2 * TIMEOUT + 2 * SLACK, at["called"]) == {"open"}


def test_local_admits_exactly_the_share(connect: Connect, nowhere: str) -> None:
    client = connect(nowhere, timeout=TIMEOUT, instances=4)
    said = client.together([lambda: client.check("k", "10/minute", "100/hour")] * 64, 16)
    assert sum(bool(verdict) for verdict in said) == 3
    assert {verdict.source for verdict in said} == {"local"}
    assert all(verdict.degraded for verdict in said)
    refused = next(verdict for verdict in said if not verdict)
    assert refused.limit == "10/minute"
    assert refused.retry_after is not None
    assert 59 < refused.retry_after <= 60


def test_local_follows_the_limits_that_were_seen_last(connect: Connect, leaving: Leaving) -> None:
    client = connect(leaving.url, timeout=5, instances=4)
    seen, unseen = somebody(), somebody()
    two, blocked = somebody("/two"), somebody("/blocked")
    for facts in (seen, two, blocked):
        assert client.decide(facts).source == "store"
    leaving.leave()
    said = [client.decide(seen) for _ in range(5)]
    assert [bool(verdict) for verdict in said] == [True] * 3 + [False] * 2
    assert {(verdict.source, verdict.rule, verdict.limit) for verdict in said} == {
        ("local", "search-per-user", "10/minute")
    }
    assert [part.rule for part in said[0].parts] == ["search-per-user"]
    assert [part.key for part in said[0].parts] == [f"user={seen['user']}"]
    # Two limits of one rule.
    assert [bool(client.decide(two)) for _ in range(3)] == [True, True, False]
    assert client.peek(two).limit == "8/minute"
    # What the rules refuse without counting is refused still.
    refused = client.decide(blocked)
    assert not refused
    assert (refused.rule, refused.source, refused.retry_after) == ("nobody", "local", None)
    # Nothing is known of whom the service never told.
    assert [client.decide(unseen).source for _ in range(20)] == ["open"] * 20


def test_local_charges_by_the_cost_that_is_asked_for(connect: Connect, leaving: Leaving) -> None:
    client = connect(leaving.url, timeout=5)
    facts = {**somebody("/llm"), "tokens": "300"}
    client.decide(facts, cost=1)
    leaving.leave()
    verdict = client.decide(facts, cost=200)
    left = {part.rule: part.remaining for part in verdict.parts}
    assert left == {"tokens-per-user": 700, "asked-per-user": 300}
    assert client.settle(verdict, {"tokens": 5}) is False
    assert client.settle(verdict, 50)
    left = {part.rule: part.remaining for part in client.usage(facts).parts}
    assert left == {"tokens-per-user": 700, "asked-per-user": 450}


def test_what_was_charged_here_is_given_back_here(connect: Connect, nowhere: str) -> None:
    client = connect(nowhere, timeout=TIMEOUT)
    first = client.check("k", "10/minute", cost=8)
    assert first.remaining == 2
    assert client.refund(first)
    assert not client.refund(first)
    second = client.check("k", "10/minute", cost=8)
    assert client.settle(second.receipt, 3)
    assert not client.settle(second.receipt, 3)
    assert client.check("k", "10/minute", cost=0).remaining == 7
    assert client.refund("local:0000000000000000") is False


def test_what_the_service_charged_cannot_be_given_back_while_it_is_away(
    connect: Connect, leaving: Leaving
) -> None:
    client = connect(leaving.url, timeout=5)
    verdict = client.decide(somebody())
    leaving.leave()
    assert client.refund(verdict) is False
    assert client.settle(verdict, 0) is False


def test_slots_are_shared_out_too(connect: Connect, leaving: Leaving) -> None:
    client = connect(leaving.url, timeout=5, instances=2)
    facts = somebody("/export")
    with client.slot(facts):
        leaving.leave()
    with client.slot(facts) as slot:
        assert slot.verdict is not None
        assert slot.verdict.source == "local"
        client.pause(1.3)  # longer than the lease: it is renewed
        with pytest.raises(ServiceRefused) as refused:
            client.slot(facts).__enter__()
        assert refused.value.verdict.limit == "2 at once, lease 1 second"
    with client.slot(facts):
        pass


@pytest.mark.parametrize(("on_error", "allowed"), [("open", True), ("closed", False)])
def test_open_admits_and_closed_refuses(
    connect: Connect, nowhere: str, on_error: str, allowed: bool
) -> None:
    client = connect(nowhere, timeout=TIMEOUT, on_error=on_error)
    facts = somebody("/export")
    said = [client.check("k", "1/minute") for _ in range(3)]
    said += [client.decide(facts), client.peek(facts), client.usage(facts)]
    said += client.decide_many([facts] * 3)
    said.append(client.slot(facts).acquire())
    assert [(bool(each), each.source, each.degraded) for each in said] == [
        (allowed, on_error, True)
    ] * len(said)
    assert {each.retry_after for each in said} == {0.0 if allowed else 1.0}
    assert client.refund(said[0]) is False


def test_bad_input_is_an_error_also_while_the_service_is_away(
    connect: Connect, nowhere: str
) -> None:
    client = connect(nowhere, timeout=TIMEOUT)
    with pytest.raises(ValueError, match="cost must be a whole number"):
        client.decide({}, cost=-1)
    with pytest.raises(ValueError, match="limit"):
        client.check("k", "often")


def test_an_outage_is_logged_once_a_second(
    connect: Connect, nowhere: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(nowhere, timeout=TIMEOUT)
    with caplog.at_level(logging.WARNING, logger="limen"):
        client.together([lambda: client.decide(somebody())] * 200, 16)
    assert 1 <= len(caplog.records) <= 4
    assert f"the service at {nowhere} did not answer (connection)" in caplog.text


@pytest.mark.parametrize("on_error", ["local", "open", "closed"])
def test_the_log_names_the_policy_that_decides(
    connect: Connect, nowhere: str, on_error: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(nowhere, timeout=TIMEOUT, on_error=on_error)
    with caplog.at_level(logging.WARNING, logger="limen"):
        client.check("k", "10/minute")
    [record] = caplog.records
    assert record.getMessage().endswith(f"; on_error={on_error}")


def test_a_host_that_cannot_be_encoded_leads_to_the_fallback(connect: Connect) -> None:
    client = connect("http://[fe80::1%a..b]:8080", timeout=5)
    assert client.decide(somebody()).source == "open"
    assert client.usage(somebody()).source == "open"


def test_a_client_that_cannot_start_a_thread_falls_back(
    nowhere: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background, "start", start)
    with Client(nowhere, timeout=TIMEOUT, on_error="closed") as client:
        assert client.decide(somebody()).source == "closed"
        assert client.usage(somebody()).source == "closed"
        assert not client.refund("receipt")
    assert "did not answer (connection): can't start new thread" in caplog.text


def test_a_host_that_cannot_be_found_takes_no_longer_than_the_deadline(connect: Connect) -> None:
    client = connect("http://limen.invalid:8080", timeout=TIMEOUT)
    with lag() as lagged:
        for _ in range(5):
            began = time.monotonic()
            assert client.decide(somebody()).source == "open"
            assert time.monotonic() - began < generous(TIMEOUT) + lagged()
