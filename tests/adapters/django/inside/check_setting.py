"""The setting `LIMEN`: what the system checks say of it, and that a change takes effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import Error, Warning, run_checks
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

from limen import AsyncLimiter, ConfigurationError, Limiter
from limen.adapters.django import RateLimit, ratelimit
from limen.adapters.django.checks import check_setting, check_store, check_views
from limen.adapters.django.installed import installed
from limen.adapters.django.rest import RateLimitThrottle
from limen.engine import Engine
from limen.rules import parse_text
from limen.testing import ManualClock
from tests.adapters.django.project import views
from tests.forked import in_child

CLOCK = ManualClock()
LIMITER = Limiter(clock=CLOCK)
SCOPES = {"SCOPES": settings.LIMEN["SCOPES"]}
REDIS = "redis://someone:secret@localhost:1"


def make_limiter() -> Limiter:
    return Limiter(clock=CLOCK)


async def make_async() -> Limiter:
    return make_limiter()


def of_key(request: HttpRequest) -> str:
    return request.headers.get("X-Who", "nobody")


def said(limen: object, check: Any = check_setting) -> list[tuple[str | None, str]]:
    with override_settings(LIMEN=limen):
        found = check()
    assert all(message.hint for message in found)
    return [(message.id, message.msg) for message in found]


@pytest.mark.parametrize(
    ("limen", "id", "text"),
    [
        ([], "E001", "LIMEN must be a dict, got list"),
        ({"STROE": "memory://"}, "E002", "LIMEN has no key 'STROE' (did you mean 'STORE'?)"),
        ({7: 8}, "E002", "LIMEN has no key 7"),
        ({"ENABLED": "no"}, "E003", "LIMEN['ENABLED']: expected True or False, got 'no'"),
        ({"STORE": 7}, "E003", "LIMEN['STORE']: expected text, got int"),
        ({"KEY": "usr"}, "E003", "LIMEN['KEY']: unknown key 'usr' (did you mean 'user'?)"),
        ({"NAMESPACE": "a b"}, "E003", "LIMEN['NAMESPACE']: namespace must be 1 to "),
        ({"ON_ERROR": "shut"}, "E003", "LIMEN['ON_ERROR']: on_error must be local, open or "),
        ({"INSTANCES": 0}, "E003", "LIMEN['INSTANCES']: instances must be a whole number"),
        ({"DEADLINE": "soon"}, "E003", "LIMEN['DEADLINE']: deadline must be seconds above 0"),
        ({"STATUS": 200}, "E003", "LIMEN['STATUS']: status must be from 400 to 599, got 200"),
        ({"VIEW": 7}, "E003", "LIMEN['VIEW']: expected a function, or the dotted path of one"),
        ({"TOKEN": 7, "SERVICE": "http://a"}, "E003", "LIMEN['TOKEN']: expected text, got int"),
        ({"LIMITS": ["10/x"]}, "E004", "LIMEN['LIMITS']: "),
        ({"LIMITS": [7]}, "E004", "LIMEN['LIMITS']: a limit must be text such as"),
        ({"LIMITS": {"10/day"}}, "E004", "LIMEN['LIMITS']: expected a list of limits such as"),
        ({"LIMITS": ["1/day", "2/day"]}, "E004", "LIMEN['LIMITS']: "),
        ({"SCOPES": {"up": "10/x"}}, "E004", "LIMEN['SCOPES']: 'up': "),
        ({"SCOPES": {"u p": "1/day"}}, "E004", "LIMEN['SCOPES']: 'u p': scope must be text"),
        ({"HEADERS": ["draft-10"]}, "E005", "LIMEN['HEADERS']: unknown style of headers"),
        ({"HEADERS": "draft-11"}, "E005", "LIMEN['HEADERS']: headers must be a list of styles"),
        ({"TRUSTED_PROXIES": ["10.0.0.0/8"]}, "E006", "LIMEN[TRUSTED_PROXIES]: name the one "),
        ({"TRUSTED_PROXIES": "10.0.0.0/8"}, "E006", "LIMEN['TRUSTED_PROXIES']: expected a list"),
        (
            {"TRUSTED_PROXIES": ["*"], "ADDRESS_HEADER": "X-Forwarded-For"},
            "E006",
            "LIMEN[TRUSTED_PROXIES, ADDRESS_HEADER]: trusted_proxies cannot be '*'",
        ),
        ({"IPV6_PREFIX": 65}, "E006", "LIMEN[IPV6_PREFIX]: ipv6_prefix must be 48, 56, 64"),
        ({"EXEMPT_WHEN": "no.such.module"}, "E007", "LIMEN['EXEMPT_WHEN']: No module named 'no'"),
        ({"KEY": "shop.views.whom"}, "E007", "LIMEN['KEY']: No module named 'shop'"),
        ({"SERVICE": "http://a", "STORE": REDIS}, "E008", "LIMEN['SERVICE'] stands instead of ST"),
        ({"LIMITER": LIMITER, "DEADLINE": 1}, "E008", "LIMEN['LIMITER'] stands instead of DEAD"),
        ({"TOKEN": "secret"}, "E008", "LIMEN['TOKEN'] is for a SERVICE, and there is none"),
        ({"STORE": "reddis://secret"}, "E009", "LIMEN: "),
        ({"SERVICE": "limen:8080"}, "E009", "LIMEN: "),
        ({"RULES": "nowhere.yaml"}, "E009", "LIMEN: "),
        ({"LIMITER": 7}, "E009", "LIMEN: LIMITER must be a Limiter, an Engine or a Client"),
        (
            {"LIMITER": "no.such.limiter"},
            "E007",
            "LIMEN: LIMITER: as text it is a dotted path; this le",
        ),
        ({"LIMITER": "redis://:secret@h"}, "E007", "LIMEN: LIMITER: as text it is a dotted path"),
        (
            {"LIMITER": "redis://:secret@h.net"},
            "E007",
            "LIMEN: LIMITER: as text it is a dotted path",
        ),
        (
            {"LIMITER": f"{__package__}.raises.it"},
            "E007",
            "LIMEN: LIMITER: as text it is a dotted path",
        ),
        ({"LIMITER": []}, "E009", "LIMEN: LIMITER as a pair has one for threads and one for"),
        ({"LIMITER": [LIMITER, LIMITER]}, "E009", "LIMEN: LIMITER as a pair has one for threads"),
        ({"LIMITER": make_async}, "E009", f"LIMEN: {__name__}.make_async is async"),
        ({"KEY": "redis://:secret@h.net"}, "E007", "LIMEN['KEY']: expected a dotted path"),
        ({"VIEW": "redis://:secret@h.net"}, "E007", "LIMEN['VIEW']: expected a dotted path"),
        ({"LIMITER": lambda: "secret"}, "E009", "LIMEN: LIMITER must be a Limiter"),
        ({"LIMITER": lambda: int("secret")}, "E009", "LIMEN: LIMITER: "),
        ({"LIMITS": [RateLimit()]}, "E009", "LIMEN: a limiter knows no rules"),
    ],
)
def test_a_check_names_what_is_wrong(limen: object, id: str, text: str) -> None:
    [(found, message)] = said(limen)
    assert found == f"limen.{id}"
    assert message.startswith(text)
    assert "secret" not in message
    with override_settings(LIMEN=limen), pytest.raises((ConfigurationError, ImportError)):
        installed().any_door.limits  # noqa: B018  # it raises


@pytest.mark.parametrize("handler", [WSGIHandler, ASGIHandler])
def test_a_wrong_setting_stops_the_server_when_it_starts(handler: Callable[[], object]) -> None:
    with (
        override_settings(LIMEN={"LIMITS": ["10/x"], "STROE": ""}),
        pytest.raises(ConfigurationError, match=r"'STORE'.*; LIMEN\['LIMITS'\]: "),
    ):
        handler()


def test_everything_that_is_wrong_is_said_at_once() -> None:
    found = said({"LIMITS": ["10/x"], "HEADERS": ["x"], "STOER": "", "ENABLED": 1})
    assert [id for id, _ in found] == ["limen.E002", "limen.E003", "limen.E004", "limen.E005"]


def test_a_proper_setting_is_no_trouble() -> None:
    limen = {
        "STORE": REDIS,
        "LIMITS": ["100/minute", RateLimit("5/second", key="user")],
        "KEY": ["user_or_ip", "route"],
        "SCOPES": {"uploads": ["20/day", "2/minute"]},
        "HEADERS": ["draft-11", "x-ratelimit"],
        "TRUSTED_PROXIES": ["10.0.0.0/8"],
        "ADDRESS_HEADER": "X-Forwarded-For",
        "IPV6_PREFIX": 56,
        "EXPOSE": True,
        "STATUS": 503,
        "NAMESPACE": "shop",
        "ON_ERROR": "open",
        "INSTANCES": 4,
        "DEADLINE": 0.1,
        "EXEMPT_WHEN": "tests.adapters.django.project.whom.is_staff",
        "VIEW": views.sorry,
    }
    assert said(limen) == said({}) == said({"ENABLED": False, "RULES": "nowhere"}) == []


def test_a_check_warns_of_limits_without_the_middleware() -> None:
    with override_settings(MIDDLEWARE=[]):
        [(id, message)] = said({"LIMITS": ["10/day"]})
        assert (id, message[:46]) == (
            "limen.W001",
            "LIMEN has limits that hold everywhere, and Rat",
        )
        [(id, message)] = said(SCOPES, check_views)
        assert id == "limen.W001"
        assert "tests.adapters.django.project.views." in message
    assert said({"LIMITS": ["10/day"]}) == said(SCOPES, check_views) == []


def test_a_check_sees_throttles_that_cannot_work() -> None:
    found = said({}, check_views)
    assert {id for id, _ in found} == {"limen.E010"}
    assert any(
        "ScopedRateLimitThrottle: LIMEN['SCOPES'] has no limits" in each for _, each in found
    )


def of_throttles(**view: Any) -> list[tuple[str | None, str]]:
    class Throttled(views.Api):
        pass

    urls = ModuleType("urls")
    urls.urlpatterns = [path("", Throttled.as_view(**view))]  # type: ignore[attr-defined]
    with override_settings(ROOT_URLCONF=urls):
        return said(SCOPES, check_views)


class SharedByOne(RateLimitThrottle):
    limits = "1/day"
    scope = "shared"


class SharedByOther(SharedByOne):
    limits = "2/day"


@pytest.mark.parametrize(
    ("throttles", "text"),
    [
        ([RateLimitThrottle], "RateLimitThrottle: a limiter knows no rules"),
        ([SharedByOne, SharedByOther], "<RateLimit 1/day by user or ip> and <RateLimit 2/day"),
    ],
)
def test_a_check_sees_throttles_that_as_view_is_told_of(throttles: Any, text: str) -> None:
    [(id, message)] = of_throttles(throttle_classes=throttles)
    assert id == "limen.E010"
    assert f"Throttled: {text}" in message
    assert of_throttles() == of_throttles(throttle_classes=[SharedByOne]) == []


def test_a_check_sees_throttles_that_stand_everywhere() -> None:
    urls = ModuleType("urls")
    urls.urlpatterns = []  # type: ignore[attr-defined]
    rest = {"DEFAULT_THROTTLE_CLASSES": ["limen.adapters.django.rest.RateLimitThrottle"]}
    with override_settings(ROOT_URLCONF=urls, REST_FRAMEWORK=rest):
        [(id, message)] = said({}, check_views)
    assert id == "limen.E010"
    assert message.startswith("DEFAULT_THROTTLE_CLASSES: RateLimitThrottle: a limiter knows no")


def test_a_check_sees_limits_on_a_view_that_would_share_one_state() -> None:
    @ratelimit("1/day", scope="one")
    @ratelimit("2/day", scope="one")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    urls = ModuleType("urls")
    urls.urlpatterns = [path("", view)]  # type: ignore[attr-defined]
    with override_settings(ROOT_URLCONF=urls):
        [(id, message)] = said({}, check_views)
    assert id == "limen.E010"
    assert "would share one state" in message


def test_a_header_with_a_dot_is_no_dotted_path() -> None:
    assert said({"LIMITS": ["10/day"], "KEY": "header:X.Api"}) == []


def test_a_check_warns_of_users_who_cannot_be_known_yet() -> None:
    ours = "limen.adapters.django.RateLimitMiddleware"
    theirs = "django.contrib.auth.middleware.AuthenticationMiddleware"
    limen = {"LIMITS": ["10/day"], "KEY": "user_or_ip"}
    with override_settings(MIDDLEWARE=[ours, theirs]):
        assert [id for id, _ in said(limen)] == ["limen.W002"]
        assert said({"LIMITS": ["10/day"]}) == []
    with override_settings(MIDDLEWARE=[theirs, ours]):
        assert said(limen) == []


def test_a_check_finds_limits_on_views_that_nobody_can_decide() -> None:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    urls = ModuleType("urls")
    urls.urlpatterns = [path("", ratelimit()(view))]  # type: ignore[attr-defined]  # a URLconf

    with override_settings(ROOT_URLCONF=urls):
        [(id, message)] = said({}, check_views)
    assert id == "limen.E010"
    assert "view: a limiter knows no rules" in message


def test_a_deployment_is_warned_of_counting_in_memory() -> None:
    assert [id for id, _ in said({}, check_store)] == ["limen.W003"]
    assert said({"STORE": REDIS}, check_store) == []
    assert "limen.W003" not in [message.id for message in run_checks()]
    assert "limen.W003" in [message.id for message in run_checks(include_deployment_checks=True)]


def test_the_checks_are_those_of_the_application() -> None:
    call_command("check")
    with override_settings(LIMEN={"LIMITS": ["10/x"]}):
        found = [message.id for message in run_checks() if isinstance(message, Error)]
    assert found == ["limen.E004"]
    assert not [message for message in run_checks() if isinstance(message, Warning)]


def statuses(limen: dict[str, Any], times: int, where: str = "/plain/") -> list[int]:
    with override_settings(LIMEN=limen):
        return [Client().get(where).status_code for _ in range(times)]


def test_a_changed_setting_takes_effect() -> None:
    client = Client()
    assert "RateLimit" not in client.get("/plain/").headers
    with override_settings(LIMEN={"LIMITS": ["1/day"]}):
        assert client.get("/plain/").status_code == 200
        assert client.get("/plain/").status_code == 429
        with override_settings(LIMEN={"LIMITS": ["1/day"], "ENABLED": False}):
            answer = client.get("/plain/")
            assert answer.status_code == 200
            assert "RateLimit" not in answer.headers
    assert client.get("/plain/").status_code == 200


def test_switched_off_nothing_is_limited_and_views_go_on() -> None:
    limen = {"LIMITS": ["1/day"], "ENABLED": False}
    for where in ["/plain/", "/users/1/", "/costly/", "/api/", "/two-throttles/"]:
        assert statuses(limen, 5, where) == [200] * 5
    # Where it is off, what is not there does not matter.
    assert statuses({"STORE": REDIS, "ENABLED": False}, 1) == [200]


def test_the_key_of_the_setting_is_that_of_its_limits() -> None:
    limen = {"LIMITS": ["1/day"], "KEY": f"{__name__}.of_key"}
    with override_settings(LIMEN=limen):
        found = [Client(headers={"X-Who": who}).get("/plain/").status_code for who in "aab"]
    assert found == [200, 429, 200]


def test_exempt_when_lets_pass_whatever_stands_anywhere() -> None:
    limen = {"LIMITS": ["1/day"], "EXEMPT_WHEN": "tests.adapters.django.project.whom.is_staff"}
    with override_settings(LIMEN=limen):
        staff, other = Client(headers={"X-Staff": "yes"}), Client()
        for where in ["/plain/", "/users/1/", "/api/"]:
            assert [staff.get(where).status_code for _ in range(5)] == [200] * 5
        assert [other.get("/plain/").status_code for _ in range(2)] == [200, 429]


def test_exempt_when_may_be_async_by_asgi_alone() -> None:
    async def is_alice(request: HttpRequest) -> bool:
        return request.headers.get("X-Who") == "alice"

    async def by_asgi() -> list[int]:
        whom = [{"X-Who": who} for who in ("alice", "alice", "bob", "bob")]
        answers = [await AsyncClient().get("/plain/", headers=headers) for headers in whom]
        return [answer.status_code for answer in answers]

    with override_settings(LIMEN={"LIMITS": ["1/day"], "EXEMPT_WHEN": is_alice}):
        assert asyncio.run(by_asgi()) == [200, 200, 200, 429]
        with pytest.raises(ConfigurationError, match=r"EXEMPT_WHEN.* is async"):
            Client().get("/plain/")


@pytest.mark.parametrize("view", [views.sorry, views.sorry_async, "sorry", "sorry_async"])
def test_a_view_of_ones_own_answers_who_is_refused(view: Any) -> None:
    async def by_asgi() -> Any:
        return await AsyncClient().get("/users/1/")

    named = f"tests.adapters.django.project.views.{view}" if isinstance(view, str) else view
    with override_settings(LIMEN={"LIMITS": ["1/day"], "VIEW": named}):
        assert Client().get("/users/1/").status_code == 200
        for answer in (Client().get("/users/1/"), asyncio.run(by_asgi())):
            assert answer.status_code == 420
            assert answer.text.startswith("sorry: 1 request a day is allowed for this address;")
            assert int(answer.headers["Retry-After"]) > 80_000
            assert answer.headers["RateLimit"].startswith('"1/day";r=0;')


def test_status_styles_and_exposure_are_as_the_setting_says() -> None:
    limen = {
        "LIMITS": ["1/day"],
        "HEADERS": ["x-ratelimit-delta"],
        "STATUS": 503,
        "EXPOSE": True,
    }
    with override_settings(LIMEN=limen):
        first, second = [Client().get("/plain/") for _ in range(2)]
    assert first.headers["X-RateLimit-Remaining"] == "0"
    assert "RateLimit" not in first.headers
    for answer in (first, second):
        exposed = answer.headers["Access-Control-Expose-Headers"].split(", ")
        assert "X-RateLimit-Limit" in exposed
        assert "Retry-After" in exposed
    assert second.status_code == 503


def test_a_proxy_is_believed_that_the_setting_names() -> None:
    limen = {
        "LIMITS": ["1/day"],
        "TRUSTED_PROXIES": ["127.0.0.1"],
        "ADDRESS_HEADER": "X-Forwarded-For",
    }
    sent = ["192.0.2.1", "192.0.2.2", "192.0.2.9, 192.0.2.1", "rubbish", "more rubbish"]
    with override_settings(LIMEN=limen):
        found = [Client(headers={"X-Forwarded-For": each}).get("/plain/") for each in sent]
    assert [answer.status_code for answer in found] == [200, 200, 429, 200, 429]


@pytest.mark.parametrize("limiter", [LIMITER, f"{__name__}.LIMITER", f"{__name__}.make_limiter"])
def test_a_limiter_of_ones_own_counts_by_wsgi_and_by_asgi_alike(limiter: Any) -> None:
    async def by_asgi() -> list[int]:
        return [(await AsyncClient().get("/plain/")).status_code for _ in range(2)]

    CLOCK.advance(100_000)
    with override_settings(LIMEN={"LIMITS": ["2/day"], "LIMITER": limiter}):
        assert Client().get("/plain/").status_code == 200
        assert asyncio.run(by_asgi()) == [200, 429]
        assert Client().get("/plain/").status_code == 429
        CLOCK.advance(86_400)
        assert Client().get("/plain/").status_code == 200


def test_a_limiter_that_cannot_be_asked_where_a_request_comes_from_is_named() -> None:
    async def by_asgi() -> int:
        return (await AsyncClient().get("/plain/")).status_code

    with override_settings(LIMEN={"LIMITS": ["2/day"], "LIMITER": AsyncLimiter()}):
        assert asyncio.run(by_asgi()) == 200
        with pytest.raises(ConfigurationError, match=r"comes by threads.*such as a Limiter"):
            Client().get("/plain/")
    pair = (Limiter(), AsyncLimiter())
    with override_settings(LIMEN={"LIMITS": ["2/day"], "LIMITER": pair}):
        assert asyncio.run(by_asgi()) == Client().get("/plain/").status_code == 200


def test_an_engine_of_ones_own_decides_by_its_rules_beside_limits() -> None:
    rules = parse_text("rules: [{name: few, match: {path: /plain}, key: [ip], limits: 1/day}]")
    engine = Engine(rules, Limiter())
    with override_settings(LIMEN={"LIMITS": ["9/day"], "LIMITER": engine}):
        first, second = [Client().get("/plain/") for _ in range(2)]
        assert first.headers["RateLimit"] == '"9/day";r=8;t=86400, "few#1";r=0;t=86400'
        assert second.json()["violated-policies"] == ["few#1"]
        # The refused one was given back: with a third view, two are counted.
        assert Client().get("/users/1/").headers["RateLimit"].startswith('"9/day";r=7;')


def test_one_count_in_memory_for_wsgi_and_asgi() -> None:
    async def by_asgi() -> list[int]:
        return [(await AsyncClient().get("/plain/")).status_code for _ in range(2)]

    with override_settings(LIMEN={"LIMITS": ["3/day"]}):
        assert [Client().get("/plain/").status_code for _ in range(2)] == [200, 200]
        assert asyncio.run(by_asgi()) == [200, 429]
        assert Client().get("/plain/").status_code == 429


def test_a_key_function_that_is_async_is_for_asgi_alone() -> None:
    async def whom(request: HttpRequest) -> str:
        return "somebody"

    async def by_asgi() -> list[int]:
        return [(await AsyncClient().get("/plain/")).status_code for _ in range(2)]

    with override_settings(LIMEN={"LIMITS": [RateLimit("1/day", key=whom)]}):
        assert said({"LIMITS": [RateLimit("1/day", key=whom)]}) == []
        assert asyncio.run(by_asgi()) == [200, 429]
        with pytest.raises(ConfigurationError, match="this adapter runs in threads"):
            Client().get("/plain/")


def test_the_child_of_a_fork_does_not_wait_for_a_thread_of_the_parent() -> None:
    current = installed.__self__  # type: ignore[attr-defined]
    with override_settings(LIMEN=SCOPES), current._lock:
        assert in_child(lambda: installed().settings.enabled)
