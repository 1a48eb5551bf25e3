"""What a client sees of the transports, over real sockets: both libraries, threads and asyncio."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import AsyncIterator, Iterator
from email.utils import formatdate
from typing import Any

import pytest

import limen
from limen import ConfigurationError, InvalidInput, InvalidLimit, LimenError, Limit
from limen.engine import AsyncEngine, Engine
from limen.rules import parse_text
from limen.testing import ManualClock
from tests.adapters.outgoing.drivers import Driver
from tests.adapters.outgoing.upstream import CHUNKS, Upstream, serving


def test_a_request_waits_for_its_turn(driver: Driver, upstream: Upstream) -> None:
    clock = ManualClock()
    limiter = driver.limiter(clock=clock)
    caller = driver.call(driver.transport(limiter, "2/minute", wait=600), upstream.url)
    sent_at = []
    for _ in range(5):
        assert caller.get().status_code == 200
        sent_at.append(clock.monotonic())
    assert sent_at == [0, 0, 60, 60, 120]


def test_what_would_wait_too_long_is_refused_at_once_and_not_sent(
    driver: Driver, upstream: Upstream
) -> None:
    clock = ManualClock()
    limiter = driver.limiter(clock=clock)
    caller = driver.call(driver.transport(limiter, "1/minute", wait=59), upstream.url)
    caller.get()
    with pytest.raises(driver.error) as told:
        caller.get()
    assert told.value.retry_after == 60
    assert str(told.value) == (
        "not sent: over the limit of 1/minute for 60 s; "
        "wait that long, or give the transport a longer wait="
    )
    assert clock.monotonic() == 0
    assert len(upstream.calls) == 1


def test_the_error_is_one_of_limen_and_one_of_the_library(
    driver: Driver, upstream: Upstream
) -> None:
    limiter = driver.limiter(clock=ManualClock())
    caller = driver.call(driver.transport(limiter, "1/minute", wait=0), upstream.url)
    caller.get()
    with pytest.raises(driver.library.TransportError) as told:
        caller.get("/second")
    error: Any = told.value
    assert error.request.url.path == "/second"
    assert isinstance(error, LimenError)
    assert "\n" not in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.retry_after) == (driver.error, 60)


@pytest.mark.parametrize("wait", [0, False, 0.0])
def test_who_never_waits_is_sent_or_refused(driver: Driver, upstream: Upstream, wait: Any) -> None:
    clock = ManualClock()
    limiter = driver.limiter(clock=clock)
    caller = driver.call(driver.transport(limiter, "2/minute", wait=wait), upstream.url)
    caller.get()
    caller.get()
    with pytest.raises(driver.error):
        caller.get()
    assert clock.monotonic() == 0
    clock.advance(60)
    assert caller.get().status_code == 200


def test_the_delay_of_a_leaky_bucket_is_sat_out(driver: Driver, upstream: Upstream) -> None:
    clock = ManualClock()
    even = Limit(60, 60, algorithm="leaky_bucket")
    limiter = driver.limiter(clock=clock)
    caller = driver.call(driver.transport(limiter, even), upstream.url)
    at_once = driver.call(driver.transport(limiter, even, wait=0), upstream.url)
    for second in range(3):
        caller.get()
        assert clock.monotonic() == second
    with pytest.raises(driver.error) as told:
        at_once.get()
    assert told.value.retry_after == pytest.approx(1)
    # What was not sent was given back.
    caller.get()
    assert clock.monotonic() == 3


def test_several_limits_hold_together(driver: Driver, upstream: Upstream) -> None:
    clock = ManualClock()
    transport = driver.transport(driver.limiter(clock=clock), "2/second; 3/minute", wait=None)
    caller = driver.call(transport, upstream.url)
    sent_at = []
    for _ in range(4):
        caller.get()
        sent_at.append(clock.monotonic())
    assert sent_at == [0, 0, 1, 60]


def test_sends_by_a_transport_of_the_library_if_it_is_not_said_which(
    driver: Driver, upstream: Upstream
) -> None:
    caller = driver.call(driver.ours(driver.limiter(), "9/minute"), upstream.url)
    assert caller.get().status_code == 200


def test_each_host_is_counted_apart(driver: Driver, upstream: Upstream) -> None:
    with serving() as other:
        limiter = driver.limiter(clock=ManualClock())
        caller = driver.call(driver.transport(limiter, "1/minute", wait=0))
        # Users, paths and queries are no other host.
        caller.get(f"{upstream.url}/one?a=1")
        caller.get(f"{other.url}/one")
        with pytest.raises(driver.error):
            caller.get(f"{upstream.url.replace('//', '//ann:secret@')}/two")
        assert len(upstream.calls) == len(other.calls) == 1
        assert driver.runner is not None or not limiter.peek(upstream.url, "1/minute").allowed
        caller.close()


def test_a_function_says_what_is_counted_apart(driver: Driver, upstream: Upstream) -> None:
    limiter = driver.limiter(clock=ManualClock())

    def by_token(request: Any) -> str:
        return f"api:{request.headers['authorization']}"

    caller = driver.call(driver.transport(limiter, "1/minute", key=by_token, wait=0), upstream.url)
    caller.get(headers={"authorization": "ann"})
    caller.get(headers={"authorization": "bob"})
    with pytest.raises(driver.error) as told:
        caller.get(headers={"authorization": "ann"})
    assert "ann" not in str(told.value)


@pytest.mark.parametrize(
    ("answer", "got"), [(None, "None"), (b"ann", "bytes"), (42, "int"), ("", "empty text")]
)
def test_a_key_that_is_no_text_is_an_error_that_names_the_function(
    driver: Driver, upstream: Upstream, answer: Any, got: str
) -> None:
    def tenant_of(request: Any) -> Any:
        return answer

    caller = driver.call(
        driver.transport(driver.limiter(), "1/minute", key=tenant_of), upstream.url
    )
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=rf"tenant_of returned {got}, and not text"):
            caller.get()
    assert upstream.calls == []


@pytest.mark.parametrize("which", ["key", "cost", "exempt_when"])
def test_a_function_that_raises_is_an_error_that_names_it(
    driver: Driver, upstream: Upstream, which: str
) -> None:
    def broken(request: Any) -> Any:
        return request.headers["x-secret-name"]

    transport = driver.transport(driver.limiter(), "1/minute", **{which: broken})
    caller = driver.call(transport, upstream.url)
    with pytest.raises(ConfigurationError, match=rf"broken, given as {which}=, raised") as told:
        caller.get()
    assert "secret" not in str(told.value)
    assert isinstance(told.value.__cause__, KeyError)
    assert upstream.calls == []


def test_a_request_may_cost_more(driver: Driver, upstream: Upstream) -> None:
    clock = ManualClock()

    def pages_of(request: Any) -> int:
        return int(request.url.params["pages"])

    transport = driver.transport(driver.limiter(clock=clock), "10/minute", cost=pages_of, wait=600)
    caller = driver.call(transport, upstream.url)
    caller.get("/?pages=6")
    caller.get("/?pages=4")
    caller.get("/?pages=0")
    assert clock.monotonic() == 0
    caller.get("/?pages=5")
    assert clock.monotonic() == 60
    with pytest.raises(driver.error, match="it never fits; lower the cost, or raise") as told:
        caller.get("/?pages=11")
    assert told.value.retry_after is None
    with pytest.raises(ConfigurationError, match=r"the cost function .*pages_of: cost must be"):
        caller.get("/?pages=-1")
    fixed = driver.call(driver.transport(driver.limiter(), "4/day", cost=3, wait=0), upstream.url)
    fixed.get()
    with pytest.raises(driver.error):
        fixed.get()


def test_an_exempt_request_is_neither_counted_nor_held_up_nor_learnt_from(
    driver: Driver, upstream: Upstream
) -> None:
    transport = driver.transport(
        driver.limiter(clock=ManualClock()),
        "1/minute",
        exempt_when=lambda request: request.url.path == "/health",
        wait=0,
    )
    caller = driver.call(transport, upstream.url)
    for _ in range(3):
        upstream.reply(503, retry_after="100")
        assert caller.get("/health").status_code == 503
    assert caller.get("/paid").status_code == 200
    with pytest.raises(driver.error):
        caller.get("/paid")
    assert caller.get("/health").status_code == 200


def test_functions_may_be_async_on_asyncio(driver: Driver, upstream: Upstream) -> None:
    async def is_exempt(request: Any) -> bool:
        await asyncio.sleep(0)
        return bool(request.url.path == "/health")

    async def tenant(request: Any) -> str:
        await asyncio.sleep(0)
        return str(request.url.path)

    async def cost(request: Any) -> int:
        return 1

    settings = {"key": tenant, "cost": cost, "exempt_when": is_exempt, "wait": 0}
    if not driver.is_async:
        for name, function in settings.items():
            if name != "wait":
                with pytest.raises(ConfigurationError, match="is async, and a transport of thre"):
                    driver.transport(driver.limiter(), "1/minute", **{name: function})
        return
    caller = driver.call(driver.transport(driver.limiter(), "1/minute", **settings), upstream.url)
    for path in ("/a", "/b", "/health", "/health"):
        assert caller.get(path).status_code == 200
    with pytest.raises(driver.error):
        caller.get("/a")


PAUSES: list[tuple[int, dict[str, str]]] = [
    (429, {"retry_after": "30"}),
    (503, {"retry_after": "30"}),
    (429, {"retry_after": "@30"}),
    (200, {"ratelimit": '"burst";r=0;t=30'}),
    (200, {"ratelimit": '"burst";a=0;w=30'}),
    (200, {"ratelimit": "limit=9, remaining=0, reset=30"}),
    (200, {"ratelimit_remaining": "0", "ratelimit_reset": "30"}),
    (200, {"x_ratelimit_remaining": "0", "x_ratelimit_reset": "30"}),
    (403, {"x_ratelimit_remaining": "0", "x_ratelimit_reset": "1800000030"}),
]


@pytest.mark.parametrize(("status", "told"), PAUSES)
def test_nothing_is_sent_while_the_server_asks_for_a_pause(
    driver: Driver, upstream: Upstream, status: int, told: dict[str, str]
) -> None:
    clock = ManualClock()
    caller = driver.call(driver.transport(driver.limiter(clock=clock), wait=60), upstream.url)
    at = {"@30": formatdate(1_800_000_030, usegmt=True)}
    fields = {name: at.get(value, value) for name, value in told.items()}
    upstream.reply(status, date=formatdate(1_800_000_000, usegmt=True), **fields)
    # The response itself is the caller's, whatever it is.
    assert caller.get().status_code == status
    assert clock.monotonic() == 0
    assert caller.get().status_code == 200
    assert 30 <= clock.monotonic() <= 33
    caller.get()
    assert clock.monotonic() <= 33


def test_a_pause_that_does_not_fit_is_refused_at_once(driver: Driver, upstream: Upstream) -> None:
    clock = ManualClock()
    transport = driver.transport(driver.limiter(clock=clock), "100/minute", wait=29)
    caller = driver.call(transport, upstream.url)
    upstream.reply(429, retry_after="30")
    caller.get()
    with pytest.raises(driver.error, match="its server wants no more for 30 s") as told:
        caller.get()
    assert told.value.retry_after == 30
    assert clock.monotonic() == 0
    clock.advance(2)
    caller.get()
    assert len(upstream.calls) == 2


def test_no_server_can_ask_for_a_pause_beyond_the_bound(driver: Driver, upstream: Upstream) -> None:
    clock = ManualClock()
    limiter = driver.limiter(clock=clock)
    caller = driver.call(driver.transport(limiter, wait=None), upstream.url)
    upstream.reply(429, retry_after="31536000")
    caller.get()
    caller.get()
    assert 300 <= clock.monotonic() <= 330
    brief = driver.call(driver.transport(limiter, wait=0, max_pause=5), upstream.url)
    upstream.reply(429, retry_after="31536000")
    brief.get()
    with pytest.raises(driver.error) as told:
        brief.get()
    assert told.value.retry_after == pytest.approx(5)


def test_a_pause_is_for_its_own_key_alone(driver: Driver, upstream: Upstream) -> None:
    limiter = driver.limiter(clock=ManualClock())
    transport = driver.transport(limiter, key=lambda request: request.url.path, wait=0)
    caller = driver.call(transport, upstream.url)
    upstream.reply(429, retry_after="30")
    caller.get("/a")
    assert caller.get("/b").status_code == 200
    with pytest.raises(driver.error):
        caller.get("/a")


@pytest.mark.parametrize(
    "told",
    [
        {"retry_after": "soon"},
        {"retry_after": "30", "age": "5"},
        {"ratelimit": '"burst";r=0;t=30,'},
        {"ratelimit": "\xe9\xff"},
        {"x_ratelimit_remaining": "0", "x_ratelimit_reset": "6m0s"},
    ],
)
def test_what_is_malformed_or_from_a_cache_is_not_learnt_from(
    driver: Driver, upstream: Upstream, told: dict[str, str]
) -> None:
    transport = driver.transport(driver.limiter(clock=ManualClock()), wait=0)
    caller = driver.call(transport, upstream.url)
    upstream.reply(429, **told)
    assert caller.get().status_code == 429
    assert caller.get().status_code == 200


def test_who_does_not_want_to_learn_need_not(driver: Driver, upstream: Upstream) -> None:
    transport = driver.transport(driver.limiter(clock=ManualClock()), wait=0, learn=False)
    caller = driver.call(transport, upstream.url)
    upstream.reply(429, retry_after="30")
    caller.get()
    assert caller.get().status_code == 200


def test_to_send_again_after_a_429_is_to_wait_for_as_long_as_the_server_said(
    driver: Driver, upstream: Upstream
) -> None:
    clock = ManualClock()
    caller = driver.call(driver.transport(driver.limiter(clock=clock)), upstream.url)
    upstream.reply(429, retry_after="7")
    response = caller.get("/again")
    assert response.status_code == 429
    response = caller.run(caller.client.send(response.request))
    assert response.status_code == 200
    assert clock.monotonic() >= 7
    assert upstream.paths == ["/again", "/again"]


def test_bodies_are_streamed_both_ways(driver: Driver, upstream: Upstream) -> None:
    clock = ManualClock()
    transport = driver.transport(driver.limiter(clock=clock), "1/minute", wait=60)
    caller = driver.call(transport, upstream.url)

    def chunks() -> Iterator[bytes]:
        yield from CHUNKS

    async def chunks_async() -> AsyncIterator[bytes]:
        for chunk in CHUNKS:
            yield chunk

    caller.post(content=chunks_async() if driver.is_async else chunks())
    assert upstream.calls[0].body == b"".join(CHUNKS)
    upstream.reply(200, ratelimit='"burst";r=0;t=90')

    def read() -> bytes:
        with caller.client.stream("GET", "/stream") as response:
            return b"".join(response.iter_raw())

    async def read_async() -> bytes:
        async with caller.client.stream("GET", "/stream") as response:
            return b"".join([chunk async for chunk in response.aiter_raw()])

    assert caller.run(read_async() if driver.is_async else read()) == b"".join(CHUNKS)
    with pytest.raises(driver.error, match="its server wants no more for 90 s"):
        caller.get()


def test_serves_as_a_mount(driver: Driver, upstream: Upstream) -> None:
    with serving() as other:
        limited = driver.transport(driver.limiter(clock=ManualClock()), "1/minute", wait=0)
        caller = driver.call(driver.plain(), mounts={upstream.url: limited})
        caller.get(f"{upstream.url}/")
        with pytest.raises(driver.error):
            caller.get(f"{upstream.url}/")
        for _ in range(3):
            assert caller.get(f"{other.url}/").status_code == 200
        caller.close()


def test_each_step_of_a_redirection_counts(driver: Driver, upstream: Upstream) -> None:
    limiter = driver.limiter(clock=ManualClock())
    transport = driver.transport(limiter, "2/minute", wait=0)
    caller = driver.call(transport, upstream.url, follow_redirects=True)
    upstream.reply(302, location="/there")
    assert caller.get("/here").status_code == 200
    assert upstream.paths == ["/here", "/there"]
    with pytest.raises(driver.error):
        caller.get()


def test_the_wrapped_transport_does_the_sending_and_is_closed_with_it(
    driver: Driver, upstream: Upstream
) -> None:
    done: list[str] = []
    own: Any = type(driver.plain())
    if driver.is_async:

        class Wrapped(own):  # type: ignore[misc]  # it depends on the library
            async def aclose(self) -> None:
                done.append("closed")
                await super().aclose()

            async def __aenter__(self) -> Any:
                done.append("entered")
                return await super().__aenter__()

            async def __aexit__(self, *error: Any) -> None:
                done.append("left")
                await super().__aexit__(*error)
    else:

        class Wrapped(own):  # type: ignore[misc, no-redef]  # it depends on the library
            def close(self) -> None:
                done.append("closed")
                super().close()

            def __enter__(self) -> Any:
                done.append("entered")
                return super().__enter__()

            def __exit__(self, *error: Any) -> None:
                done.append("left")
                super().__exit__(*error)

    limiter = driver.limiter()
    caller = driver.call(driver.transport(limiter, "9/minute", wrapped=Wrapped()), upstream.url)
    caller.get()
    assert done == []
    caller.close()
    assert done == ["closed"]
    done.clear()
    again = driver.call(driver.transport(limiter, "9/minute", wrapped=Wrapped()), upstream.url)

    async def use_async() -> None:
        async with again.client:
            await again.client.get("/")

    if driver.is_async:
        again.run(use_async())
    else:
        with again.client:
            again.get()
    assert done == ["entered", "left"]
    # The limiter is not its own, and goes on.
    assert driver.call(driver.transport(limiter, "9/minute"), upstream.url).get()


def test_errors_of_the_wrapped_transport_pass_through(driver: Driver, upstream: Upstream) -> None:
    caller = driver.call(driver.transport(driver.limiter(), "9/minute"))
    with pytest.raises(driver.library.ConnectError):
        caller.get("http://127.0.0.1:1/")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"key": "sk-secret"}, "key must be 'host', or a function .*, got other text$"),
        ({"key": 7}, "key must be 'host', or a function .*, got int$"),
        ({"key": None}, "key must be 'host', or a function .*, got NoneType$"),
        ({"exempt_when": True}, "exempt_when must be a function of the request, got True"),
        ({"wait": -1}, "wait must be seconds from 0, or None to wait without end, got -1"),
        ({"wait": True}, "wait must be seconds from 0"),
        ({"wait": float("nan")}, "wait must be seconds from 0"),
        ({"wait": "30"}, "wait must be seconds from 0"),
        ({"learn": 1}, "learn must be True or False, got 1"),
        ({"max_pause": 0}, "max_pause must be seconds above 0, a year at most, got 0"),
        ({"max_pause": True}, "max_pause must be seconds above 0"),
        ({"max_pause": float("inf")}, "max_pause must be seconds above 0, a year at most"),
        ({"wrapped": object()}, r"wrapped must be an httpx2?\.(Async)?BaseTransport, got a"),
    ],
)
def test_settings_that_make_no_sense_are_refused_when_it_is_made(
    driver: Driver, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        driver.transport(driver.limiter(), "1/minute", **settings)


def test_limits_and_costs_that_make_no_sense_are_refused_when_it_is_made(driver: Driver) -> None:
    with pytest.raises(InvalidLimit):
        driver.transport(driver.limiter(), "10/fortnight")
    with pytest.raises(InvalidInput, match="a limit must be a Limit or text"):
        driver.transport(driver.limiter(), 10)
    with pytest.raises(InvalidInput, match="cost must be a whole number"):
        driver.transport(driver.limiter(), "1/minute", cost=-1)


def test_a_limiter_of_the_wrong_kind_is_an_error_that_names_the_right_one(driver: Driver) -> None:
    right = {"AsyncLimiter": "a Limiter", "AsyncClient": "a Client"}
    if driver.is_async:
        right = {"Limiter": "an AsyncLimiter", "Client": "an AsyncClient"}
    for name, expected in right.items():
        arguments = ["http://localhost:1"] if name.endswith("Client") else []
        wrong = getattr(limen, name)(*arguments)
        with pytest.raises(ConfigurationError, match=rf"give it {expected}, got an? {name}"):
            driver.transport(wrong, "1/minute")
    with pytest.raises(ConfigurationError, match=r"expected an? .*, got a str") as told:
        driver.transport("redis://:secret@localhost:6379", "1/minute")
    assert "secret" not in str(told.value)


def test_an_engine_is_an_error_that_names_its_limiter(driver: Driver) -> None:
    engine: Any = AsyncEngine if driver.is_async else Engine
    with pytest.raises(ConfigurationError, match="give it the limiter of the engine"):
        driver.transport(engine(parse_text("rules: []"), driver.limiter()), "1/minute")


def test_no_wait_takes_time_by_a_clock_that_is_set_by_hand(
    driver: Driver, upstream: Upstream
) -> None:
    began = time.monotonic()
    transport = driver.transport(driver.limiter(clock=ManualClock()), "1/day", wait=None)
    caller = driver.call(transport, upstream.url)
    for _ in range(4):
        upstream.reply(429, retry_after="120")
        caller.get()
    assert time.monotonic() - began < 60
