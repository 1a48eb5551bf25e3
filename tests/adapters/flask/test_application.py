"""Limits of a whole Flask application, over real sockets under Flask's own server."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import flask
import pytest
from flask import Flask, Response, jsonify
from werkzeug.exceptions import HTTPException, TooManyRequests

from limen import AsyncLimiter, Client, Concurrency, ConfigurationError, Limiter
from limen.adapters import AddressSettings, RateLimit
from limen.adapters.flask import RateLimits, Refused
from limen.engine import Engine
from limen.rules import parse_text
from limen.testing import ManualClock
from tests.adapters.flask.apps import limited, serving
from tests.adapters.wsgi.serving import statuses, under_command, under_waitress
from tests.client.services import Served
from tests.waiting import wait_until


def test_tells_where_a_client_stands_and_refuses_who_is_over_it() -> None:
    clock = ManualClock()
    app, _ = limited("2/minute", source=Limiter(clock=clock))
    with serving(app) as client:
        first, second, third = [client.get("/") for _ in range(3)]
        assert (first.status_code, first.text) == (200, "hello")
        assert first.headers["ratelimit-policy"] == '"2/minute";q=2;w=60'
        assert first.headers["ratelimit"] == '"2/minute";r=1;t=60'
        assert "retry-after" not in first.headers
        assert second.headers["ratelimit"] == '"2/minute";r=0;t=60'
        assert third.status_code == 429
        assert third.headers["content-type"] == "application/problem+json"
        assert third.headers["cache-control"] == "no-store"
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
        clock.advance(59.999)
        assert statuses(client, 1) == [429]
        clock.advance(0.001)
        assert statuses(client, 3) == [200, 200, 429]


def test_a_browser_gets_a_page() -> None:
    app, _ = limited("1/hour")
    with serving(app) as client:
        refused = [client.get("/", headers={"Accept": "text/html,*/*;q=0.8"}) for _ in range(2)][1]
        assert refused.headers["content-type"] == "text/html; charset=utf-8"
        assert "<h1>Quota Exceeded</h1>" in refused.text


def test_every_response_has_the_headers() -> None:
    app = Flask(__name__)

    @app.after_request
    def another(response: Response) -> Response:
        # The first of these is the last to be asked, and may have a response of its own.
        return Response("another", 200) if flask.request.path == "/another" else response

    RateLimits(Limiter(), "100/hour", app=app)

    @app.get("/own")
    def own() -> Response:
        return Response("own", headers={"X-Own": "yes", "RateLimit": "nonsense"})

    @app.get("/abort")
    def abort() -> str:
        flask.abort(418)

    @app.get("/fail")
    def fail() -> str:
        raise RuntimeError("on purpose")

    @app.errorhandler(404)
    def not_found(error: HTTPException) -> tuple[str, int]:
        return "nowhere", 404

    with serving(app) as client:
        found = {
            path: client.get(path) for path in ("/own", "/abort", "/fail", "/nowhere", "/another")
        }
        assert [found[path].status_code for path in found] == [200, 418, 500, 404, 200]
        for left, answer in zip(range(99, 94, -1), found.values(), strict=True):
            (told,) = answer.headers.get_list("ratelimit")
            assert told.startswith(f'"100/hour";r={left};')
        assert found["/own"].headers["x-own"] == "yes"


def test_static_files_and_questions_of_browsers_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("body {}")
    app = Flask(__name__, static_folder=str(tmp_path))
    RateLimits(Limiter(), "2/hour", app=app)
    pages = flask.Blueprint("pages", __name__, static_folder=str(tmp_path), static_url_path="/more")

    @pages.get("/")
    def home() -> str:
        return "hello"

    @pages.route("/static", methods=["GET", "OPTIONS"])
    def static_() -> str:
        return "not a file"

    app.register_blueprint(pages)
    with serving(app) as client:
        for path in (f"/{tmp_path.name}/style.css", "/more/style.css"):
            files = [client.get(path) for _ in range(3)]
            assert [file.status_code for file in files] == [200] * 3
            assert "ratelimit" not in files[0].headers
        assert [client.options("/").status_code for _ in range(3)] == [200] * 3
        # HEAD is as good as GET, and a view that answers OPTIONS is as good as any.
        assert client.head("/").status_code == 200
        assert client.options("/static").text == "not a file"
        assert statuses(client, 1, "/static") == [429]


def test_a_view_that_is_only_called_static_is_limited() -> None:
    app = Flask(__name__, static_folder=None)
    RateLimits(Limiter(), "1/hour", app=app)

    @app.get("/")
    def static() -> str:
        return "hello"

    with serving(app) as client:
        assert statuses(client, 2) == [200, 429]


def test_what_matches_no_route_counts_too_and_by_route_is_one() -> None:
    app, _ = limited(RateLimit("2/hour", key="route"))
    with serving(app) as client:
        assert [client.get(f"/{number}").status_code for number in range(3)] == [404, 404, 429]
        assert client.delete("/").status_code == 429
        assert statuses(client, 3) == [200, 200, 429]


class TestHandlers:
    @pytest.mark.parametrize("of", [429, Refused, TooManyRequests, HTTPException])
    def test_one_of_the_applications_own_answers_refusals(self, of: Any) -> None:
        app, _ = limited("1/day", source=Limiter(clock=ManualClock()))

        @app.errorhandler(of)
        def too_many(error: Refused) -> tuple[Response, int]:
            assert isinstance(error, TooManyRequests)
            left = error.visit.answer().quotas[0].remaining
            return jsonify(own=error.description, wait=error.retry_after, left=left), 420

        with serving(app) as client:
            client.get("/")
            refused = client.get("/")
            assert refused.status_code == 420
            assert refused.json() == {
                "own": "1 request a day is allowed for this address; come back in 24 hours.",
                "wait": 86_400,
                "left": 0,
            }
            assert refused.headers.get_list("retry-after") == ["86400"]
            assert refused.headers["ratelimit"] == '"1/day";r=0;t=86400'

    def test_the_usual_one_that_makes_json_of_all_errors_works(self) -> None:
        app, _ = limited("1/day")

        @app.errorhandler(HTTPException)
        def as_json(error: HTTPException) -> Any:
            response: Any = error.get_response()
            response.data = flask.json.dumps({"code": error.code, "name": error.name})
            response.content_type = "application/json"
            return response

        with serving(app) as client:
            client.get("/")
            refused = client.get("/")
            assert refused.status_code == 429
            assert refused.json() == {"code": 429, "name": "Too Many Requests"}
            assert "retry-after" in refused.headers

    def test_each_status_has_its_own(self, dead_store: str) -> None:
        with Limiter(dead_store) as limiter:
            app, limits = limited(source=limiter)
            app.add_url_rule("/key", "key", limits.limit("1/day", key="user")(lambda: ""))
            closed = limits.limit("1/day", on_error="closed")
            app.add_url_rule("/away", "away", closed(lambda: ""))
            app.register_error_handler(403, lambda error: ("who are you", 403))
            app.register_error_handler(503, lambda error: ("away", 503))
            app.register_error_handler(429, lambda error: ("too many", 429))
            with serving(app) as client:
                assert client.get("/key").text == "who are you"
                assert client.get("/away").text == "away"

    @pytest.mark.parametrize("status", [405, 416, 418, 499])
    def test_a_status_of_ones_own_is_taken(self, status: int) -> None:
        app, _ = limited("1/day", status=status)
        with serving(app) as client:
            refused = [client.get("/") for _ in range(2)][1]
            assert refused.status_code == refused.json()["status"] == status


class TestOptions:
    def test_in_other_styles_and_in_none(self) -> None:
        app, _ = limited("5/minute", headers=["x-ratelimit"])
        with serving(app) as client:
            answer = client.get("/")
            assert answer.headers["x-ratelimit-remaining"] == "4"
            assert "ratelimit" not in answer.headers
        app, _ = limited("1/minute", headers=[])
        with serving(app) as client:
            allowed, refused = client.get("/"), client.get("/")
            assert not [name for name in allowed.headers if "ratelimit" in name]
            assert refused.headers["retry-after"] == "60"

    def test_exposes_the_headers_to_pages_of_other_origins(self) -> None:
        app, _ = limited("1/minute", expose=True)

        @app.after_request
        def shows(response: Response) -> Response:
            if response.status_code == 200:
                response.headers["Access-Control-Expose-Headers"] = "X-Own"
            return response

        with serving(app) as client:
            told = [
                client.get("/").headers.get_list("access-control-expose-headers") for _ in range(2)
            ]
            assert told == [
                ["X-Own, RateLimit-Policy, RateLimit, Retry-After"],
                ["RateLimit-Policy, RateLimit, Retry-After"],
            ]

    @pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
    def test_no_header_is_believed_unless_asked_for(self, name: str) -> None:
        app, _ = limited("1/hour")
        with serving(app) as client:
            found = [
                client.get("/", headers={name: value}).status_code
                for value in ("192.0.2.1", "for=192.0.2.2", "?,,;;=", "1" * 4_000)
            ]
            assert found == [200, 429, 429, 429]

    def test_a_trusted_proxy_says_who_asks(self) -> None:
        trusting = AddressSettings(trusted_proxies=("127.0.0.0/8",), header="X-Forwarded-For")
        app, _ = limited("1/hour", addresses=trusting)
        with serving(app) as client:

            def ask(value: str) -> int:
                return client.get("/", headers={"X-Forwarded-For": value}).status_code

            assert [ask("192.0.2.1"), ask("192.0.2.1"), ask("192.0.2.2")] == [200, 429, 200]
            assert ask("192.0.2.99, 192.0.2.1") == 429
            assert [ask("nonsense"), ask("<script>")] == [200, 429]

    def test_a_bad_one_is_said_when_it_is_made(self) -> None:
        with pytest.raises(ConfigurationError, match="did you mean 'draft-11'"):
            limited("1/hour", headers=["draft-1"])
        with pytest.raises(ConfigurationError, match="unknown option 'header'"):
            limited("1/hour", header=["draft-11"])
        with pytest.raises(ConfigurationError, match="knows its routes itself"):
            limited("1/hour", routes=["/"])
        with pytest.raises(ConfigurationError, match=r"as app=\.\.\., or call init_app"):
            RateLimits(Flask(__name__))  # type: ignore[arg-type]  # as a user might do


class TestSources:
    def test_one_count_for_two_servers_on_one_store(self, store: str) -> None:
        settings: Any = {"namespace": "flask-two", "deadline": 5}
        with Limiter(store, **settings) as mine, Limiter(store, **settings) as yours:
            apps = [limited("5/hour", source=source)[0] for source in (mine, yours)]
            with serving(apps[0]) as one, under_waitress(apps[1]) as other:
                assert statuses(one, 3) + statuses(other, 3) == [200] * 5 + [429]
                assert statuses(one, 1) == [429]

    def test_who_waits_as_told_is_let_in_again(self, store: str) -> None:
        with Limiter(store, namespace="flask-wait", deadline=5) as limiter:
            app, _ = limited("1/second", source=limiter)
            with serving(app) as client:
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
              - {name: reading, match: {route: /users/<int:id>}, key: [ip], limits: 2/minute}
              - {name: no-login, match: {path: /login}, mode: block}
            """
        )
        app, _ = limited(RateLimit(), source=Engine(rules, Limiter()))
        app.add_url_rule("/users/<int:id>", "user", lambda id: str(id))
        with serving(app) as client:
            assert [client.get(f"/users/{number}").status_code for number in range(2)] == [200, 200]
            refused = client.get("/users/8")
            assert refused.status_code == 429
            assert refused.json()["violated-policies"] == ["reading#1"]
            assert client.get("/login").status_code == 403
            assert "ratelimit" not in client.get("/").headers

    def test_rules_hold_for_a_view_and_slots_are_given_back(self) -> None:
        rules = parse_text(
            "rules: [{name: one, key: [plan], limits: 3/hour, concurrency: {slots: 1, lease: 9s}}]"
        )
        app, limits = limited(source=Engine(rules, Limiter()))

        @app.get("/export")
        @limits.limit(attributes=lambda request: {"plan": request.headers["X-Plan"]})
        def export() -> str:
            return "done"

        with serving(app) as client:
            answers: list[int] = []

            def ask() -> bool:
                answers.append(client.get("/export", headers={"X-Plan": "free"}).status_code)
                return answers.count(200) == 3

            wait_until(ask)
            assert statuses(client, 1, "/export", headers={"X-Plan": "free"}) == [429]
            assert "ratelimit" not in client.get("/").headers

    def test_a_limen_elsewhere_decides_by_its_rules(self, remote: Served) -> None:
        with Client(remote.url, timeout=5) as source:
            by_rules = RateLimit(attributes=lambda request: {"user": request.headers["X-User"]})
            app, _ = limited(by_rules, source=source)
            app.add_url_rule("/two", "two", lambda: "two")
            with serving(app) as client:
                found = [client.get("/two", headers={"X-User": "flask"}) for _ in range(9)]
                assert [answer.status_code for answer in found] == [200] * 8 + [429]
                assert found[0].headers["ratelimit"].startswith('"two-limits#1";r=7;')
                assert found[8].json()["violated-policies"] == ["two-limits#1"]

    def test_a_limen_elsewhere_decides_by_limits_of_ones_own(self, remote: Served) -> None:
        with Client(remote.url, timeout=5) as source:
            app, limits = limited(RateLimit("3/hour", cost=2, scope="flask"), source=source)
            limited_too = limits.limit("2/day", Concurrency(1, lease=5))
            app.add_url_rule("/slot", "slot", limited_too(lambda: "slot"))
            with serving(app) as client:
                first, second = client.get("/slot"), client.get("/slot")
                assert (first.status_code, second.status_code) == (200, 429)
                assert '"3/hour";r=1;' in first.headers["ratelimit"]
                assert '"2/day";r=1;' in first.headers["ratelimit"]

    def test_the_wrong_kind_is_an_error_that_names_the_right_one(self) -> None:
        with pytest.raises(ConfigurationError, match=r"give it a Limiter, got an AsyncLimiter"):
            limited("1/hour", source=AsyncLimiter())
        with pytest.raises(ConfigurationError, match="a limiter knows no rules"):
            limited(RateLimit())


def test_the_example_runs_as_its_docstring_says() -> None:
    command = ("flask", "--app", "examples/flask_app.py", "run", "--port={port}")
    with under_command(*command) as client:
        assert [client.get("/").status_code for _ in range(3)] == [200] * 3
        answers = [client.get("/search?q=cats") for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert answers[5].json()["title"] == "Quota Exceeded"
        wrong = [client.post("/login", data={"password": "guess"}) for _ in range(4)]
        assert [answer.status_code for answer in wrong] == [401] * 3 + [429]
        assert "too many wrong passwords" in wrong[3].text
        assert statuses(client, 3, "/healthz") == [200] * 3


def test_a_missing_flask_is_an_error_that_names_the_extra() -> None:
    code = "import sys; sys.modules['flask'] = None; import limen.adapters.flask"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert "limen.adapters.flask needs the package flask" in done.stderr
    assert "pip install 'limen[flask]'" in done.stderr
