"""The first connection of a limiter has a time of its own, and only the first."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from limen import AsyncLimiter, Check, Decision, Limit, Limiter
from limen.adapters.asgi import RateLimitMiddleware
from tests import servers
from tests.faults.proxy import Proxy, proxy
from tests.forked import in_child
from tests.server.asking import asking
from tests.waiting import generous

LIMIT = Limit(1_000_000, 60, algorithm="fixed_window")
SLOW_S = 0.15
"""Longer than the deadline of 50 ms, shorter than the 250 ms of a first connection."""
TOO_SLOW_S = 0.35
"""Longer than both."""
FIRST_S = 0.25
FORMS = ["threads", "asyncio"]


@pytest.fixture
def slow(port: int) -> Iterator[Proxy]:
    with proxy(port) as made:
        made.connect_delay = SLOW_S
        yield made


def url_of(between: Proxy) -> str:
    return f"redis://127.0.0.1:{between.port}"


def decide(url: str, form: str, *turns: int) -> list[list[Decision]]:
    """Ask a new limiter so many times at once, turn by turn."""
    if form == "threads":
        with Limiter(url) as limiter, ThreadPoolExecutor(max(turns)) as pool:
            return [
                list(pool.map(lambda n: limiter.check(f"k{n}", LIMIT), range(turn)))
                for turn in turns
            ]

    async def ask() -> list[list[Decision]]:
        async with AsyncLimiter(url) as limiter:
            return [
                list(await asyncio.gather(*[limiter.check(f"k{n}", LIMIT) for n in range(turn)]))
                for turn in turns
            ]

    return asyncio.run(ask())


def sources(decisions: list[list[Decision]]) -> set[str]:
    return {decision.source for turn in decisions for decision in turn}


@pytest.mark.parametrize("form", FORMS)
def test_the_first_decision_waits_for_the_first_connection(slow: Proxy, form: str) -> None:
    assert sources(decide(url_of(slow), form, 1)) == {"store"}


@pytest.mark.parametrize("form", FORMS)
def test_first_decisions_share_one_connection_and_one_wait(slow: Proxy, form: str) -> None:
    assert sources(decide(url_of(slow), form, 8)) == {"store"}
    assert slow.connections == (8 if form == "threads" else 1), "tasks share one, threads do not"


@pytest.mark.parametrize("form", FORMS)
def test_a_store_that_never_answers_costs_the_first_wait_once(slow: Proxy, form: str) -> None:
    slow.stall()
    start = time.monotonic()
    assert sources(decide(url_of(slow), form, 8)) == {"local"}
    assert FIRST_S - 0.02 < time.monotonic() - start < generous(2 * FIRST_S)
    start = time.monotonic()
    assert sources(decide(url_of(slow), form, 1, 1, 1)) == {"local"}
    # Once the time of a first connection, then each time the deadline.
    assert time.monotonic() - start < generous(2 * FIRST_S)


@pytest.mark.parametrize("form", FORMS)
def test_a_cluster_that_never_answers_costs_the_first_wait_once(form: str) -> None:
    """Also with several nodes, which are asked one after the other, 400 ms each."""
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        nodes = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in silent)
        start = time.monotonic()
        assert sources(decide(f"redis+cluster://{nodes}", form, 8)) == {"local"}
        assert FIRST_S - 0.02 < time.monotonic() - start < generous(4 * FIRST_S)


@pytest.mark.parametrize("form", FORMS)
def test_a_store_that_refuses_costs_nothing(slow: Proxy, form: str) -> None:
    slow.refuse()
    start = time.monotonic()
    assert sources(decide(url_of(slow), form, 1)) == {"local"}
    assert time.monotonic() - start < generous(FIRST_S - 0.1)


def test_threads_wait_no_longer_for_another_connection(slow: Proxy) -> None:
    with Limiter(url_of(slow)) as limiter:
        assert limiter.check("k", LIMIT).source == "store"
        slow.cut()
        start = time.monotonic()
        assert {limiter.check("k", LIMIT).source for _ in range(2)} == {"local"}
        assert time.monotonic() - start < generous(SLOW_S + 0.05)


def test_tasks_wait_no_longer_for_another_connection(slow: Proxy) -> None:
    asyncio.run(reconnect(slow))


async def reconnect(slow: Proxy) -> None:
    async with AsyncLimiter(url_of(slow)) as limiter:
        assert (await limiter.check("k", LIMIT)).source == "store"
        slow.cut()
        await asyncio.sleep(0.01)  # for the loop to see the end of the connection
        start = time.monotonic()
        assert (await limiter.check("k", LIMIT)).source == "local"
        assert time.monotonic() - start < generous(SLOW_S - 0.02)


def test_the_child_of_a_fork_has_a_first_connection_of_its_own(slow: Proxy) -> None:
    with Limiter(url_of(slow)) as limiter:
        limiter.ping()
        assert in_child(lambda: limiter.check("k", LIMIT).source == "store")


@contextmanager
def slow_cluster() -> Iterator[list[Proxy]]:
    """A cluster that is reached through proxies: connecting takes more than 100 ms."""
    with (
        servers.cluster(servers.binaries()["valkey"]) as cluster,
        proxy(cluster.ports[0]) as first,
        proxy(cluster.ports[1]) as second,
        proxy(cluster.ports[2]) as third,
    ):
        fronts = [first, second, third]
        cluster.announce([front.port for front in fronts])
        for front in fronts:
            front.connect_delay, front.delay = 0.07, 0.004
        yield fronts


def test_a_cluster_has_time_for_its_shape_and_for_each_node() -> None:
    with slow_cluster() as fronts:
        url = f"redis+cluster://127.0.0.1:{fronts[0].port}"
        for form in FORMS:
            # Eight keys are on all three nodes.
            assert sources(decide(url, form, 8)) == {"store"}, form
        # A request on several nodes is refused by one of them, and charged nothing by the others.
        used, unused = Check(Limit(1, 60), "used"), Check(Limit(1, 60), "a different node")
        asyncio.run(decide_together(url, used, unused))


async def decide_together(url: str, used: Check, unused: Check) -> None:
    async with AsyncLimiter(url) as limiter:
        await limiter.decide(used)
    async with AsyncLimiter(url) as limiter:
        decision = await limiter.decide(used, unused)
        assert (decision.allowed, decision.source) == (False, "store")
        assert limiter.lost_refunds == 0
        assert (await limiter.peek("a different node", "1/minute")).remaining == 1


def test_an_asgi_application_connects_at_startup(slow: Proxy) -> None:
    asyncio.run(first_request(slow))


async def first_request(slow: Proxy) -> None:
    slow.connect_delay = TOO_SLOW_S
    told: list[Decision] = []

    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("")

    async with AsyncLimiter(url_of(slow), observers=[told.append]) as limiter:
        app = Starlette(routes=[Route("/", home)])
        app.add_middleware(RateLimitMiddleware, limiter, "100/minute")
        async with started(app):
            await app(
                {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("::1", 1)},
                _receive,
                _send,
            )
    assert [decision.source for decision in told] == ["store"]


def test_an_asgi_application_starts_without_its_store(slow: Proxy) -> None:
    asyncio.run(start_without_store(slow))


async def start_without_store(slow: Proxy) -> None:
    slow.refuse()
    async with AsyncLimiter(url_of(slow)) as limiter:
        app = Starlette()
        app.add_middleware(RateLimitMiddleware, limiter, "100/minute")
        async with started(app):
            pass


def test_the_first_request_of_a_service_is_decided_by_the_store(
    slow: Proxy, tmp_path: Path
) -> None:
    slow.connect_delay = TOO_SLOW_S
    with asking(tmp_path, "rules: []", {"store.url": url_of(slow)}) as [service]:
        verdict = service.check(key="k", limits="100/minute")
    assert (verdict.allowed, verdict.degraded) == (True, False)


@asynccontextmanager
async def started(app: Starlette) -> AsyncIterator[None]:
    """Start an application, and end it, as a server does."""
    asked: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    answers: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    running = asyncio.create_task(app(scope, asked.get, answers.put))  # type: ignore[arg-type]
    await asked.put({"type": "lifespan.startup"})
    assert (await answers.get())["type"] == "lifespan.startup.complete"
    yield
    await asked.put({"type": "lifespan.shutdown"})
    assert (await answers.get())["type"] == "lifespan.shutdown.complete"
    await running


async def _receive() -> dict[str, str]:
    return {"type": "http.request"}


async def _send(message: object) -> None:
    pass
