"""Whom limits count, what a request costs, and what happens when its response is sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import flask
import pytest
from flask import Flask, Request, Response, stream_with_context

from limen import Concurrency, Limiter
from limen.adapters import RateLimit, either, header
from limen.testing import ManualClock
from tests.adapters.flask.apps import limited, serving
from tests.adapters.wsgi.serving import statuses, under_waitress
from tests.waiting import wait_until

SLOT = RateLimit(Concurrency(1, lease=30))


class TestKeys:
    def test_counts_a_header_apart_and_refuses_who_sends_none(self) -> None:
        app, _ = limited(RateLimit("1/hour", key=header("X-Api-Key")))
        with serving(app) as client:
            assert statuses(client, 2, headers={"X-Api-Key": "a"}) == [200, 429]
            assert statuses(client, 1, headers={"X-Api-Key": "b"}) == [200]
            refused = client.get("/")
            assert refused.status_code == 403
            assert refused.json()["detail"] == (
                "This request has to say what it is counted by: X-Api-Key."
            )

    def test_counts_each_route_apart(self) -> None:
        app, _ = limited(RateLimit("2/hour", key=("ip", "route")))
        app.add_url_rule("/users/<id>", "user", lambda id: id)
        with serving(app) as client:
            found = [client.get(f"/users/{number}").status_code for number in range(3)]
            assert found == [200, 200, 429]
            assert statuses(client, 1) == [200]

    def test_counts_who_is_logged_in_by_the_server_apart(self) -> None:
        app, _ = limited(RateLimit("1/hour", key=either("user", "ip")))
        inside = app.wsgi_app

        def authenticated(environ: Any, start_response: Any) -> Any:
            environ["REMOTE_USER"] = environ.get("HTTP_X_NAME", "")
            return inside(environ, start_response)

        app.wsgi_app = authenticated  # type: ignore[method-assign]  # as Flask tells to do it
        with serving(app) as client:
            for name in ("ada", "bob"):
                assert statuses(client, 2, headers={"X-Name": name}) == [200, 429]
            assert statuses(client, 2) == [200, 429]

    def test_who_only_says_his_name_is_nobody(self) -> None:
        app, _ = limited(RateLimit("1/hour", key="user"))
        with serving(app) as client:
            assert client.get("/", auth=("ada", "any password")).status_code == 403

    def test_counts_who_is_logged_in_by_flask_login_apart(self) -> None:
        flask_login = pytest.importorskip("flask_login")
        app, _ = limited(RateLimit("1/hour", key=either("user", "ip")))
        manager = flask_login.LoginManager(app)

        class User(flask_login.UserMixin):  # type: ignore[misc,name-defined]  # it has no types
            def __init__(self, id: str) -> None:
                self.id = id

        @manager.request_loader  # type: ignore[untyped-decorator]  # it has no types
        def load(request: Request) -> User | None:
            name = request.headers.get("X-Name")
            return User(name) if name else None

        with serving(app) as client:
            for name in ("ada", "bob"):
                assert statuses(client, 2, headers={"X-Name": name}) == [200, 429]
            assert statuses(client, 2) == [200, 429]

    def test_a_function_gets_flasks_own_request(self) -> None:
        seen: list[object] = []

        def tenant_of(request: Request) -> str:
            seen.append(type(request))
            assert request.endpoint == "home"
            return request.headers["X-Tenant"] + str(flask.session.get("none", ""))

        app, _ = limited(RateLimit("1/hour", key=tenant_of))
        with serving(app) as client:
            assert statuses(client, 2, headers={"X-Tenant": "a"}) == [200, 429]
            assert statuses(client, 1, headers={"X-Tenant": "b"}) == [200]
        assert set(seen) == {Request}

    @pytest.mark.parametrize("answer", [None, 42, "", 1 / 3])
    def test_refuses_requests_whose_key_function_returns_no_text(
        self, answer: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        def tenant_of(request: Request) -> Any:
            return answer

        app, _ = limited(RateLimit("1/hour", key=tenant_of))
        with serving(app) as client:
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
        def tenant_of(request: Request) -> str:
            return request.headers["X-Tenant"]

        app, limits = limited()
        limit = limits.limit("1/hour", key=tenant_of, missing=missing)
        app.add_url_rule("/tenant", "tenant", limit(lambda: "tenant"))
        with serving(app) as client:
            assert statuses(client, 3, "/tenant") == [status] * 3
        assert caplog.text.count("tenant_of raised") == 1
        assert caplog.text.count("Traceback") == 1

    def test_an_abort_in_a_key_function_is_the_response(self) -> None:
        def tenant_of(request: Request) -> str:
            flask.abort(401)

        app, _ = limited(RateLimit("1/hour", key=tenant_of, missing="skip"))
        with serving(app) as client:
            assert statuses(client, 2) == [401, 401]

    def test_what_others_did_before_the_request_is_known(self) -> None:
        app = Flask(__name__)

        @app.before_request
        def load() -> None:
            flask.g.tenant = flask.request.headers["X-Tenant"]

        limited_app, limits = limited()
        del limited_app
        limits.init_app(app)
        limit = limits.limit("1/hour", key=lambda request: flask.g.tenant)
        app.add_url_rule("/", "home", limit(lambda: "home"))
        with serving(app) as client:
            assert statuses(client, 2, headers={"X-Tenant": "a"}) == [200, 429]
            assert statuses(client, 1, headers={"X-Tenant": "b"}) == [200]


@pytest.mark.parametrize(
    "cost", [3, lambda request: request.args.get("weight", type=int)], ids=["number", "function"]
)
def test_a_request_costs_what_it_is_said_to(cost: Any) -> None:
    app, limits = limited()
    app.add_url_rule("/export", "export", limits.limit("7/hour", cost=cost)(lambda: ""))
    with serving(app) as client:
        answers = [client.get("/export?weight=3") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[1].headers["ratelimit"].startswith('"7/hour";r=1;')


def test_who_is_exempt_is_not_limited_nor_told() -> None:
    app, _ = limited(RateLimit("1/hour", exempt_when=lambda request: "X-Admin" in request.headers))
    with serving(app) as client:
        answers = [client.get("/", headers={"X-Admin": "yes"}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert "ratelimit" not in answers[0].headers
        assert statuses(client, 2) == [200, 429]


def test_several_limits_are_all_or_nothing() -> None:
    clock = ManualClock()
    limits = ("1/second", "3/hour", RateLimit("5/day", key="everyone"))
    app, _ = limited(*limits, source=Limiter(clock=clock))
    with serving(app) as client:
        assert statuses(client, 4) == [200, 429, 429, 429]
        clock.advance(1)
        # Who was refused by the first limit was charged by none.
        assert client.get("/").headers["ratelimit"] == (
            '"1/second";r=0;t=1, "3/hour";r=1;t=3600, "5/day";r=3;t=86400'
        )


def test_counts_failed_logins_and_no_others() -> None:
    app, limits = limited("100/hour", source=Limiter(clock=ManualClock()))

    @app.get("/login")
    @limits.limit("2/minute", deduct_when=lambda response: response.status_code == 401)
    def login() -> str:
        if flask.request.args.get("password") != "right":
            flask.abort(401)
        return "in"

    with serving(app) as client:
        for _ in range(5):
            right = client.get("/login?password=right")
            assert right.status_code == 200
            # It is given back, so it never was there.
            assert '"2/minute";r=2;' in right.headers["ratelimit"]
        wrong = [client.get("/login") for _ in range(3)]
        assert [answer.status_code for answer in wrong] == [401, 401, 429]
        assert '"2/minute";r=1;' in wrong[0].headers["ratelimit"]
        assert client.get("/login?password=right").status_code == 429
        # The others did count, wherever somebody was let in.
        assert client.get("/").headers["ratelimit"].startswith('"100/hour";r=92;')


def test_nobody_gets_past_by_failing_many_times_at_once() -> None:
    app, limits = limited()

    @app.get("/login")
    @limits.limit("3/hour", deduct_when=lambda response: response.status_code == 401)
    def login() -> tuple[str, int]:
        time.sleep(0.1)
        return "no", 401

    with serving(app) as client, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: client.get("/login").status_code, range(8)))
        assert sorted(found) == [401] * 3 + [429] * 5


def test_settles_what_a_response_cost_in_the_end() -> None:
    limiter = Limiter()
    app, limits = limited(source=limiter)

    @app.get("/export")
    @limits.limit("100/hour", scope="x", settle=lambda response: int(response.headers["X-Rows"]))
    def export() -> Response:
        return Response("rows", headers={"X-Rows": "31"})

    with serving(app) as client:
        assert client.get("/export").headers["ratelimit"].startswith('"100/hour";r=99;')
        wait_until(lambda: limiter.peek("x ip=127.0.0.1", "100/hour").remaining == 69)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_view_says_what_it_cost(is_streamed: bool) -> None:
    limiter = Limiter()
    app, _ = limited("100/hour", source=limiter)

    @app.get("/llm")
    def llm() -> Any:
        assert flask.g.limen.passages[0].remaining == 99

        def words() -> Iterator[str]:
            yield "so many "
            flask.g.limen.costs(40)
            yield "words"

        return stream_with_context(words()) if is_streamed else "".join(words())

    with serving(app) as client:
        assert client.get("/llm").text == "so many words"
        wait_until(lambda: limiter.peek("ip=127.0.0.1", "100/hour").remaining == 60)


def test_a_leaky_bucket_delays_the_request() -> None:
    app, _ = limited("20/second leaky_bucket max_delay 1s")
    with serving(app) as client:
        began = time.monotonic()
        assert statuses(client, 5) == [200] * 5
        assert time.monotonic() - began >= 0.19


class TestSlots:
    def test_is_held_until_a_streamed_response_is_sent(self) -> None:
        go_on = threading.Event()
        app, _ = limited(SLOT)

        @app.get("/stream")
        def stream() -> Iterator[bytes]:
            yield b"first"
            go_on.wait(30)
            yield b"second"

        with serving(app) as client:
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

    @pytest.mark.parametrize("how", ["view", "handler", "after_request", "stream", "teardown"])
    def test_is_let_go_when_something_fails(
        self, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        app, _ = limited(SLOT)

        def fail(where: str) -> None:
            if flask.request.path == "/fail" and how == where:
                raise RuntimeError("on purpose")

        @app.get("/fail")
        def view() -> Any:
            fail("view")
            if how == "handler":
                flask.abort(400)
            if how != "stream":
                return "fine"

            def chunks() -> Iterator[bytes]:
                yield b"one"
                fail("stream")

            return stream_with_context(chunks())

        @app.errorhandler(400)
        def handle(error: Exception) -> str:
            fail("handler")
            return ""

        @app.after_request
        def after(response: Response) -> Response:
            fail("after_request")
            return response

        @app.teardown_request
        def teardown(error: BaseException | None) -> None:
            fail("teardown")

        with under_waitress(app) as client:
            try:
                assert client.get("/fail").status_code == (500 if how != "teardown" else 200)
            except Exception:  # the response ended early
                assert how in ("stream", "teardown")
            wait_until(lambda: client.get("/").status_code == 200)
        assert "on purpose" in caplog.text

    def test_is_let_go_when_a_failure_is_left_to_the_server(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        app, _ = limited(SLOT)
        app.config["PROPAGATE_EXCEPTIONS"] = True
        app.add_url_rule("/fail", "fail", lambda: str(1 / 0))
        with under_waitress(app) as client:
            assert client.get("/fail").status_code == 500
            wait_until(lambda: client.get("/").status_code == 200)
        assert "ZeroDivisionError" in caplog.text

    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    def test_is_let_go_when_a_file_is_sent(self, method: str, tmp_path: Path) -> None:
        (tmp_path / "large").write_bytes(b"x" * 1_000_000)
        app, limits = limited()

        @app.get("/file")
        @limits.limit(Concurrency(1, lease=30))
        def file() -> Response:
            return flask.send_file(tmp_path / "large", conditional=False)

        with under_waitress(app) as client:
            for _ in range(3):
                # It is read to the end a moment before the server closes it.
                wait_until(lambda: client.request(method, "/file").status_code == 200)

    def test_is_let_go_when_the_client_goes_away(self) -> None:
        app, _ = limited(SLOT)

        @app.get("/forever")
        def forever() -> Iterator[bytes]:
            while True:
                yield b"x" * 100_000
                time.sleep(0.005)

        with serving(app) as client:
            with client.stream("GET", "/forever") as streamed:
                parts = streamed.iter_raw()
                next(parts)
                assert client.get("/").status_code == 429
            wait_until(lambda: client.get("/").status_code == 200)

    def test_a_test_that_closes_no_response_finds_everything_given_back(self) -> None:
        app, limits = limited(SLOT)
        login = limits.limit("1/hour", deduct_when=lambda response: response.status_code == 401)
        app.add_url_rule("/login", "login", login(lambda: "in"))
        client = app.test_client()
        assert [client.get("/login").status_code for _ in range(3)] == [200] * 3
        # Those that are made of an exception only look like a stream.
        assert [client.get("/nowhere").status_code for _ in range(2)] == [404] * 2
        assert [client.delete("/login").status_code for _ in range(2)] == [405] * 2

    def test_an_exception_is_a_500_for_deduct_when_also_in_tests(self) -> None:
        app, limits = limited()
        app.testing = True

        @app.get("/fail")
        @limits.limit("1/hour", deduct_when=lambda response: response.status_code == 401)
        def fail() -> str:
            raise ZeroDivisionError

        client = app.test_client()
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                client.get("/fail")

    def test_who_is_refused_holds_none(self) -> None:
        app, limits = limited(SLOT)
        app.add_url_rule("/strict", "strict", limits.limit("1/hour")(lambda: ""))

        @limits.limit("1/hour", scope="late")
        def late() -> None: ...

        @app.get("/late")
        def view() -> str:
            late()
            late()
            return ""

        with serving(app) as client:
            assert statuses(client, 1, "/strict") == [200]
            for path in ("/strict", "/late"):
                wait_until(lambda path=path: client.get(path).status_code == 429)  # type: ignore[misc]
                wait_until(lambda: client.get("/").status_code == 200)


class TestStoreDown:
    def test_lets_requests_through_at_its_share_and_in_time(self, dead_store: str) -> None:
        with Limiter(dead_store) as limiter:
            app, _ = limited("3/hour", source=limiter)
            app.add_url_rule(
                "/degraded", "degraded", lambda: str(flask.g.limen.passages[0].degraded)
            )
            with serving(app) as client:
                began = time.monotonic()
                assert client.get("/degraded").text == "True"
                assert statuses(client, 3) == [200, 200, 429]
                assert time.monotonic() - began < 20

    def test_closed_is_a_503_that_says_so(self, dead_store: str) -> None:
        with Limiter(dead_store) as limiter:
            app, _ = limited(RateLimit("3/hour", on_error="closed"), source=limiter)
            with serving(app) as client:
                refused = client.get("/")
                assert refused.status_code == 503
                assert refused.json()["title"] == "Temporary Reduced Capacity"
                assert refused.headers["retry-after"] == "1"
