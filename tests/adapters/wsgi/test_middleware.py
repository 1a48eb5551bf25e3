"""The WSGI middleware, over real sockets under waitress."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from limen import AsyncLimiter, Client, Concurrency, ConfigurationError, Limiter
from limen.adapters import AddressSettings, RateLimit, either, header
from limen.adapters.wsgi import RateLimitMiddleware
from limen.engine import Engine
from limen.rules import parse_text
from limen.testing import ManualClock
from tests.adapters.wsgi.serving import (
    Serve,
    statuses,
    under_command,
    under_waitress,
    under_werkzeug,
)
from tests.client.services import Served
from tests.gateways.app import ask
from tests.servers import HOST
from tests.waiting import wait_until


def hello(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


def login(environ: Any, start_response: Any) -> Iterable[bytes]:
    status = "200 OK" if environ["QUERY_STRING"] == "password=right" else "401 Unauthorized"
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", "0")])
    return []


def limited(*limits: Any, source: Any = None, of: Any = hello, **options: Any) -> Any:
    return RateLimitMiddleware(of, source or Limiter(), *limits, **options)


@pytest.mark.parametrize("serving", [under_waitress, under_werkzeug])
def test_tells_where_a_client_stands_and_refuses_who_is_over_it(serving: Serve) -> None:
    clock = ManualClock()
    with serving(limited("2/minute", source=Limiter(clock=clock))) as client:
        first, second, third = [client.get("/") for _ in range(3)]
        assert (first.status_code, first.text) == (200, "hello")
        assert first.headers["ratelimit-policy"] == '"2/minute";q=2;w=60'
        assert first.headers["ratelimit"] == '"2/minute";r=1;t=60'
        assert "retry-after" not in first.headers
        assert second.headers["ratelimit"] == '"2/minute";r=0;t=60'
        assert third.status_code == 429
        assert third.headers["content-type"] == "application/problem+json"
        assert third.headers.get_list("retry-after") == ["60"]
        assert third.headers.get_list("ratelimit") == ['"2/minute";r=0;t=60']
        assert third.json() == {
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": 429,
            "detail": "2 requests a minute are allowed for this address; come back in 60 s.",
            "violated-policies": ["2/minute"],
            "retry-after": 60,
        }
        assert client.head("/").status_code == 429
        clock.advance(59.999)
        assert statuses(client, 1) == [429]
        clock.advance(0.001)
        assert statuses(client, 3) == [200, 200, 429]


def test_a_browser_gets_a_page() -> None:
    with under_waitress(limited("1/hour")) as client:
        refused = [client.get("/", headers={"Accept": "text/html,*/*;q=0.8"}) for _ in range(2)][1]
        assert refused.headers["content-type"] == "text/html; charset=utf-8"
        assert "<h1>Quota Exceeded</h1>" in refused.text


def test_several_limits_are_all_or_nothing() -> None:
    clock = ManualClock()
    limits = ("1/second", "3/hour", RateLimit("5/day", key="everyone"))
    with under_waitress(limited(*limits, source=Limiter(clock=clock))) as client:
        assert statuses(client, 4) == [200, 429, 429, 429]
        clock.advance(1)
        # Who was refused by the first limit was charged by none.
        assert client.get("/").headers["ratelimit"] == (
            '"1/second";r=0;t=1, "3/hour";r=1;t=3600, "5/day";r=3;t=86400'
        )


@pytest.mark.parametrize(
    "cost", [3, lambda request: len(request.header("x-weight")) * 3], ids=["number", "function"]
)
def test_a_request_costs_what_it_is_said_to(cost: Any) -> None:
    with under_waitress(limited(RateLimit("7/hour", cost=cost))) as client:
        answers = [client.get("/", headers={"X-Weight": "1"}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[1].headers["ratelimit"].startswith('"7/hour";r=1;')


def test_who_is_exempt_is_not_limited_nor_told() -> None:
    limit = RateLimit("1/hour", exempt_when=lambda request: request.path == "/healthz")
    with under_waitress(limited(limit)) as client:
        assert statuses(client, 3, "/healthz") == [200, 200, 200]
        assert "ratelimit" not in client.get("/healthz").headers
        assert statuses(client, 2) == [200, 429]


def test_counts_failed_logins_and_no_others() -> None:
    limit = RateLimit("2/minute", deduct_when=lambda response: response.status == 401)
    source = Limiter(clock=ManualClock())
    with under_waitress(limited(limit, source=source, of=login)) as client:
        for _ in range(5):
            right = client.get("/?password=right")
            assert right.status_code == 200
            # It is given back, so it never was there.
            assert right.headers["ratelimit"].startswith('"2/minute";r=2;')
        wrong = [client.get("/") for _ in range(3)]
        assert [answer.status_code for answer in wrong] == [401, 401, 429]
        assert wrong[0].headers["ratelimit"].startswith('"2/minute";r=1;')
        assert client.get("/?password=right").status_code == 429


def test_nobody_gets_past_by_failing_many_times_at_once() -> None:
    def slow_login(environ: Any, start_response: Any) -> Iterable[bytes]:
        time.sleep(0.1)
        return login(environ, start_response)

    limit = RateLimit("3/hour", deduct_when=lambda response: response.status == 401)
    with under_waitress(limited(limit, of=slow_login)) as client, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: client.get("/").status_code, range(8)))
        assert sorted(found) == [401] * 3 + [429] * 5


def test_settles_what_a_response_cost_in_the_end() -> None:
    def chunks(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        for _ in range(4):
            yield b"x" * 5

    limiter = Limiter()
    limit = RateLimit("100/hour", settle=lambda response: response.bytes_sent)
    with under_waitress(limited(limit, source=limiter, of=chunks)) as client:
        assert client.get("/").headers["ratelimit"].startswith('"100/hour";r=99;')
        wait_until(lambda: limiter.peek("ip=127.0.0.1", "100/hour").remaining == 80)


def test_an_application_says_what_it_cost_while_it_sends() -> None:
    def llm(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        yield b"so many "
        environ["limen.visit"].costs(40)
        yield b"words"

    limiter = Limiter()
    with under_waitress(limited("100/hour", source=limiter, of=llm)) as client:
        assert client.get("/").text == "so many words"
        wait_until(lambda: limiter.peek("ip=127.0.0.1", "100/hour").remaining == 60)


class TestSlots:
    def test_is_held_until_a_streamed_response_is_sent(self) -> None:
        go_on = threading.Event()

        def stream(environ: Any, start_response: Any) -> Iterable[bytes]:
            start_response("200 OK", [])
            if environ["PATH_INFO"] == "/stream":
                yield b"first"
                go_on.wait(30)
            yield b"second"

        # That of Flask sends each chunk at once; waitress gathers them.
        limit = RateLimit(Concurrency(1, lease=30))
        with under_werkzeug(limited(limit, of=stream)) as client:
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

    @pytest.mark.parametrize("at", ["once", "the first chunk", "the second chunk"])
    def test_is_let_go_when_the_application_fails(
        self, at: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        def body(environ: Any, start_response: Any) -> Iterable[bytes]:
            if environ["PATH_INFO"] == "/fail" and at == "the first chunk":
                raise RuntimeError("on purpose")
            start_response("200 OK", [("Content-Length", "4")])
            yield b"ab"
            if environ["PATH_INFO"] == "/fail" and at == "the second chunk":
                raise RuntimeError("on purpose")
            yield b"cd"

        def app(environ: Any, start_response: Any) -> Iterable[bytes]:
            if environ["PATH_INFO"] == "/fail" and at == "once":
                raise RuntimeError("on purpose")
            return body(environ, start_response)

        with under_waitress(limited(RateLimit(Concurrency(1, lease=30)), of=app)) as client:
            try:
                assert client.get("/fail").status_code == 500
            except Exception:  # the response ended early
                assert at == "the second chunk"
            wait_until(lambda: client.get("/").status_code == 200)
        assert "on purpose" in caplog.text

    @pytest.mark.parametrize("serving", [under_waitress, under_werkzeug])
    def test_is_let_go_when_the_client_goes_away(self, serving: Serve) -> None:
        def forever(environ: Any, start_response: Any) -> Iterable[bytes]:
            start_response("200 OK", [])
            yield b"x" * 100_000
            while environ["PATH_INFO"] == "/forever":
                time.sleep(0.005)
                yield b"x" * 100_000

        with serving(limited(RateLimit(Concurrency(1, lease=30)), of=forever)) as client:
            with client.stream("GET", "/forever") as streamed:
                parts = streamed.iter_raw()
                next(parts)
                assert client.get("/").status_code == 429
            wait_until(lambda: client.get("/").status_code == 200)


class TestKeys:
    def test_counts_a_header_apart_and_refuses_who_sends_none(self) -> None:
        with under_waitress(limited(RateLimit("1/hour", key=header("X-Api-Key")))) as client:
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

    def test_counts_who_is_logged_in_apart_and_others_by_address(self) -> None:
        inside = limited(RateLimit("1/hour", key=either("user", "ip")))

        def authenticated(environ: Any, start_response: Any) -> Iterable[bytes]:
            environ["REMOTE_USER"] = environ.get("HTTP_X_NAME", "")
            found: Iterable[bytes] = inside(environ, start_response)
            return found

        with under_waitress(authenticated) as client:
            for name in ("ada", "bob"):
                assert statuses(client, 2, headers={"X-Name": name}) == [200, 429]
            assert statuses(client, 2) == [200, 429]

    def test_counts_routes_by_their_template(self) -> None:
        limit = RateLimit("2/hour", key=("ip", "route"))
        with under_waitress(limited(limit, routes=["/users/{id}", "/"])) as client:
            paths = ("/users/1", "/users/2", "/users/%C3%A9", "/")
            assert [client.get(path).status_code for path in paths] == [200, 200, 429, 200]

    def test_counts_paths_that_match_no_route_together(self) -> None:
        limit = RateLimit("2/hour", key=("ip", "route"))
        with under_waitress(limited(limit, routes=["/users/{id}"])) as client:
            paths = ("/users/1", "/no", "/nowhere", "/none", "/users/2")
            assert [client.get(path).status_code for path in paths][3:] == [429, 200]

    @pytest.mark.parametrize("answer", [None, 42, "", 1 / 3])
    def test_refuses_requests_whose_key_function_returns_no_text(
        self, answer: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        def tenant_of(request: Any) -> Any:
            return answer

        with under_waitress(limited(RateLimit("1/hour", key=tenant_of))) as client:
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

        with under_waitress(limited(RateLimit("1/hour", key=tenant_of, missing=missing))) as client:
            assert statuses(client, 3) == [status] * 3
        assert caplog.text.count("tenant_of raised KeyError") == 1
        assert caplog.text.count("Traceback") == 1

    def test_a_function_that_cannot_be_awaited_is_refused_when_it_is_made(self) -> None:
        async def tenant_of(request: Any) -> str:
            return "a"

        with pytest.raises(ConfigurationError, match="runs in threads and cannot await"):
            limited(RateLimit("1/hour", key=tenant_of))


class TestProxies:
    @pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
    def test_no_header_is_believed_unless_asked_for(self, name: str) -> None:
        with under_waitress(limited("1/hour")) as client:
            found = [
                client.get("/", headers={name: value}).status_code
                for value in ("192.0.2.1", "for=192.0.2.2", "?,,;;=", "1" * 4_000)
            ]
            assert found == [200, 429, 429, 429]

    def test_a_trusted_proxy_says_who_asks(self) -> None:
        trusting = AddressSettings(trusted_proxies=("127.0.0.0/8",), header="X-Forwarded-For")
        # Not waitress, which takes the header away unless it is told the same.
        with under_werkzeug(limited("1/hour", addresses=trusting)) as client:

            def ask(*values: str) -> int:
                headers = [("X-Forwarded-For", value) for value in values]
                return client.get("/", headers=headers).status_code

            assert [ask("192.0.2.1"), ask("192.0.2.1"), ask("192.0.2.2")] == [200, 429, 200]
            # What stands to the left of it is the client's own invention, also in another line.
            assert ask("192.0.2.99, 192.0.2.1") == 429
            assert ask("192.0.2.99", "192.0.2.1") == 429
            # What cannot be read is not believed: it is the proxy who asked.
            assert [ask("nonsense"), ask("<script>")] == [200, 429]

    def test_warns_once_of_a_proxy_that_is_not_trusted(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with under_werkzeug(limited("9/hour")) as client:
            for header in ("X-Forwarded-For", "Forwarded"):
                client.get("/", headers={header: "for=192.0.2.1"})
        (line,) = [record.getMessage() for record in caplog.records if record.name == "limen"]
        assert line.startswith("The X-Forwarded-For header of 127.0.0.1 is ignored")
        assert "addresses=AddressSettings(trusted_proxies=" in line


class TestSources:
    def test_one_count_for_two_servers_on_one_store(self, store: str) -> None:
        settings: Any = {"namespace": "wsgi-two", "deadline": 5}
        with (
            Limiter(store, **settings) as mine,
            Limiter(store, **settings) as yours,
            under_waitress(limited("5/hour", source=mine)) as one,
            under_waitress(limited("5/hour", source=yours)) as other,
        ):
            assert statuses(one, 3) + statuses(other, 3) == [200] * 5 + [429]
            assert statuses(one, 1) == [429]

    def test_who_waits_as_told_is_let_in_again(self, store: str) -> None:
        with (
            Limiter(store, namespace="wsgi-wait", deadline=5) as limiter,
            under_waitress(limited("1/second", source=limiter)) as client,
        ):
            assert statuses(client, 1) == [200]
            # Where the machine is slow, the second is over before the next one comes.
            wait_until(lambda: client.get("/").status_code == 429)
            refused = client.get("/")
            if refused.status_code == 429:
                time.sleep(int(refused.headers["retry-after"]))
                assert statuses(client, 1) == [200]

    def test_rules_decide(self) -> None:
        rules = parse_text(
            """
            rules:
              - {name: reading, match: {path: /users/*, method: GET}, key: [ip], limits: 2/minute}
              - {name: no-login, match: {path: /login}, mode: block}
            """
        )
        engine = Engine(rules, Limiter())
        with under_waitress(limited(RateLimit(), source=engine)) as client:
            assert statuses(client, 2, "/users/7") == [200, 200]
            refused = client.get("/users/8")
            assert refused.status_code == 429
            assert refused.json()["violated-policies"] == ["reading#1"]
            assert client.get("/%6Cogin/").status_code == 403
            assert "ratelimit" not in client.get("/").headers

    def test_a_limen_elsewhere_decides_by_its_rules(self, remote: Served) -> None:
        by_rules = RateLimit(attributes=lambda request: {"user": request.header("x-user")[0]})
        with (
            Client(remote.url, timeout=5) as source,
            under_waitress(limited(by_rules, source=source)) as client,
        ):
            found = [client.get("/two", headers={"X-User": "wsgi"}) for _ in range(9)]
            assert [answer.status_code for answer in found] == [200] * 8 + [429]
            assert found[0].headers["ratelimit"].startswith('"two-limits#1";r=7;')
            assert found[8].json()["violated-policies"] == ["two-limits#1"]

    def test_a_limen_elsewhere_decides_by_limits_of_ones_own(self, remote: Served) -> None:
        limits = (
            RateLimit("3/hour", cost=2, scope="wsgi"),
            RateLimit("2/day", Concurrency(1, lease=5), scope="wsgi"),
        )
        with (
            Client(remote.url, timeout=5) as source,
            under_waitress(limited(*limits, source=source)) as client,
        ):
            first, second = client.get("/"), client.get("/")
            assert (first.status_code, second.status_code) == (200, 429)
            assert '"3/hour";r=1;' in first.headers["ratelimit"]
            assert '"2/day";r=1;' in first.headers["ratelimit"]

    def test_the_wrong_kind_is_an_error_that_names_the_right_one(self) -> None:
        with pytest.raises(ConfigurationError, match=r"give it a Limiter, got an AsyncLimiter"):
            limited("1/hour", source=AsyncLimiter())
        with pytest.raises(ConfigurationError, match="a limiter knows no rules"):
            limited(RateLimit())


class TestStoreDown:
    def test_lets_requests_through_at_its_share_and_in_time(self, dead_store: str) -> None:
        with (
            Limiter(dead_store) as limiter,
            under_waitress(limited("3/hour", source=limiter)) as client,
        ):
            began = time.monotonic()
            assert statuses(client, 4) == [200, 200, 200, 429]
            assert time.monotonic() - began < 20

    def test_closed_is_a_503_that_says_so(self, dead_store: str) -> None:
        limit = RateLimit("3/hour", on_error="closed")
        with (
            Limiter(dead_store) as limiter,
            under_waitress(limited(limit, source=limiter)) as client,
        ):
            refused = client.get("/")
            assert refused.status_code == 503
            assert refused.json()["title"] == "Temporary Reduced Capacity"
            assert refused.headers["retry-after"] == "1"


class TestTelling:
    def test_in_other_styles_and_in_none(self) -> None:
        with under_waitress(limited("5/minute", headers=["x-ratelimit"])) as client:
            assert client.get("/").headers["x-ratelimit-remaining"] == "4"
        with under_waitress(limited("1/minute", headers=[])) as client:
            allowed, refused = client.get("/"), client.get("/")
            assert not [name for name in allowed.headers if "ratelimit" in name]
            assert refused.headers["retry-after"] == "60"

    def test_exposes_the_headers_to_pages_of_other_origins(self) -> None:
        def shows(environ: Any, start_response: Any) -> Iterable[bytes]:
            start_response("200 OK", [("Access-Control-Expose-Headers", "X-Own")])
            return [b""]

        with under_waitress(limited("1/minute", expose=True, of=shows)) as client:
            told = [
                client.get("/").headers.get_list("access-control-expose-headers") for _ in range(2)
            ]
            assert told == [
                ["X-Own, RateLimit-Policy, RateLimit, Retry-After"],
                ["RateLimit-Policy, RateLimit, Retry-After"],
            ]

    def test_with_an_application_of_ones_own_that_need_not_write_the_headers(self) -> None:
        def sorry(environ: Any, start_response: Any) -> Iterable[bytes]:
            wait = environ["limen.visit"].answer().retry_after
            start_response("418 I'm a teapot", [("Retry-After", "1")])
            return [f"sorry, {wait:.0f} s".encode()]

        source = Limiter(clock=ManualClock())
        with under_waitress(limited("1/minute", refused=sorry, source=source)) as client:
            refused = [client.get("/") for _ in range(2)][1]
            assert (refused.status_code, refused.text) == (418, "sorry, 60 s")
            assert refused.headers.get_list("retry-after") == ["60"]
            assert refused.headers["ratelimit"] == '"1/minute";r=0;t=60'

    def test_two_around_each_other_tell_once_and_charge_together(self) -> None:
        limiter = Limiter()
        inside = limited(RateLimit("1/hour", scope="inside"), source=limiter)
        with under_waitress(limited("3/hour", source=limiter, of=inside)) as client:
            first, second = client.get("/"), client.get("/")
            assert first.headers.get_list("ratelimit-policy") == [
                '"3/hour";q=3;w=3600, "1/hour";q=1;w=3600'
            ]
            assert second.status_code == 429
            assert second.headers.get_list("retry-after") == ["3600"]
            assert len(second.headers.get_list("ratelimit-policy")) == 1
        # Refused by the inner one, and so charged by neither.
        assert limiter.peek("ip=127.0.0.1", "3/hour").remaining == 2


def test_a_leaky_bucket_delays_the_request() -> None:
    with under_waitress(limited("20/second leaky_bucket max_delay 1s")) as client:
        began = time.monotonic()
        assert statuses(client, 5) == [200] * 5
        assert time.monotonic() - began >= 0.19


def test_the_example_runs_under_waitress() -> None:
    with under_command("waitress", "--listen=127.0.0.1:{port}", "examples.wsgi_app:app") as client:
        answers = [client.get("/") for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert answers[0].text == "hello\n"
        assert answers[5].json()["title"] == "Quota Exceeded"
        assert statuses(client, 3, "/healthz") == [200] * 3
