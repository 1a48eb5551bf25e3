"""What goes wrong in other limiters for Flask, and does not here."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
import redis
from flask import Blueprint, Request

from limen import Limiter
from limen.adapters import AddressSettings, RateLimit
from limen.engine import Engine
from limen.rules import parse_text
from limen.testing import ManualClock
from tests.adapters.flask.apps import limited, serving
from tests.adapters.wsgi.serving import statuses


def test_a_store_that_hangs_stalls_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, and never answers
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        with Limiter(url, deadline=0.05) as limiter:
            app, _ = limited("3/hour", source=limiter)
            with serving(app) as client:
                began = time.monotonic()
                assert statuses(client, 4) == [200, 200, 200, 429]
                assert time.monotonic() - began < 20


def test_an_error_of_the_application_is_not_taken_for_one_of_the_store(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    def tenant_of(request: Request) -> str:
        return request.headers["X-Tenant"]

    sources: list[str] = []
    observers = [lambda decision: sources.append(decision.source)]
    with Limiter(store, namespace="flask-error", deadline=5, observers=observers) as limiter:
        by_tenant = RateLimit("9/hour", key=tenant_of, missing="skip")
        app, _ = limited("2/hour", by_tenant, source=limiter)
        with serving(app) as client:
            assert statuses(client, 3) == [200, 200, 429]
    assert sources == ["store"] * 3
    assert "tenant_of raised" in caplog.text


def test_a_request_under_many_limits_is_one_call_of_the_store(store: str) -> None:
    with (
        Limiter(store, namespace="flask-calls", deadline=5) as limiter,
        redis.Redis.from_url(store) as admin,
    ):
        app, limits = limited("100/minute", "1000/day", source=limiter)
        pages = Blueprint("pages", __name__)
        limits.limit("50/minute")(pages)
        pages.add_url_rule("/page", "page", limits.limit("20/minute", "200/day")(lambda: "page"))
        app.register_blueprint(pages)

        def calls() -> int:
            found: Any = admin.info("commandstats")
            return sum(found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in _SCRIPTS)

        with serving(app) as client:
            client.get("/page")
            before = calls()
            answers = [client.get("/page") for _ in range(10)]
            assert calls() - before == 10
            assert all(answer.headers["ratelimit"].count(";r=") == 5 for answer in answers)


_SCRIPTS = ("eval", "evalsha", "fcall")


def test_who_is_refused_is_charged_nothing() -> None:
    app, _ = limited(RateLimit("10/minute", cost=lambda request: int(request.args["cost"])))
    with serving(app) as client:
        found = [client.get(f"/?cost={cost}").status_code for cost in (8, 5, 5, 2)]
        assert found == [200, 429, 429, 200]


def test_a_limit_that_refuses_leaves_the_others_unspent() -> None:
    app, limits = limited("5/hour")
    app.add_url_rule("/strict", "strict", limits.limit("1/hour")(lambda: ""))
    with serving(app) as client:
        assert statuses(client, 9, "/strict") == [200] + [429] * 8
        assert statuses(client, 5) == [200] * 4 + [429]


def test_limits_of_the_application_and_of_a_view_count_a_request_once_each() -> None:
    app, limits = limited("4/hour")
    app.add_url_rule("/view", "view", limits.limit("4/hour")(lambda: ""))
    with serving(app) as client:
        assert statuses(client, 5, "/view") == [200] * 4 + [429]


def test_views_of_one_name_do_not_share_a_count() -> None:
    app, limits = limited()
    for name in ("one", "other"):
        pages = Blueprint(name, __name__, url_prefix=f"/{name}")

        @pages.get("/")
        @limits.limit("1/hour")
        def index() -> str:
            return "index"

        app.register_blueprint(pages)
    with serving(app) as client:
        assert statuses(client, 2, "/one/") == [200, 429]
        assert statuses(client, 2, "/other/") == [200, 429]


def test_clients_do_not_share_a_bucket_unless_asked_to() -> None:
    trusting = AddressSettings(trusted_proxies=("127.0.0.1",), header="X-Real-IP")
    app, _ = limited("1/hour", addresses=trusting)
    with serving(app) as client:
        for number in range(1, 5):
            headers = {"X-Real-IP": f"192.0.2.{number}"}
            assert statuses(client, 2, headers=headers) == [200, 429]


def test_limits_change_while_the_application_runs() -> None:
    def rules(limit: str) -> Any:
        return parse_text(f"rules: [{{name: all, key: [ip], limits: {limit}}}]")

    engine = Engine(rules("1/hour"), Limiter())
    app, _ = limited(RateLimit(), source=engine)
    with serving(app) as client:
        assert statuses(client, 2) == [200, 429]
        engine.use(rules("3/hour"))
        # What was used stays used.
        assert statuses(client, 3) == [200, 200, 429]


def test_a_refusal_says_when_to_come_back_and_never_in_zero_seconds() -> None:
    app, _ = limited("100/second burst 1", source=Limiter(clock=ManualClock()))
    with serving(app) as client:
        answers = [client.get("/") for _ in range(2)]
        assert [answer.headers.get("retry-after") for answer in answers] == [None, "1"]
