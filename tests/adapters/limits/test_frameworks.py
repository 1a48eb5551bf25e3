"""Flask-Limiter and slowapi with another address, and nothing else changed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import flask
import flask_limiter
import pytest
import redis
import slowapi
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from slowapi.errors import RateLimitExceeded
from starlette.responses import PlainTextResponse

import limen.adapters.limits  # noqa: F401  # makes the addresses known
from tests import servers
from tests.adapters.limits.using import ALL, PATIENT_S, keys
from tests.waiting import wait_until

Get = Callable[[str], tuple[int, dict[str, str]]]


class Site:
    """An application with limits, and a client of it."""

    def __init__(self, storage: Any, get: Get, reset: Callable[[], None]) -> None:
        self.storage, self.get, self.reset = storage, get, reset

    def statuses(self, path: str, count: int) -> list[int]:
        return [self.get(path)[0] for _ in range(count)]


def flask_site(uri: str, **settings: Any) -> Site:
    app = flask.Flask("shop")
    # What is not handled is answered with 500, as it would be for a customer.
    app.config["PROPAGATE_EXCEPTIONS"] = False
    limiter = flask_limiter.Limiter(
        lambda: "everyone", app=app, storage_uri=uri, headers_enabled=True, **settings
    )

    @app.route("/two")
    @limiter.limit("2/year")
    def two() -> str:
        return "ok"

    @app.route("/costly")
    @limiter.limit("10/year", cost=4)
    def costly() -> str:
        return "ok"

    @app.route("/failing")
    @limiter.limit("1/year", deduct_when=lambda response: response.status_code == 404)
    def failing() -> tuple[str, int]:
        return "no", 404

    @app.route("/both")
    @limiter.limit("1000/year; 1/day")
    def both() -> str:
        return "ok"

    client = app.test_client()

    def get(path: str) -> tuple[int, dict[str, str]]:
        answer = client.get(path)
        return answer.status_code, {name.lower(): value for name, value in answer.headers.items()}

    return Site(limiter.storage, get, limiter.reset)


def slowapi_site(uri: str, **settings: Any) -> Site:
    limiter = slowapi.Limiter(
        lambda: "everyone",
        storage_uri=uri,
        storage_options={},
        headers_enabled=True,
        **settings,
    )
    app = FastAPI()
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, slowapi._rate_limit_exceeded_handler)  # type: ignore[arg-type]  # as its README has it

    @app.get("/two")
    @limiter.limit("2/year")
    def two(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    @app.get("/costly")
    @limiter.limit("10/year", cost=4)
    async def costly(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    client = TestClient(app, raise_server_exceptions=False)

    def get(path: str) -> tuple[int, dict[str, str]]:
        answer = client.get(path)
        return answer.status_code, dict(answer.headers)

    return Site(limiter._storage, get, limiter.reset)


@pytest.fixture(params=[flask_site, slowapi_site])
def make(request: pytest.FixtureRequest) -> Callable[..., Site]:
    found: Callable[..., Site] = request.param
    return found


@pytest.fixture
def dead() -> str:
    return f"limen+redis://{servers.HOST}:{servers.free_port()}"


@pytest.fixture(params=["limits", "limen in memory", "limen on valkey"])
def address(request: pytest.FixtureRequest) -> str:
    """The storage that everybody has, and what may stand there instead."""
    if request.param == "limen on valkey":
        return f"{request.getfixturevalue('uri')}?deadline={PATIENT_S}"
    return "memory://" if request.param == "limits" else "limen+memory://"


@pytest.mark.parametrize("strategy", ALL)
def test_the_address_is_all_that_changes(
    make: Callable[..., Site], address: str, strategy: str
) -> None:
    site = make(address, strategy=strategy)
    told = [site.get("/two") for _ in range(3)]
    assert [status for status, _ in told] == [200, 200, 429]
    assert [headers["x-ratelimit-limit"] for _, headers in told] == ["2"] * 3
    assert [headers["x-ratelimit-remaining"] for _, headers in told] == ["1", "0", "0"]
    for _, headers in told:
        in_s = float(headers["x-ratelimit-reset"]) - time.time()
        assert 0 < in_s <= 360 * 86_400 + 2
        assert abs(int(headers["retry-after"]) - in_s) < 60
    assert site.statuses("/costly", 3) == [200, 200, 429]
    forget(site)


def forget(site: Site) -> None:
    close = getattr(site.storage, "close", None)
    if close is not None:
        close()


class TestFlaskLimiter:
    def test_only_failures_count_where_that_was_asked_for(self, uri: str) -> None:
        site = flask_site(uri)
        with closing(site.storage):
            assert site.statuses("/failing", 3) == [404, 429, 429]

    def test_several_limits_on_one_route(self, uri: str) -> None:
        site = flask_site(uri, strategy="moving-window")
        with closing(site.storage):
            assert site.statuses("/both", 2) == [200, 429]

    def test_options_may_stand_beside_the_address(self, uri: str, admin: redis.Redis) -> None:
        options = {"namespace": "shop", "deadline": PATIENT_S}
        site = flask_site(uri, storage_options=options)
        with closing(site.storage):
            assert site.statuses("/two", 3) == [200, 200, 429]
        assert [key.startswith(b"shop:{") for key in keys(admin)] == [True]

    def test_reset_works_in_memory_and_warns_elsewhere(
        self, uri: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        site = flask_site("limen+memory://")
        site.statuses("/two", 3)
        site.reset()
        assert site.statuses("/two", 1) == [200]
        shared = flask_site(uri)
        with closing(shared.storage):
            shared.reset()
        assert "does not support being reset" in caplog.text


class TestDeadStore:
    def test_nobody_gets_a_500(self, make: Callable[..., Site], dead: str) -> None:
        site = make(dead)
        with closing(site.storage):
            assert site.statuses("/two", 3) == [200, 200, 429]

    def test_it_does_by_the_storage_of_limits(self, make: Callable[..., Site], dead: str) -> None:
        site = make(dead.removeprefix("limen+"))
        assert site.statuses("/two", 1) == [500]

    def test_a_fallback_of_theirs_works_when_errors_are_asked_for(
        self, make: Callable[..., Site], dead: str
    ) -> None:
        site = make(f"{dead}?on_error=raise", in_memory_fallback=["1/year"])
        with closing(site.storage):
            assert site.statuses("/two", 2) == [200, 429]

    def test_a_store_that_comes_back_counts_again(
        self, make: Callable[..., Site], own_valkey: servers.Server
    ) -> None:
        site = make(f"limen+redis://{servers.HOST}:{own_valkey.port}")
        with closing(site.storage), redis.Redis(port=own_valkey.port) as admin:
            own_valkey.kill()
            assert site.statuses("/two", 3) == [200, 200, 429]
            own_valkey.restart()

            def is_asked_again() -> bool:
                assert site.get("/two")[0] in (200, 429)
                return bool(admin.dbsize())

            wait_until(is_asked_again)


def test_the_commands_of_flask_limiter_work(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import flask, flask_limiter, limen.adapters.limits\n"
        "app = flask.Flask('shop')\n"
        "limiter = flask_limiter.Limiter(\n"
        "    lambda: 'everyone', app=app, storage_uri='limen+memory://'\n"
        ")\n"
        "@app.route('/two')\n"
        "@limiter.limit('2/year')\n"
        "def two(): return 'ok'\n"
    )
    said = {}
    for words in ("config", "limits --key everyone", "clear --key everyone -y"):
        command = [sys.executable, "-m", "flask", "--app", "shop", "limiter", *words.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        said[words] = done.stdout
    assert "LimenStorage" in said["config"]
    assert "OK" in said["config"]
    assert "2 out of 2 remaining" in said["limits --key everyone"]
