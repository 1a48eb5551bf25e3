"""The ASGI middleware, over real sockets under uvicorn."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import httpx2
import pytest
import websockets.sync.client as websockets
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.exceptions import InvalidStatus

from limen import (
    AsyncClient,
    AsyncLimiter,
    Client,
    Concurrency,
    ConfigurationError,
    InvalidLimit,
    Limit,
    Limiter,
)
from limen.adapters import AddressSettings, RateLimit, either, header
from limen.adapters.asgi import RateLimitMiddleware
from limen.engine import AsyncEngine
from limen.rules import parse_text
from limen.testing import ManualClock
from tests.adapters.serving import serving
from tests.client.services import Served
from tests.gateways.app import ask
from tests.servers import HOST
from tests.waiting import wait_until


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


async def login(request: Request) -> Response:
    return PlainTextResponse("", 200 if request.query_params.get("password") == "right" else 401)


async def fail(request: Request) -> Response:
    raise RuntimeError("on purpose")


def app(*routes: Any, **names: Any) -> Starlette:
    return Starlette(
        routes=[
            Route("/", hello, methods=["GET", "POST"]),
            Route("/users/{id}", hello),
            Route("/login", login),
            Route("/fail", fail),
            *routes,
        ],
        **names,
    )


def limited(*limits: Any, source: Any = None, of: Any = None, **options: Any) -> Any:
    return RateLimitMiddleware(of or app(), source or AsyncLimiter(), *limits, **options)


def serving_on(source: Any, *limits: Any, **more: Any) -> AbstractContextManager[httpx2.Client]:
    """Serve with a source that has connections, which it closes at the end."""
    return serving(limited(*limits, source=source, **more), source)


def statuses(client: httpx2.Client, count: int, path: str = "/", **more: Any) -> list[int]:
    return [client.get(path, **more).status_code for _ in range(count)]


def test_tells_where_a_client_stands_and_refuses_who_is_over_it() -> None:
    clock = ManualClock()
    with serving(limited("2/minute", source=AsyncLimiter(clock=clock))) as client:
        first, second, third = [client.get("/") for _ in range(3)]
        assert (first.status_code, first.text) == (200, "hello")
        assert first.headers["ratelimit-policy"] == '"2/minute";q=2;w=60'
        assert first.headers["ratelimit"] == '"2/minute";r=1;t=60'
        assert "retry-after" not in first.headers
        assert second.headers["ratelimit"] == '"2/minute";r=0;t=60'
        assert third.status_code == 429
        assert third.headers["content-type"] == "application/problem+json"
        assert third.headers["retry-after"] == "60"
        assert third.headers["cache-control"] == "no-store"
        assert third.json() == {
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": 429,
            "detail": "2 requests a minute are allowed for this address; come back in 60 s.",
            "violated-policies": ["2/minute"],
            "retry-after": 60,
        }
        clock.advance(59.999)
        assert statuses(client, 1) == [429]
        clock.advance(0.001)
        assert statuses(client, 3) == [200, 200, 429]


def test_a_browser_gets_a_page() -> None:
    with serving(limited("1/hour")) as client:
        refused = [client.get("/", headers={"Accept": "text/html,*/*;q=0.8"}) for _ in range(2)][1]
        assert refused.headers["content-type"] == "text/html; charset=utf-8"
        assert "<h1>Quota Exceeded</h1>" in refused.text


def test_several_limits_are_all_or_nothing() -> None:
    clock = ManualClock()
    limits = ("1/second", "3/hour", RateLimit("5/day", key="everyone"))
    with serving(limited(*limits, source=AsyncLimiter(clock=clock))) as client:
        assert statuses(client, 4) == [200, 429, 429, 429]
        clock.advance(1)
        allowed = client.get("/")
        # Who was refused by the first limit was charged by none.
        assert allowed.headers["ratelimit"] == (
            '"1/second";r=0;t=1, "3/hour";r=1;t=3600, "5/day";r=3;t=86400'
        )


def test_two_that_would_share_a_state_are_an_error_when_it_is_made() -> None:
    with pytest.raises(ConfigurationError, match="would share one state"):
        limited(RateLimit("9/hour"), RateLimit("2/hour"))
    with serving(limited(RateLimit("9/hour"), RateLimit("2/hour", scope="few"))) as client:
        assert statuses(client, 4) == [200, 200, 429, 429]


def test_the_same_limit_of_another_store_is_another_limit() -> None:
    inside = limited("2/hour", source=AsyncLimiter())
    with serving(limited("2/hour", of=inside)) as client:
        answer = client.get("/")
        assert answer.headers["ratelimit-policy"].count("2/hour") == 2
        assert statuses(client, 2) == [200, 429]


def test_async_by_a_detour_is_awaited() -> None:
    class Staff:
        async def __call__(self, request: Any) -> bool:
            await asyncio.sleep(0)
            return False

    is_staff = Staff()
    limit = RateLimit("1/hour", exempt_when=lambda request: is_staff(request), key=lambda _: "k")
    with serving(limited(limit)) as client:
        assert statuses(client, 2) == [200, 429]


@pytest.mark.parametrize(
    "cost", [3, lambda request: len(request.header("x-weight")) * 3], ids=["number", "function"]
)
def test_a_request_costs_what_it_is_said_to(cost: Any) -> None:
    with serving(limited(RateLimit("7/hour", cost=cost))) as client:
        answers = [client.get("/", headers={"X-Weight": "1"}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[1].headers["ratelimit"].startswith('"7/hour";r=1;')


def test_who_is_exempt_is_not_limited_nor_told() -> None:
    async def is_healthy(request: Any) -> bool:
        await asyncio.sleep(0)
        return bool(request.path == "/users/me")

    with serving(limited(RateLimit("1/hour", exempt_when=is_healthy))) as client:
        assert statuses(client, 3, "/users/me") == [200, 200, 200]
        assert "ratelimit" not in client.get("/users/me").headers
        assert statuses(client, 2) == [200, 429]


def test_counts_failed_logins_and_no_others() -> None:
    clock = ManualClock()
    limit = RateLimit("2/minute", deduct_when=lambda response: response.status == 401)
    with serving(limited(limit, source=AsyncLimiter(clock=clock))) as client:
        for _ in range(5):
            right = client.get("/login?password=right")
            assert right.status_code == 200
            # It is given back, so it never was there.
            assert right.headers["ratelimit"].startswith('"2/minute";r=2;')
        wrong = [client.get("/login") for _ in range(3)]
        assert [answer.status_code for answer in wrong] == [401, 401, 429]
        assert wrong[0].headers["ratelimit"].startswith('"2/minute";r=1;')
        assert client.get("/login?password=right").status_code == 429


def test_nobody_gets_past_by_failing_many_times_at_once() -> None:
    arrived = threading.Semaphore(0)

    async def slow_login(request: Request) -> Response:
        arrived.release()
        await asyncio.sleep(0.2)
        return Response(status_code=401)

    limit = RateLimit("3/hour", deduct_when=lambda response: response.status == 401)
    with serving(limited(limit, of=app(Route("/slow", slow_login)))) as client:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: client.get("/slow").status_code, range(8)))
        assert sorted(found) == [401] * 3 + [429] * 5


def test_an_application_that_fails_is_a_500_for_deduct_when() -> None:
    limit = RateLimit("1/hour", deduct_when=lambda response: response.status_code < 500)
    with serving(limited(limit)) as client:
        assert statuses(client, 3, "/fail", headers={"Connection": "close"}) == [500] * 3
        assert statuses(client, 2) == [200, 429]


def test_settles_what_a_response_cost_in_the_end() -> None:
    async def chunks(request: Request) -> Response:
        async def body() -> Any:
            for _ in range(4):
                yield b"x" * 5

        return StreamingResponse(body())

    limiter = AsyncLimiter()
    limit = RateLimit("100/hour", settle=lambda response: response.bytes_sent)

    def left() -> int:
        return asyncio.run(limiter.peek("ip=127.0.0.1", "100/hour")).remaining

    with serving(limited(limit, source=limiter, of=app(Route("/chunks", chunks)))) as client:
        assert client.get("/chunks").headers["ratelimit"].startswith('"100/hour";r=99;')
        # Settled before the last of it was sent.
        assert left() == 80


def test_an_endpoint_says_what_it_cost() -> None:
    async def llm(request: Request) -> Response:
        request.scope["limen.visit"].costs(40)
        return PlainTextResponse("")

    limiter = AsyncLimiter()
    with serving(limited("100/hour", source=limiter, of=app(Route("/llm", llm)))) as client:
        client.get("/llm")
        wait_until(lambda: asyncio.run(limiter.peek("ip=127.0.0.1", "100/hour")).remaining == 60)


def test_an_endpoint_says_what_it_cost_under_one_scope() -> None:
    async def llm(request: Request) -> Response:
        request.scope["limen.visit"].costs(40, scope="tokens")
        return PlainTextResponse("")

    limits = ("100/hour", RateLimit("500/hour", scope="tokens", key="everyone"))
    limiter = AsyncLimiter()
    with serving(limited(*limits, source=limiter, of=app(Route("/llm", llm)))) as client:
        client.get("/llm")
        answer = client.get("/")
        assert '"100/hour";r=98;' in answer.headers["ratelimit"]
        assert '"500/hour";r=459;' in answer.headers["ratelimit"]


def test_a_function_that_fails_after_the_response_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limit = RateLimit("2/hour", deduct_when=lambda response: 1 / 0)
    with serving(limited(limit)) as client:
        assert statuses(client, 3) == [200, 200, 429]
    assert "failed; what the request was charged stays" in caplog.text


class TestSlots:
    def test_is_held_until_a_streamed_response_is_sent(self) -> None:
        go_on = threading.Event()

        async def stream(request: Request) -> Response:
            async def body() -> Any:
                yield b"first"
                await asyncio.to_thread(go_on.wait, 30)
                yield b"second"

            return StreamingResponse(body())

        limit = RateLimit(Concurrency(1, lease=30))
        with serving(limited(limit, of=app(Route("/stream", stream)))) as client:
            with client.stream("GET", "/stream") as streamed:
                assert streamed.headers["ratelimit"] == '"1 at once";r=0'
                parts = streamed.iter_raw()
                # It came while the rest is not there yet.
                assert next(parts) == b"first"
                refused = client.get("/")
                assert refused.status_code == 429
                assert "at a time" in refused.json()["detail"]
                go_on.set()
                assert next(parts) == b"second"
            wait_until(lambda: client.get("/").status_code == 200)

    def test_is_let_go_when_the_application_fails(self) -> None:
        with serving(limited(RateLimit(Concurrency(1, lease=30)))) as client:
            # uvicorn closes a connection on which an application failed.
            failed = client.get("/fail", headers={"Connection": "close"})
            assert failed.status_code == 500
            wait_until(lambda: client.get("/").status_code == 200)

    def test_is_let_go_when_the_client_goes_away(self) -> None:
        async def forever(request: Request) -> Response:
            async def body() -> Any:
                while True:
                    yield b"x" * 1_000
                    await asyncio.sleep(0.005)

            return StreamingResponse(body())

        limit = RateLimit(Concurrency(1, lease=30))
        with serving(limited(limit, of=app(Route("/forever", forever)))) as client:
            with client.stream("GET", "/forever") as streamed:
                parts = streamed.iter_raw()
                next(parts)
                assert client.get("/").status_code == 429
            wait_until(lambda: client.get("/").status_code == 200)


class TestWebsockets:
    def app(self) -> Starlette:
        async def echo(websocket: WebSocket) -> None:
            await websocket.accept()
            async for text in websocket.iter_text():
                await websocket.send_text(text)

        return app(WebSocketRoute("/echo", echo))

    def test_is_limited_as_it_connects(self) -> None:
        with serving(limited("2/hour", of=self.app())) as client:
            url = f"ws://{client.base_url.host}:{client.base_url.port}/echo"
            for left in (1, 0):
                with websockets.connect(url) as connection:
                    assert connection.response is not None
                    told = connection.response.headers["ratelimit"]
                    assert told.startswith(f'"2/hour";r={left};')
                    for _ in range(3):
                        connection.send("again")
                        assert connection.recv() == "again"
            with pytest.raises(InvalidStatus) as refused, websockets.connect(url):
                pass
            answer = refused.value.response
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) > 3_500
            assert b"Quota Exceeded" in answer.body

    def test_holds_its_slot_until_it_closes(self) -> None:
        limit = RateLimit(Concurrency(1, lease=30))
        with serving(limited(limit, of=self.app())) as client:
            url = f"ws://{client.base_url.host}:{client.base_url.port}/echo"
            with websockets.connect(url):
                assert client.get("/").status_code == 429
            wait_until(lambda: client.get("/").status_code == 200)

    def test_one_that_is_not_accepted_is_a_403_for_deduct_when(self) -> None:
        seen: list[int] = []

        async def no(websocket: WebSocket) -> None:
            await websocket.close()

        def is_counted(response: Any) -> bool:
            seen.append(response.status)
            return True

        limit = RateLimit("5/hour", deduct_when=is_counted)
        with serving(limited(limit, of=app(WebSocketRoute("/no", no)))) as client:
            url = f"ws://{client.base_url.host}:{client.base_url.port}/no"
            with pytest.raises(InvalidStatus), websockets.connect(url):
                pass
        assert seen == [403]

    def test_is_closed_where_the_server_cannot_answer_by_http(self) -> None:
        sent: list[Any] = []

        async def connect() -> None:
            async def receive() -> Any:
                return {"type": "websocket.connect"}

            async def send(message: Any) -> None:
                sent.append(message)

            at = limited("1/hour", of=self.app())
            for _ in range(2):
                scope = {"type": "websocket", "path": "/no", "headers": [], "client": ("::1", 1)}
                await at(scope, receive, send)

        asyncio.run(connect())
        assert sent[-1] == {"type": "websocket.close", "code": 1008, "reason": ""}


class TestKeys:
    def test_counts_a_header_apart_and_refuses_who_sends_none(self) -> None:
        with serving(limited(RateLimit("1/hour", key=header("X-Api-Key")))) as client:
            assert statuses(client, 2, headers={"X-Api-Key": "a"}) == [200, 429]
            assert statuses(client, 1, headers={"X-Api-Key": "b"}) == [200]
            for spelling in ("a\t", "a \t", "\ta"):
                sent = ("X-Api-Key", spelling)
                assert ask(client.base_url.port or 0, "/", sent, of=HOST).status == 429
            refused = client.get("/")
            assert refused.status_code == 403
            assert refused.json()["detail"] == (
                "This request has to say what it is counted by: X-Api-Key."
            )
            twice = client.get("/", headers=[("X-Api-Key", "a"), ("X-Api-Key", "c")])
            assert twice.status_code == 403

    def test_counts_who_is_logged_in_apart_and_others_by_address(self) -> None:
        class ByHeader(AuthenticationBackend):
            async def authenticate(
                self, conn: HTTPConnection
            ) -> tuple[AuthCredentials, SimpleUser] | None:
                name = conn.headers.get("x-name")
                return (AuthCredentials(["yes"]), SimpleUser(name)) if name else None

        inside = limited(RateLimit("1/hour", key=either("user", "ip")))
        with serving(AuthenticationMiddleware(inside, backend=ByHeader())) as client:
            for name in ("ada", "bob"):
                assert statuses(client, 2, headers={"X-Name": name}) == [200, 429]
            assert statuses(client, 2) == [200, 429]

    def test_counts_routes_by_their_template(self) -> None:
        limit = RateLimit("2/hour", key=("ip", "route"))
        with serving(limited(limit, routes=["/users/{id}", "/"])) as client:
            found = [client.get(f"/users/{number}").status_code for number in range(3)]
            assert found == [200, 200, 429]
            assert statuses(client, 1) == [200]

    def test_a_function_may_be_async(self) -> None:
        async def tenant_of(request: Any) -> str:
            await asyncio.sleep(0)
            return str(request.header("host")[0] + request.header("x-tenant")[0])

        with serving(limited(RateLimit("1/hour", key=tenant_of))) as client:
            assert statuses(client, 2, headers={"X-Tenant": "a"}) == [200, 429]
            assert statuses(client, 2, headers={"X-Tenant": "b"}) == [200, 429]

    def test_counts_paths_that_match_no_route_together(self) -> None:
        limit = RateLimit("2/hour", key=("ip", "route"))
        with serving(limited(limit, routes=["/users/{id}"])) as client:
            paths = ("/users/1", "/no", "/nowhere", "/none", "/users/2")
            assert [client.get(path).status_code for path in paths][3:] == [429, 200]

    @pytest.mark.parametrize("answer", [None, 42, "", 1 / 3])
    def test_refuses_requests_whose_key_function_returns_no_text(
        self, answer: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        def tenant_of(request: Any) -> Any:
            return answer

        with serving(limited(RateLimit("1/hour", key=tenant_of))) as client:
            # Every request, not only the second.
            assert statuses(client, 2) == [403, 403]
            answer = client.get("/", headers={"Accept": "application/problem+json"})
        assert answer.headers["content-type"] == "application/problem+json"
        assert "tenant_of" not in answer.text
        assert caplog.text.count("tenant_of returned") == 1

    @pytest.mark.parametrize(("missing", "status"), [("skip", 200), ("deny", 403)])
    def test_what_happens_then_can_be_said(
        self, missing: Any, status: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        def tenant_of(request: Any) -> str:
            raise KeyError("tenant")

        with serving(limited(RateLimit("1/hour", key=tenant_of, missing=missing))) as client:
            assert statuses(client, 3) == [status] * 3
            # What it is called here is nobody's business.
            assert "tenant" not in client.get("/").text
        assert caplog.text.count("tenant_of raised KeyError") == 1
        assert caplog.text.count("Traceback") == 1


class TestProxies:
    @pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
    def test_no_header_is_believed_unless_asked_for(self, name: str) -> None:
        with serving(limited("1/hour")) as client:
            found = [
                client.get("/", headers={name: value}).status_code
                for value in ("192.0.2.1", "for=192.0.2.2", "?,,;;=", "1" * 4_000)
            ]
            assert found == [200, 429, 429, 429]

    def test_a_server_that_believes_nonsense_does_no_harm(self) -> None:
        # What uvicorn does by itself, for who connects from the same host.
        with serving(limited("1/hour"), proxy_headers=True) as client:
            found = [
                client.get("/", headers={"X-Forwarded-For": value}).status_code
                for value in ("nonsense", "/", "a/b", "unix:", "192.0.2.1", "192.0.2.1")
            ]
            assert found == [200, 429, 429, 429, 200, 429]

    def test_a_trusted_proxy_says_who_asks(self) -> None:
        trusting = AddressSettings(trusted_proxies=("127.0.0.0/8",), header="X-Forwarded-For")
        with serving(limited("1/hour", addresses=trusting)) as client:

            def ask(value: str) -> int:
                return client.get("/", headers={"X-Forwarded-For": value}).status_code

            assert [ask("192.0.2.1"), ask("192.0.2.1"), ask("192.0.2.2")] == [200, 429, 200]
            # What stands to the left of it is the client's own invention.
            assert ask("192.0.2.99, 192.0.2.1") == 429
            # What cannot be read is not believed: it is the proxy who asked.
            assert [ask("nonsense"), ask("<script>")] == [200, 429]


class TestSources:
    def test_one_count_for_two_servers_on_one_store(self, store: str) -> None:
        limiters = [AsyncLimiter(store, namespace="two", deadline=5) for _ in range(2)]
        with (
            serving_on(limiters[0], "5/hour") as one,
            serving_on(limiters[1], "5/hour") as other,
        ):
            assert statuses(one, 3) + statuses(other, 3) == [200] * 5 + [429]
            assert statuses(one, 1) == [429]

    def test_rules_decide(self) -> None:
        rules = parse_text(
            """
            rules:
              - {name: reading, match: {path: /users/*, method: GET}, key: [ip], limits: 2/minute}
              - {name: no-login, match: {path: /login}, mode: block}
            """
        )
        engine = AsyncEngine(rules, AsyncLimiter())
        with serving(limited(RateLimit(), source=engine)) as client:
            assert statuses(client, 2, "/users/7") == [200, 200]
            refused = client.get("/users/8")
            assert refused.status_code == 429
            assert refused.json()["violated-policies"] == ["reading#1"]
            assert client.get("/login").status_code == 403
            assert "ratelimit" not in client.get("/").headers

    def test_rules_with_attributes_of_ones_own_and_with_slots(self) -> None:
        rules = parse_text(
            """
            rules:
              - name: by-plan
                key: [plan]
                limits: 100/minute
                cost: weight
              - {name: one, match: {path: /login}, key: [ip], concurrency: {slots: 1, lease: 9s}}
            """
        )
        engine = AsyncEngine(rules, AsyncLimiter())
        own = RateLimit(attributes=lambda request: {"plan": "free", "weight": "7"})
        with serving(limited(own, "2/hour", source=engine)) as client:
            answer = client.get("/login")
            assert answer.headers["ratelimit-policy"] == (
                '"2/hour";q=2;w=3600, "by-plan#1";q=100;w=60, "one#1";q=1;qu="concurrent-requests"'
            )
            assert '"by-plan#1";r=93;' in answer.headers["ratelimit"]
            wait_until(lambda: client.get("/login").status_code == 401)
            assert client.get("/").status_code == 429

    def test_a_limen_elsewhere_decides_by_its_rules(self, remote: Served) -> None:
        source = AsyncClient(remote.url, timeout=5)
        by_rules = RateLimit(attributes=lambda request: {"user": request.header("x-user")[0]})
        with serving_on(source, by_rules, of=app(Route("/two", hello))) as client:
            found = [client.get("/two", headers={"X-User": "asgi"}) for _ in range(9)]
            assert [answer.status_code for answer in found] == [200] * 8 + [429]
            assert found[0].headers["ratelimit"].startswith('"two-limits#1";r=7;')
            assert found[8].json()["violated-policies"] == ["two-limits#1"]
            assert client.get("/", headers={"X-User": "asgi"}).status_code == 200

    def test_a_limen_elsewhere_decides_by_limits_of_ones_own(self, remote: Served) -> None:
        source = AsyncClient(remote.url, timeout=5)
        limits = (RateLimit("3/hour", cost=2), RateLimit("8/day", Concurrency(1, lease=5), cost=3))
        with serving_on(source, *limits) as client:
            first, second = client.get("/"), client.get("/")
            assert (first.status_code, second.status_code) == (200, 429)
            assert '"3/hour";r=1;' in first.headers["ratelimit"]
            assert '"8/day";r=5;' in first.headers["ratelimit"]

    def test_what_a_limen_elsewhere_cannot_do_is_an_error_when_it_is_made(self) -> None:
        source = AsyncClient("http://127.0.0.1:1")
        for limit, message in (
            (RateLimit(Limit(3, 60, name="a")), "cannot tell limits apart by name"),
            (RateLimit("3/hour", on_error="open"), "on_error belongs there"),
            (
                RateLimit(Concurrency(1, lease=5), Concurrency(2, lease=6, name="b")),
                "one Concurrency",
            ),
        ):
            with pytest.raises(ConfigurationError, match=message):
                limited(limit, source=source)

    def test_rules_elsewhere_hold_slots_too(self, remote: Served) -> None:
        source = AsyncClient(remote.url, timeout=5)
        by_rules = RateLimit(attributes=lambda request: {"user": "asgi-slots"})
        with serving_on(source, by_rules, of=app(Route("/export", hello))) as client:
            answer = client.get("/export")
            assert '"exports-at-once#1"' in answer.headers["ratelimit-policy"]
            assert statuses(client, 4, "/export") == [200] * 4
            assert statuses(client, 1, "/export") == [429]

    def test_a_slot_is_let_go_when_the_rules_fail_after_it_was_taken(self) -> None:
        rules = parse_text("rules: [{name: w, key: [ip], limits: 9/minute, cost: weight}]")
        weights = iter(["no number", "1"])
        by_rules = RateLimit(attributes=lambda request: {"weight": next(weights)})
        slot = RateLimit(Concurrency(1, lease=60))
        source = AsyncEngine(rules, AsyncLimiter())
        with serving(limited(slot, by_rules, source=source)) as client:
            assert statuses(client, 1, headers={"Connection": "close"}) == [500]
            assert statuses(client, 1) == [200]

    def test_the_wrong_kind_is_an_error_that_names_the_right_one(self) -> None:
        with pytest.raises(ConfigurationError, match=r"give it an AsyncLimiter, got a Limiter"):
            limited("1/hour", source=Limiter())
        with (
            Client("http://127.0.0.1:1") as client,
            pytest.raises(ConfigurationError, match="an AsyncClient, got a Client"),
        ):
            limited("1/hour", source=client)
        with pytest.raises(ConfigurationError, match="expected an AsyncLimiter") as caught:
            limited("1/hour", source="redis://:hunter2@localhost")
        assert "hunter2" not in str(caught.value)
        with pytest.raises(ConfigurationError, match="a limiter knows no rules"):
            limited(RateLimit())


class TestStoreDown:
    def test_lets_requests_through_at_its_share_and_in_time(self, dead_store: str) -> None:
        with serving_on(AsyncLimiter(dead_store), "3/hour") as client:
            began = time.monotonic()
            assert statuses(client, 4) == [200, 200, 200, 429]
            assert time.monotonic() - began < 20

    def test_closed_is_a_503_that_says_so(self, dead_store: str) -> None:
        limit = RateLimit("3/hour", on_error="closed")
        with serving_on(AsyncLimiter(dead_store), limit) as client:
            refused = client.get("/")
            assert refused.status_code == 503
            assert refused.json()["title"] == "Temporary Reduced Capacity"
            assert refused.headers["retry-after"] == "1"

    def test_open_tells_of_the_policy_alone(self, dead_store: str) -> None:
        limit = RateLimit("1/hour", on_error="open")
        with serving_on(AsyncLimiter(dead_store), limit) as client:
            assert statuses(client, 3) == [200, 200, 200]
            answer = client.get("/")
            assert answer.headers["ratelimit-policy"] == '"1/hour";q=1;w=3600'
            assert "ratelimit" not in answer.headers


class TestTelling:
    def test_in_other_styles(self) -> None:
        with serving(limited("5/minute", headers=["x-ratelimit"])) as client:
            answer = client.get("/")
            assert answer.headers["x-ratelimit-limit"] == "5"
            assert answer.headers["x-ratelimit-remaining"] == "4"
            assert 0 < int(answer.headers["x-ratelimit-reset"]) - time.time() < 62
            assert "ratelimit" not in answer.headers

    def test_in_none(self) -> None:
        with serving(limited("1/minute", headers=[])) as client:
            allowed, refused = client.get("/"), client.get("/")
            assert not [name for name in allowed.headers if "ratelimit" in name]
            assert refused.headers["retry-after"] == "60"

    def test_exposes_the_headers_to_pages_of_other_origins(self) -> None:
        async def shows(request: Request) -> Response:
            return PlainTextResponse("", headers={"Access-Control-Expose-Headers": "X-Own"})

        with serving(limited("1/minute", expose=True, of=app(Route("/shows", shows)))) as client:
            told = [
                client.get("/shows").headers.get_list("access-control-expose-headers")
                for _ in range(2)
            ]
            assert told == [
                ["X-Own, RateLimit-Policy, RateLimit, Retry-After"],
                ["RateLimit-Policy, RateLimit, Retry-After"],
            ]

    def test_with_an_application_of_ones_own(self) -> None:
        async def sorry(scope: Any, receive: Any, send: Any) -> None:
            wait = scope["limen.visit"].answer().retry_after
            await JSONResponse({"sorry": round(wait)}, 418)(scope, receive, send)

        with serving(limited("1/minute", refused=sorry)) as client:
            refused = [client.get("/") for _ in range(2)][1]
            assert (refused.status_code, refused.json()) == (418, {"sorry": 60})
            assert refused.headers["retry-after"] == "60"

    def test_two_around_each_other_tell_once_and_charge_together(self) -> None:
        outer = AsyncLimiter()
        inside = limited(RateLimit("1/hour", scope="inside"), source=outer)
        with serving(limited("3/hour", source=outer, of=inside)) as client:
            first, second = client.get("/"), client.get("/")
            assert first.headers.get_list("ratelimit-policy") == [
                '"3/hour";q=3;w=3600, "1/hour";q=1;w=3600'
            ]
            assert second.status_code == 429
            # Refused by the inner one, and so charged by neither.
            left = asyncio.run(outer.peek("ip=127.0.0.1", "3/hour")).remaining
            assert left == 2

    def test_headers_of_the_application_with_the_same_names_give_way(self) -> None:
        async def tells(request: Request) -> Response:
            return PlainTextResponse("", headers={"RateLimit": '"own";r=1', "X-Own": "1"})

        with serving(limited("5/hour", of=app(Route("/tells", tells)))) as client:
            answer = client.get("/tells")
            assert len(answer.headers.get_list("ratelimit")) == 1
            assert answer.headers["ratelimit"].startswith('"5/hour"')
            assert answer.headers["x-own"] == "1"

    def test_a_bad_setting_is_said_when_it_is_made(self) -> None:
        with pytest.raises(ConfigurationError, match="did you mean 'draft-11'"):
            limited("1/hour", headers=["draft-1"])
        with pytest.raises(ConfigurationError, match="unknown option 'header'"):
            limited("1/hour", header=["draft-11"])
        with pytest.raises(ConfigurationError, match=r"is said by RateLimit\(\.\.\.\)"):
            limited("1/hour", key="user")
        with pytest.raises(ConfigurationError, match="expose must be True or False, got 'false'"):
            limited("1/hour", expose="false")
        with pytest.raises(ConfigurationError, match="unknown key 'ipp'"):
            RateLimit("1/hour", key="ipp")
        with pytest.raises(InvalidLimit):
            limited("1/parsec")


def test_a_leaky_bucket_delays_the_request() -> None:
    with serving(limited("20/second leaky_bucket max_delay 1s")) as client:
        began = time.monotonic()
        assert statuses(client, 5) == [200] * 5
        assert time.monotonic() - began >= 0.19


def test_a_lifespan_passes_through() -> None:
    seen: list[str] = []

    async def lifespan(app: Any) -> Any:
        seen.append("begin")
        yield
        seen.append("end")

    inner = app(lifespan=asynccontextmanager(lifespan))
    with serving(limited("1/hour", of=inner), lifespan="on") as client:
        assert statuses(client, 1) == [200]
    assert seen == ["begin", "end"]


def test_headers_of_the_application_may_be_an_iterator() -> None:
    async def answers(scope: Any, receive: Any, send: Any) -> None:
        headers = iter([(b"content-type", b"text/plain"), (b"set-cookie", b"a=1")])
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello"})

    with serving(limited("5/minute", of=answers)) as client:
        response = client.get("/")
    assert response.headers["set-cookie"] == "a=1"
    assert "ratelimit" in response.headers
