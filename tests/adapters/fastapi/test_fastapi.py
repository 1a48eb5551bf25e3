"""The FastAPI adapter, over real sockets under uvicorn."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Annotated, Any

import pytest
import websockets.sync.client as websockets
from fastapi import APIRouter, Depends, FastAPI, Request, Response, WebSocket
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.testclient import TestClient
from websockets.exceptions import InvalidStatus

from limen import AsyncClient, AsyncLimiter, Concurrency, ConfigurationError, Limiter
from limen.adapters import Passage
from limen.adapters.fastapi import RESPONSES, RateLimit, Refused, install
from limen.testing import ManualClock
from tests.adapters.serving import serving
from tests.client.services import Served


def application(*limits: Any, limiter: Any = None, **options: Any) -> FastAPI:
    app = FastAPI()
    install(app, limiter or AsyncLimiter(), *limits, **options)
    return app


def test_a_route_has_limits_of_its_own() -> None:
    clock = ManualClock()
    app = application(limiter=AsyncLimiter(clock=clock))

    @app.get("/search", dependencies=[Depends(RateLimit("1/minute", "10/day"))])
    async def search() -> str:
        return "found"

    @app.get("/free")
    def free() -> str:
        return "free"

    with serving(app) as client:
        first, second = client.get("/search"), client.get("/search")
        assert (first.status_code, second.status_code) == (200, 429)
        assert first.headers["ratelimit-policy"] == ('"1/minute";q=1;w=60, "10/day";q=10;w=86400')
        assert second.headers["content-type"] == "application/problem+json"
        assert second.headers.get_list("retry-after") == ["60"]
        assert second.json()["detail"] == (
            "1 request a minute is allowed for this address; come back in 60 s."
        )
        free_one = client.get("/free")
        assert free_one.status_code == 200
        assert "ratelimit" not in free_one.headers
        clock.advance(60)
        assert client.get("/search").status_code == 200


def test_limits_of_the_application_and_of_a_route_are_told_together_and_charged_together() -> None:
    app = application("3/hour")

    @app.get("/search", dependencies=[Depends(RateLimit("1/hour"))])
    async def search() -> str:
        return "found"

    @app.get("/other")
    async def other() -> str:
        return "other"

    with serving(app) as client:
        first = client.get("/search")
        assert first.headers.get_list("ratelimit-policy") == [
            '"3/hour";q=3;w=3600, "1/hour";q=1;w=3600'
        ]
        assert [client.get("/search").status_code for _ in range(5)] == [429] * 5
        # Those five were refused by the route, and so charged by nobody.
        assert [client.get("/other").status_code for _ in range(3)] == [200, 200, 429]


def test_endpoints_of_included_routers_are_limited_and_known_by_their_template() -> None:
    app = application("100/hour")
    users = APIRouter(prefix="/users", dependencies=[Depends(RateLimit("2/hour"))])
    deep = APIRouter()

    @users.get("/{id}")
    async def one(id: int) -> int:
        return id

    @deep.get("/{id}")
    async def one_deep(id: int) -> int:
        return id

    users.include_router(deep, prefix="/deep")
    app.include_router(users, prefix="/v1")
    app.include_router(users, prefix="/v2")
    with serving(app) as client:
        for prefix in ("/v1/users", "/v1/users/deep", "/v2/users"):
            # Whichever user it is, it is one endpoint; each endpoint counts apart.
            answers = [client.get(f"{prefix}/{number}") for number in range(3)]
            assert [answer.status_code for answer in answers] == [200, 200, 429]
            assert '"100/hour"' in answers[0].headers["ratelimit"]


def test_a_router_and_its_route_charge_a_request_once() -> None:
    app = application()
    router = APIRouter(dependencies=[Depends(RateLimit("4/hour"))])

    @router.get("/same", dependencies=[Depends(RateLimit("4/hour"))])
    async def same() -> None: ...

    @router.get("/stricter", dependencies=[Depends(RateLimit("2/hour"))])
    async def stricter() -> None: ...

    app.include_router(router)
    with serving(app) as client:
        assert [client.get("/same").status_code for _ in range(5)] == [200] * 4 + [429]
        assert [client.get("/stricter").status_code for _ in range(3)] == [200] * 2 + [429]


def test_one_scope_is_one_count() -> None:
    app = application()
    shared = RateLimit("2/hour", scope="reports")

    @app.get("/a", dependencies=[Depends(shared)])
    async def a() -> None: ...

    @app.get("/b", dependencies=[Depends(shared)])
    async def b() -> None: ...

    with serving(app) as client:
        assert [client.get(path).status_code for path in ("/a", "/b", "/a", "/b")] == [
            200,
            200,
            429,
            429,
        ]


def test_methods_of_one_path_count_apart() -> None:
    app = application()
    limited = [Depends(RateLimit("1/hour"))]

    @app.get("/things", dependencies=limited)
    async def read() -> None: ...

    @app.post("/things", dependencies=limited)
    async def write() -> None: ...

    with serving(app) as client:
        assert [client.get("/things").status_code for _ in range(2)] == [200, 429]
        assert [client.post("/things").status_code for _ in range(2)] == [200, 429]


def test_mounted_applications_are_limited_by_template_too() -> None:
    app = application("100/hour")
    tenant = FastAPI(dependencies=[Depends(RateLimit("2/hour"))])

    @tenant.get("/things/{name}")
    async def thing(name: str) -> str:
        return name

    app.mount("/tenants/{tenant}", tenant)
    with serving(app) as client:
        paths = ("/tenants/1/things/x", "/tenants/01/things/01", "/tenants/things/things/z")
        answers = [client.get(path) for path in paths]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[0].headers["ratelimit-policy"].count("hour") == 2
        assert answers[2].headers.get_list("retry-after") == ["3600"]
        # The mounted application has its own handlers, and says the same in its own form.
        assert answers[2].json()["detail"].startswith("2 requests an hour are allowed")


def test_an_endpoint_that_returns_its_own_response_has_the_headers() -> None:
    app = application("100/hour")

    @app.get("/own", dependencies=[Depends(RateLimit("5/hour"))])
    async def own() -> Response:
        return Response("own", headers={"X-Own": "yes"})

    @app.get("/stream", dependencies=[Depends(RateLimit("5/hour"))])
    async def stream() -> StreamingResponse:
        return StreamingResponse(iter([b"a", b"b"]))

    @app.get("/broken", dependencies=[Depends(RateLimit("5/hour"))])
    async def broken(number: int) -> int:
        return number

    with serving(app) as client:
        for path, status in (("/own", 200), ("/stream", 200), ("/broken?number=x", 422)):
            answer = client.get(path)
            assert answer.status_code == status
            assert '"5/hour";r=4;' in answer.headers["ratelimit"]
        assert client.get("/own").headers["x-own"] == "yes"
        # Nobody asked a limit of a route, but the application's own.
        assert client.get("/nowhere").status_code == 404
        assert client.get("/nowhere").headers["ratelimit"].startswith('"100/hour"')


def test_a_dependency_before_it_says_who_asks() -> None:
    async def authenticate(request: Request) -> None:
        request.state.account = request.headers["authorization"]

    async def account_of(request: Request) -> str:
        await asyncio.sleep(0)
        return str(request.state.account)

    app = application()
    by_account = Depends(RateLimit("1/hour", key=account_of))

    @app.get("/", dependencies=[Depends(authenticate), by_account])
    async def home() -> None: ...

    with serving(app) as client:
        for name in ("a", "b"):
            headers = {"Authorization": name}
            found = [client.get("/", headers=headers).status_code for _ in range(2)]
            assert found == [200, 429]


def test_an_endpoint_says_what_it_cost_under_its_own_limit() -> None:
    limiter = AsyncLimiter()
    app = application("50/hour", limiter=limiter)

    @app.get("/llm")
    async def llm(
        passage: Annotated[Passage, Depends(RateLimit("100/hour", key="everyone", scope="llm"))],
    ) -> int:
        passage.costs(31)
        assert passage.remaining is not None
        return passage.remaining

    with serving(app) as client:
        assert client.get("/llm").json() == 99
        decision = asyncio.run(limiter.peek("llm everyone", "100/hour"))
        assert decision.remaining == 69
        assert asyncio.run(limiter.peek("ip=127.0.0.1", "50/hour")).remaining == 49


def test_sync_endpoints_are_limited_too_and_hold_slots() -> None:
    app = application()
    go_on, inside = threading.Event(), threading.Event()

    @app.get("/slow", dependencies=[Depends(RateLimit(Concurrency(1, lease=30), scope="slow"))])
    def slow() -> str:
        inside.set()
        go_on.wait(30)
        return "done"

    with serving(app) as client:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(client.get("/slow").status_code))
        thread.start()
        assert inside.wait(30)
        assert client.get("/slow").status_code == 429
        go_on.set()
        thread.join(30)
        assert found == [200]
        assert client.get("/slow").status_code == 200


@pytest.mark.parametrize("of", [Refused, 429])
def test_a_handler_of_the_applications_own_answers_refusals(of: Any) -> None:
    app = application()

    @app.exception_handler(of)
    async def too_many(request: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"own": error.detail}, 418, error.headers)

    @app.get("/", dependencies=[Depends(RateLimit("1/day"))])
    async def home() -> None: ...

    with serving(app) as client:
        client.get("/")
        refused = client.get("/")
        assert refused.status_code == 418
        assert refused.json()["own"].startswith("1 request a day is allowed")
        assert refused.headers.get_list("retry-after") == ["86400"]
        assert "ratelimit-policy" in refused.headers


def test_pages_of_other_origins_can_read_a_refusal_where_cors_is_outside() -> None:
    app = application("1/hour", expose=True)
    app.add_middleware(CORSMiddleware, allow_origins=["https://shop.example"])

    @app.get("/")
    async def home() -> None: ...

    with serving(app) as client:
        answers = [client.get("/", headers={"Origin": "https://shop.example"}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == "https://shop.example"
            assert "Retry-After" in answer.headers["access-control-expose-headers"]


def test_a_limen_elsewhere_decides(remote: Served) -> None:
    source = AsyncClient(remote.url, timeout=5)
    app = application(limiter=source)
    by_user = RateLimit(attributes=lambda request: {"user": "fastapi"})

    @app.get("/search", dependencies=[Depends(by_user), Depends(RateLimit("8/minute"))])
    async def search() -> None: ...

    with serving(app, source) as client:
        found = [client.get("/search") for _ in range(9)]
        assert [answer.status_code for answer in found] == [200] * 8 + [429]
        assert '"search-per-user#1";r=9;' in found[0].headers["ratelimit"]
        assert '"8/minute";r=7;' in found[0].headers["ratelimit"]


def test_a_store_that_is_away_is_no_500(dead_store: str) -> None:
    limiter = AsyncLimiter(dead_store)
    app = application("100/hour", limiter=limiter)

    @app.get("/", dependencies=[Depends(RateLimit("2/hour"))])
    async def home() -> None: ...

    with serving(app, limiter) as client:
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]


def test_websockets_have_dependencies_too() -> None:
    app = application()

    @app.websocket("/echo", dependencies=[Depends(RateLimit("1/hour"))])
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    with serving(app) as client:
        url = f"ws://{client.base_url.host}:{client.base_url.port}/echo"
        with websockets.connect(url) as connection:
            connection.send("hi")
            assert connection.recv() == "hi"
        with pytest.raises(InvalidStatus) as refused, websockets.connect(url):
            pass
        assert refused.value.response.status_code == 429


def test_openapi_tells_of_the_refusal() -> None:
    app = application("1/hour")

    @app.get("/")
    async def home() -> None: ...

    said = app.openapi()["paths"]["/"]["get"]["responses"]
    assert "application/problem+json" in said["429"]["content"]
    own = FastAPI(responses=RESPONSES)
    install(own, AsyncLimiter())
    own.add_api_route("/", home)
    assert "429" in own.openapi()["paths"]["/"]["get"]["responses"]


def test_users_can_test_with_the_test_client() -> None:
    clock = ManualClock()
    app = application("1/minute", limiter=AsyncLimiter(clock=clock))

    @app.get("/")
    async def home() -> None: ...

    client = TestClient(app)
    assert [client.get("/").status_code for _ in range(2)] == [200, 429]
    clock.advance(60)
    assert client.get("/").status_code == 200


def test_what_is_not_installed_says_so() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(RateLimit("1/minute"))])
    async def home() -> None: ...

    with pytest.raises(ConfigurationError, match=r"call limen.adapters.fastapi.install\(app"):
        TestClient(app).get("/")
    with pytest.raises(ConfigurationError, match="an AsyncLimiter, got a Limiter"):
        application("1/hour", limiter=Limiter())


def test_without_the_framework_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "try: import limen.adapters.fastapi\n"
        "except ImportError as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == (
        "limen.adapters.fastapi needs the package fastapi; run: pip install 'limen[fastapi]'\n"
    )
