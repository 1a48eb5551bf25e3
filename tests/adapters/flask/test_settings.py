"""What the configuration of an application says."""

from __future__ import annotations

from typing import Any

import flask
import pytest
from flask import Flask

from limen import ConfigurationError, InvalidLimit, Limiter
from limen.adapters import AddressSettings
from limen.adapters.flask import RateLimits
from tests.adapters.flask.apps import serving
from tests.adapters.wsgi.serving import statuses


def configured(limits: RateLimits | None = None, **config: Any) -> Flask:
    app = Flask(__name__)
    app.config.update(config)
    app.add_url_rule("/", "home", lambda: "home")
    (limits or RateLimits()).init_app(app)
    return app


def test_says_where_to_count_and_what_is_allowed(store: str) -> None:
    apps = [
        configured(
            LIMEN_STORE=store,
            LIMEN_NAMESPACE="configured",
            LIMEN_DEADLINE=5,
            LIMEN_ON_ERROR="closed",
            LIMEN_LIMITS=["3/hour", "9/day"],
            LIMEN_PER_ROUTE="2/hour",
        )
        for _ in range(2)
    ]
    with serving(apps[0]) as one, serving(apps[1]) as other:
        assert statuses(one, 1) + statuses(other, 1) == [200, 200]
        assert statuses(one, 1) + statuses(other, 1) == [429, 429]
        assert statuses(one, 2, "/nowhere") == [404, 429]
    for app in apps:
        app.extensions["limen"].limiter.close()


def test_says_how_clients_are_told() -> None:
    app = configured(
        LIMEN_LIMITS="1/hour",
        LIMEN_HEADERS=["x-ratelimit"],
        LIMEN_EXPOSE=True,
        LIMEN_STATUS=420,
        LIMEN_ADDRESSES={"trusted_proxies": ["127.0.0.1"], "header": "X-Real-IP"},
    )
    with serving(app) as client:
        for address in ("192.0.2.1", "192.0.2.2"):
            first, second = [client.get("/", headers={"X-Real-IP": address}) for _ in range(2)]
            assert (first.status_code, second.status_code) == (200, 420)
            assert first.headers["x-ratelimit-remaining"] == "0"
            assert "X-RateLimit-Reset" in second.headers["access-control-expose-headers"]


def test_what_the_extension_is_given_wins() -> None:
    limits = RateLimits(Limiter(), "2/hour", headers=["x-ratelimit-delta"])
    app = configured(
        limits,
        LIMEN_STORE="redis://nowhere.invalid",
        LIMEN_LIMITS="1/hour",
        LIMEN_HEADERS=["draft-11"],
        LIMEN_ADDRESSES=AddressSettings(),
    )
    with serving(app) as client:
        answers = [client.get("/") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert "x-ratelimit-limit" in answers[0].headers


def test_can_be_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASK_LIMEN_LIMITS", '["1/hour"]')
    monkeypatch.setenv("FLASK_LIMEN_ENABLED", "true")
    app = Flask(__name__)
    app.config.from_prefixed_env()
    app.add_url_rule("/", "home", lambda: "home")
    RateLimits(app=app)
    with serving(app) as client:
        assert statuses(client, 2) == [200, 429]


def test_limits_can_be_turned_off_and_on_again() -> None:
    limits = RateLimits(Limiter(), "1/hour")
    app = configured(limits, LIMEN_ENABLED=False)

    @app.get("/own")
    @limits.limit("1/hour")
    def own() -> str:
        flask.g.limen.costs(7)
        return "own"

    with serving(app) as client:
        for path in ("/", "/own"):
            assert statuses(client, 3, path) == [200] * 3
            assert "ratelimit" not in client.get(path).headers
        app.config["LIMEN_ENABLED"] = True
        assert statuses(client, 2) == [200, 429]


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        ({"LIMEN_LIMIT": "1/hour"}, ConfigurationError, "LIMEN_LIMIT .did you mean 'LIMEN_LIMITS'"),
        ({"LIMEN_ENABLED": "no"}, ConfigurationError, "LIMEN_ENABLED must be True or False"),
        ({"LIMEN_LIMITS": 5}, ConfigurationError, "expected a list of limits such as"),
        ({"LIMEN_LIMITS": [5]}, ConfigurationError, "a limit must be text"),
        ({"LIMEN_PER_ROUTE": "1/parsec"}, InvalidLimit, "parsec"),
        ({"LIMEN_STORE": "rediss"}, ConfigurationError, "store"),
        ({"LIMEN_HEADERS": ["draft-1"]}, ConfigurationError, "did you mean 'draft-11'"),
        ({"LIMEN_ADDRESSES": {"proxies": []}}, ConfigurationError, "LIMEN_ADDRESSES: .*proxies"),
        ({"LIMEN_ADDRESSES": "10.0.0.1"}, ConfigurationError, "addresses must be"),
        ({"LIMEN_STATUS": 200}, ConfigurationError, "status must be from 400 to 599"),
    ],
    ids=str,
)
def test_a_mistake_is_said_when_the_application_is_made(
    config: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        configured(**config)
