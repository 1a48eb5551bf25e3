"""What users of other libraries ran into, with ASGI and FastAPI: here it holds.

Each test names the library it happened in; sources are in the research that limen began with.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import httpx2
import pytest
import redis
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient

from limen import AsyncLimiter
from limen.adapters.fastapi import RateLimit, install
from limen.engine import AsyncEngine
from limen.rules import parse_text
from limen.testing import ManualClock
from tests import servers
from tests.adapters.serving import serving


def application(*limits: Any, limiter: Any = None, **options: Any) -> FastAPI:
    app = FastAPI()
    install(app, limiter or AsyncLimiter(), *limits, **options)
    return app


def test_slowapi_281_default_limits_reach_included_routers() -> None:
    app = application("2/hour")
    router = APIRouter()

    @router.get("/included")
    async def included() -> str:
        return "here"

    app.include_router(router, prefix="/v1")
    with serving(app) as client:
        assert [client.get("/v1/included").status_code for _ in range(3)] == [200, 200, 429]


def test_slowapi_3_a_store_that_hangs_does_not_stop_the_loop(valkey: servers.Server) -> None:
    limiter = AsyncLimiter(f"redis://127.0.0.1:{valkey.port}", deadline=3)
    app = application(limiter=limiter)

    @app.get("/limited", dependencies=[Depends(RateLimit("100/hour"))])
    async def limited() -> str:
        return "limited"

    @app.get("/free")
    async def free() -> str:
        return "free"

    with serving(app, limiter) as client:
        assert client.get("/limited").status_code == 200
        valkey.pause()
        took: list[float] = []
        waiting = threading.Thread(target=lambda: took.append(_seconds(client, "/limited")))
        waiting.start()
        time.sleep(0.2)
        for _ in range(5):
            assert client.get("/free").text
        assert not took, "the other one was answered too early to tell"
        waiting.join(30)
        valkey.resume()
        assert took[0] >= 2


def _seconds(client: httpx2.Client, path: str) -> float:
    began = time.monotonic()
    assert client.get(path).status_code == 200
    return time.monotonic() - began


def test_slowapi_a_dead_store_is_no_500_and_no_attribute_error(dead_store: str) -> None:
    limiter = AsyncLimiter(dead_store)
    app = application("5/hour", limiter=limiter)

    @app.get("/")
    async def home() -> None: ...

    with serving(app, limiter) as client:
        assert [client.get("/").status_code for _ in range(6)] == [200] * 5 + [429]


def test_slowapi_249_a_streamed_response_begins_once_and_comes_chunk_by_chunk() -> None:
    app = application("5/hour")
    sent: list[str] = []

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(iter([b"a", b"b", b"c"]))

    async def call() -> None:
        async def receive() -> Any:
            await asyncio.sleep(0)
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message["type"])

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/stream",
            "headers": [],
            "query_string": b"",
            "client": ("192.0.2.1", 1),
        }
        await app(scope, receive, send)

    asyncio.run(call())
    assert sent.count("http.response.start") == 1
    assert sent.count("http.response.body") >= 3


def test_slowapi_handlers_of_the_same_name_count_apart() -> None:
    app = application()

    def router(prefix: str) -> APIRouter:
        made = APIRouter(prefix=prefix)

        @made.get("/", dependencies=[Depends(RateLimit("1/hour"))])
        async def read() -> None: ...

        return made

    app.include_router(router("/users"))
    app.include_router(router("/orders"))
    with serving(app) as client:
        assert [client.get(path).status_code for path in ("/users/", "/orders/", "/users/")] == [
            200,
            200,
            429,
        ]


def test_slowapi_23_an_endpoint_needs_no_parameter_for_it() -> None:
    app = application()

    @app.get("/sum", dependencies=[Depends(RateLimit("5/hour"))])
    def add(a: int, b: int) -> int:
        return a + b

    client = TestClient(app)
    assert client.get("/sum?a=1&b=2").json() == 3
    parameters = app.openapi()["paths"]["/sum"]["get"]["parameters"]
    assert [parameter["name"] for parameter in parameters] == ["a", "b"]


def test_slowapi_29_a_key_from_the_body_by_an_async_function() -> None:
    async def account(request: Request) -> str:
        return str((await request.json())["account"])

    app = application()

    @app.post("/pay", dependencies=[Depends(RateLimit("1/hour", key=account))])
    async def pay(order: dict[str, str]) -> str:
        return order["account"]

    with serving(app) as client:
        for name in ("a", "b"):
            found = [client.post("/pay", json={"account": name}) for _ in range(2)]
            assert [answer.status_code for answer in found] == [200, 429]
            assert found[0].json() == name


def test_flask_limiter_a_key_function_that_fails_does_not_take_the_store_away(store: str) -> None:
    def whom(request: Request) -> str:
        return request.headers["x-whom"]

    limiter = AsyncLimiter(store, namespace="failing-key", deadline=5, on_error="closed")
    app = application(limiter=limiter)

    @app.get("/", dependencies=[Depends(RateLimit("2/hour", key=whom, missing="deny"))])
    async def home() -> None: ...

    with serving(app, limiter) as client:
        asked = [client.get("/", headers=headers) for headers in ({}, {"X-Whom": "a"}, {})]
        assert [answer.status_code for answer in asked] == [403, 200, 403]
        # Counted by the store, and not by somebody who stands in for it.
        assert '"2/hour";r=1;' in asked[1].headers["ratelimit"]


@pytest.mark.parametrize(("missing", "status"), [(None, 403), ("skip", 200)])
def test_a_key_function_that_fails_is_no_500(missing: Any, status: int) -> None:
    def whom(request: Request) -> str:
        return request.headers["x-whom"]

    app = application(RateLimit("2/hour", key=lambda request: None, missing=missing))

    @app.get("/", dependencies=[Depends(RateLimit("2/hour", key=whom, missing=missing))])
    async def home() -> None: ...

    assert TestClient(app).get("/").status_code == status


def test_an_http_exception_of_a_key_function_is_the_response() -> None:
    async def whom(request: Request) -> str:
        raise HTTPException(401, "no session")

    app = application()

    @app.get("/", dependencies=[Depends(RateLimit("2/hour", key=whom, missing="skip"))])
    async def home() -> None: ...

    answer = TestClient(app).get("/")
    assert (answer.status_code, answer.json()) == (401, {"detail": "no session"})


def test_fastapi_limiter_80_two_clients_are_two_counts() -> None:
    app = application("2/hour")

    @app.get("/")
    async def home() -> None: ...

    for address in ("192.0.2.1", "192.0.2.2", "2001:db8::1"):
        client = TestClient(app, client=(address, 1))
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]


def test_fastapi_limiter_41_a_key_is_the_template_whatever_the_order_of_routes() -> None:
    limiters = [AsyncLimiter(), AsyncLimiter()]
    for number, limiter in enumerate(limiters):
        app = application(limiter=limiter)
        paths = ["/a/{x}", "/b/{x}"] if number else ["/b/{x}", "/a/{x}"]
        for path in paths:
            app.add_api_route(
                path, lambda x: x, dependencies=[Depends(RateLimit("5/hour", key="everyone"))]
            )
        TestClient(app).get("/a/1")
        decision = asyncio.run(limiter.peek("GET /a/{x} everyone", "5/hour"))
        assert decision.remaining == 4


def test_fastapi_limiter_19_scripts_that_the_server_forgot_are_sent_again(
    valkey: servers.Server,
) -> None:
    limiter = AsyncLimiter(f"redis://127.0.0.1:{valkey.port}", deadline=5, on_error="closed")
    app = application("3/hour", limiter=limiter)

    @app.get("/")
    async def home() -> None: ...

    with serving(app, limiter) as client, redis.Redis(port=valkey.port) as admin:
        assert client.get("/").status_code == 200
        admin.script_flush()
        found = [client.get("/").status_code for _ in range(3)]
        assert found == [200, 200, 429]


def test_fastapi_limiter_a_refusal_says_when_to_come_back() -> None:
    app = application("1/minute")

    @app.get("/")
    async def home() -> None: ...

    with serving(app) as client:
        refused = [client.get("/") for _ in range(2)][1]
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60


def test_flask_limiter_470_limits_change_while_it_runs() -> None:
    def rules(limit: str) -> Any:
        return parse_text(f"rules: [{{name: all, key: [ip], limits: {limit}}}]")

    engine = AsyncEngine(rules("1/hour"), AsyncLimiter())
    app = application(RateLimit(), limiter=engine)

    @app.get("/")
    async def home() -> None: ...

    with serving(app) as client:
        assert [client.get("/").status_code for _ in range(2)] == [200, 429]
        engine.use(rules("3/hour"))
        # What was used stays used.
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]


def test_limits_7_a_limit_that_refuses_leaves_the_others_unspent() -> None:
    clock = ManualClock()
    app = application(limiter=AsyncLimiter(clock=clock))

    @app.get("/", dependencies=[Depends(RateLimit("10/hour")), Depends(RateLimit("1/second"))])
    async def home() -> None: ...

    with serving(app) as client:
        assert [client.get("/").status_code for _ in range(5)] == [200] + [429] * 4
        clock.advance(1)
        assert '"10/hour";r=8;' in client.get("/").headers["ratelimit"]
