"""Limits on views: with and without the middleware, and where Django does the unexpected."""

from __future__ import annotations

import asyncio
import gc
import io
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.http import FileResponse, HttpRequest, HttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory, override_settings
from django.urls import clear_url_caches, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from rest_framework.exceptions import NotFound
from rest_framework.response import Response

from limen import Concurrency, ConfigurationError, Limiter
from limen.adapters.django import RateLimit, exempt, ratelimit, visit_of
from limen.adapters.django.rest import RateLimitThrottle, ScopedRateLimitThrottle
from limen.testing import ManualClock
from tests.adapters.django.project import views, whom

OURS = "limen.adapters.django.RateLimitMiddleware"
WITHOUT = [each for each in settings.MIDDLEWARE if each != OURS]
SLOT = Concurrency(1, lease=60)


def urls(**found: Callable[..., Any]) -> ModuleType:
    """Return a URLconf with a view at each name."""
    module = ModuleType("urls")
    patterns = [path(f"{name}/", view) for name, view in found.items()]
    module.urlpatterns = patterns  # type: ignore[attr-defined]  # a module may have any
    return module


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


async def hello_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


def get(path: str, times: int = 1) -> list[Any]:
    return [Client().get(path) for _ in range(times)]


def get_async(path: str, times: int = 1) -> list[Any]:
    async def run() -> list[Any]:
        return [await AsyncClient().get(path) for _ in range(times)]

    return asyncio.run(run())


both = pytest.mark.parametrize("get", [get, get_async], ids=["wsgi", "asgi"])


@both
@pytest.mark.parametrize(
    "path", ["/users/1/", "/async/users/1/", "/classy/", "/classy-async/", "/stacked/"]
)
def test_works_without_the_middleware_and_tells_on_what_it_returns(get: Any, path: str) -> None:
    with override_settings(MIDDLEWARE=WITHOUT):
        answers = get(path, 4)
    assert [answer.status_code for answer in answers] == [200] * 3 + [429]
    assert [answer.headers["RateLimit"].split(";")[1] for answer in answers] == [
        "r=2",
        "r=1",
        "r=0",
        "r=0",
    ]
    assert "Retry-After" in answers[3].headers


@both
def test_a_slot_without_the_middleware_is_given_back(get: Any) -> None:
    with override_settings(MIDDLEWARE=WITHOUT):
        assert [answer.status_code for answer in get("/slow/", 3)] == [200] * 3
        for _ in range(2):
            with pytest.raises(LookupError, match="nobody is at home"):
                get("/fails/")


def test_a_throttle_works_without_the_middleware_and_tells() -> None:
    with override_settings(MIDDLEWARE=WITHOUT):
        answers = get("/two-throttles/", 3)
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["RateLimit"].count(";r=") == 2
    assert int(answers[2].headers["Retry-After"]) > 80_000


class Slots(RateLimitThrottle):
    limits = SLOT


class WithSlots(views.Api):
    throttle_classes = (Slots,)


def test_a_throttle_with_slots_needs_the_middleware() -> None:
    with override_settings(ROOT_URLCONF=urls(api=WithSlots.as_view())):
        assert [answer.status_code for answer in get("/api/", 3)] == [200] * 3
        assert [answer.status_code for answer in get_async("/api/", 3)] == [200] * 3
        with (
            override_settings(MIDDLEWARE=WITHOUT),
            pytest.raises(ConfigurationError, match="need to know when a response is sent"),
        ):
            get("/api/")


class Elsewhere(ScopedRateLimitThrottle):
    pass


class UnknownScope(views.Api):
    throttle_classes = (Elsewhere,)
    throttle_scope = "uplaods"


def test_a_throttle_whose_scope_has_no_limits_is_an_error() -> None:
    with (
        override_settings(ROOT_URLCONF=urls(api=UnknownScope.as_view())),
        pytest.raises(ConfigurationError, match=r"'uplaods' \(did you mean 'uploads'\?\)"),
    ):
        get("/api/")


def test_switched_off_nothing_is_looked_up() -> None:
    with override_settings(ROOT_URLCONF=urls(api=UnknownScope.as_view()), LIMEN={"ENABLED": False}):
        assert [answer.status_code for answer in get("/api/", 3)] == [200] * 3


def test_two_limits_of_one_period_on_a_view_both_hold() -> None:
    few = ratelimit("2/minute")(ratelimit("9/minute")(hello))
    many = ratelimit("9/minute")(ratelimit("2/minute")(hello))
    with override_settings(ROOT_URLCONF=urls(few=few, many=many)):
        for path_ in ("/few/", "/many/"):
            answers = get(path_, 3)
            assert [answer.status_code for answer in answers] == [200, 200, 429]
            assert answers[0].headers["RateLimit"].count("/minute") == 2
        with override_settings(MIDDLEWARE=WITHOUT):
            assert [answer.status_code for answer in get("/few/", 3)] == [429] * 3


@both
@pytest.mark.parametrize("everywhere", [["50/day"], []])
def test_limits_of_one_period_on_a_class_all_hold(get: Any, everywhere: list[str]) -> None:
    class Plain(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    @method_decorator([ratelimit("2/minute"), ratelimit("9/minute")], name="dispatch")
    class Listed(Plain):
        pass

    @method_decorator(ratelimit("2/minute"), name="dispatch")
    @method_decorator(ratelimit("9/minute"), name="dispatch")
    class Stacked(Plain):
        pass

    found = urls(listed=Listed.as_view(), stacked=Stacked.as_view())
    with override_settings(ROOT_URLCONF=found, LIMEN={"LIMITS": everywhere}):
        for path_ in ("/listed/", "/stacked/"):
            answers = get(path_, 3)
            assert [answer.status_code for answer in answers] == [200, 200, 429]
            assert '"9/minute";r=8;' in answers[0].headers["RateLimit"]


def test_limits_on_a_view_that_have_some_periods_in_common_all_hold() -> None:
    inner = ratelimit("9/hour; 9/minute")(ratelimit("5/minute")(hello))
    with override_settings(ROOT_URLCONF=urls(view=ratelimit("2/hour")(inner))):
        assert [answer.status_code for answer in get("/view/", 3)] == [200, 200, 429]


def test_one_more_limit_around_a_view_changes_nothing_for_those_there() -> None:
    inner = ratelimit("3/minute")(hello)
    module = urls(view=inner)
    with override_settings(ROOT_URLCONF=module, LIMEN={"LIMITER": Limiter(clock=ManualClock())}):
        assert get("/view/")[0].headers["RateLimit"].startswith('"3/minute";r=2;')
        around = ratelimit("9/minute")(inner)
        module.urlpatterns = [path("view/", around)]  # type: ignore[attr-defined]
        clear_url_caches()
        said = get("/view/")[0].headers["RateLimit"]
    assert '"3/minute";r=1;' in said
    assert '"9/minute";r=8;' in said


def test_what_exempts_must_not_be_async_by_a_detour() -> None:
    async def is_staff(request: HttpRequest) -> bool:
        return False

    limen = {"LIMITS": ["1/day"], "EXEMPT_WHEN": lambda request: is_staff(request)}
    with (
        override_settings(LIMEN=limen, ROOT_URLCONF=urls(home=hello)),
        pytest.raises(ConfigurationError, match="is async, and this adapter runs in threads"),
    ):
        get("/home/")


def test_views_that_take_the_place_of_others_are_seen() -> None:
    module = urls(home=hello)
    with override_settings(ROOT_URLCONF=module, LIMEN={"LIMITS": ["1/day"]}):
        assert [answer.status_code for answer in get("/home/", 2)] == [200, 429]
        module.urlpatterns = [path("home/", exempt(hello))]  # type: ignore[attr-defined]
        clear_url_caches()
        assert [answer.status_code for answer in get("/home/", 2)] == [200, 200]


def test_exempt_on_a_class_says_where_it_stands() -> None:
    with pytest.raises(ConfigurationError, match=r"@method_decorator\(exempt, name="):
        exempt(View)


def test_a_request_that_no_route_leads_to_is_counted_by_its_view() -> None:
    view, other = ratelimit("1/day")(hello), ratelimit("1/day")(views.plain)
    requests = RequestFactory()
    found = [view(requests.get("/nowhere")).status_code for _ in range(2)]
    assert found == [200, 429]
    assert other(requests.get("/nowhere")).status_code == 200


def test_an_async_view_can_be_called_by_itself() -> None:
    view = ratelimit("1/day")(hello_async)

    async def run() -> list[int]:
        requests = AsyncRequestFactory()
        return [(await view(requests.get("/nowhere"))).status_code for _ in range(2)]

    assert asyncio.run(run()) == [200, 429]


def test_a_class_is_limited_by_method_decorator_alone() -> None:
    with pytest.raises(ConfigurationError, match="method_decorator"):

        @ratelimit("1/day")
        class Classy(View):
            pass

    class Wrong(View):
        @ratelimit("1/day")
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    with pytest.raises(ConfigurationError, match="got Wrong; on methods of a class, limits stand"):
        Wrong.as_view()(RequestFactory().get("/"))


@both
def test_a_decorator_that_hides_the_limit_changes_nothing(get: Any) -> None:
    def hides(view: Callable[..., Any]) -> Callable[..., Any]:
        def hidden(request: HttpRequest) -> Any:
            return view(request)

        return hidden

    found = urls(
        hidden=hides(ratelimit("2/day")(hello)), seen=never_cache(ratelimit("2/day")(hello))
    )
    with override_settings(ROOT_URLCONF=found, LIMEN={"LIMITS": ["9/day"]}):
        for path in ("/hidden/", "/seen/"):
            answers = get(path, 3)
            assert [answer.status_code for answer in answers] == [200, 200, 429]
            # The refused one was given back where it was let in before.
            assert answers[1].headers["RateLimit"].endswith('"2/day";r=0;t=86400')
        assert get("/nowhere/")[0].headers["RateLimit"].startswith('"9/day";r=4;')


@both
def test_the_same_limit_on_a_class_and_on_its_method_counts_each(get: Any) -> None:
    limit = ratelimit("2/day")

    @method_decorator(limit, name="dispatch")
    class Classy(View):
        @method_decorator(ratelimit("2/day"))
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    with override_settings(ROOT_URLCONF=urls(classy=Classy.as_view())):
        assert [answer.status_code for answer in get("/classy/", 3)] == [200, 200, 429]


@both
def test_limits_in_a_list_of_decorators_hold_all(get: Any) -> None:
    @method_decorator([ratelimit("2/day"), ratelimit("9/hour"), never_cache], name="dispatch")
    class Classy(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    with override_settings(ROOT_URLCONF=urls(classy=Classy.as_view())):
        answers = get("/classy/", 3)
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert sorted(answers[0].headers["RateLimit"].split(", ")) == [
        '"2/day";r=1;t=86400',
        '"9/hour";r=8;t=3600',
    ]


@both
def test_an_exempt_class_is_exempt(get: Any) -> None:
    @method_decorator(exempt, name="dispatch")
    class Health(View):
        async def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    found = urls(health=Health.as_view(), own=exempt(ratelimit("2/day")(hello_async)))
    with override_settings(ROOT_URLCONF=found, LIMEN={"LIMITS": ["1/day"]}):
        assert [answer.status_code for answer in get("/health/", 3)] == [200] * 3
        # What stands on the view itself is meant.
        assert [answer.status_code for answer in get("/own/", 3)] == [200, 200, 429]


def use_other_urls(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """A middleware as projects with many hosts have it."""

    def middleware(request: HttpRequest) -> Any:
        request.urlconf = other  # type: ignore[assignment]  # a module will do too
        return get_response(request)

    return middleware


other = urls(same=ratelimit("1/day")(hello))


@both
def test_what_stands_on_the_view_that_django_finds_is_what_counts(get: Any) -> None:
    middleware = [*settings.MIDDLEWARE, f"{__name__}.use_other_urls"]
    found = urls(same=exempt(hello))
    limen = {"LIMITS": ["9/day"]}
    with override_settings(ROOT_URLCONF=found, MIDDLEWARE=middleware, LIMEN=limen):
        answers = get("/same/", 2)
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[0].headers["RateLimit"].startswith('"9/day";r=8;')


@both
def test_the_middleware_twice_asks_once(get: Any) -> None:
    with override_settings(MIDDLEWARE=[OURS, *settings.MIDDLEWARE], LIMEN={"LIMITS": ["9/day"]}):
        assert get("/plain/")[0].headers["RateLimit"].startswith('"9/day";r=8;')


@both
def test_a_view_finds_its_visit_at_the_request(get: Any) -> None:
    seen: list[Any] = []

    @ratelimit("9/day")
    def view(request: HttpRequest) -> HttpResponse:
        visit = visit_of(request)
        assert request.limen is visit  # type: ignore[attr-defined]  # visit_of is for the typed
        seen.append((visit.allowed, visit.passages[0].remaining, visit.passages[0].degraded))
        return HttpResponse()

    with override_settings(ROOT_URLCONF=urls(view=view)):
        get("/view/")
    assert seen == [(True, 8, False)]
    with pytest.raises(ConfigurationError, match="limen has not seen this request"):
        visit_of(RequestFactory().get("/"))


def test_a_file_is_sent_as_it_would_be_and_frees_its_slot() -> None:
    @ratelimit(SLOT)
    def download(request: HttpRequest) -> FileResponse:
        return FileResponse(io.BytesIO(b"content"))

    requests = RequestFactory()
    first = download(requests.get("/"))
    assert first.file_to_stream is not None  # a server may send it by itself
    assert download(requests.get("/")).status_code == 429
    assert b"".join(first) == b"content"
    first.close()
    assert download(requests.get("/")).status_code == 200


def test_a_stream_that_nobody_reads_frees_its_slot_when_it_is_closed() -> None:
    with override_settings(ROOT_URLCONF=urls(stream=views.streamed)):
        first = Client().get("/stream/")
        assert Client().get("/stream/").status_code == 429
        first.close()
        again = Client().get("/stream/")
        assert again.status_code == 200
        again.close()


def test_a_response_that_is_lost_on_its_way_out_frees_its_slot() -> None:
    # As when a request is cancelled while a middleware further out still awaits something.
    view = ratelimit(SLOT)(views.streamed_async)
    requests = AsyncRequestFactory()

    async def run() -> None:
        response = await view(requests.get("/nowhere"))
        assert response.status_code == 200
        assert (await view(requests.get("/nowhere"))).status_code == 429
        del response
        gc.collect()
        for _ in range(100):
            await asyncio.sleep(0)
        last = await view(requests.get("/nowhere"))
        assert last.status_code == 200
        assert [part async for part in last] == [b"first\n", b"last\n"]
        last.close()

    asyncio.run(run())


def test_a_stream_may_be_of_the_other_kind_than_its_server() -> None:
    async def by_asgi() -> list[int]:
        found = []
        for _ in range(2):
            response: Any = await AsyncClient().get("/stream/")
            found.append(response.status_code)
            assert b"".join(response.streaming_content) == b"first\nlast\n"
            await asyncio.sleep(0)  # on its loop, a slot is given back a moment later
        return found

    def by_wsgi() -> list[int]:
        found = []
        for _ in range(2):
            response = Client().get("/other/")
            found.append(response.status_code)
            with pytest.warns(Warning, match="must consume asynchronous iterators"):
                assert b"".join(response) == b"first\nlast\n"
        return found

    with override_settings(ROOT_URLCONF=urls(stream=views.streamed, other=views.streamed_async)):
        assert asyncio.run(by_asgi()) == [200, 200]
        assert by_wsgi() == [200, 200]


def test_functions_may_look_at_the_user_by_asgi_too() -> None:
    looks = RateLimit(
        "2/day",
        key=whom.name_of,
        cost=lambda request: 1 if request.user.is_authenticated else 2,
        exempt_when=lambda request: isinstance(request.user, AnonymousUser),
    )

    async def by_asgi() -> list[int]:
        client = AsyncClient()
        await client.get("/login/7/")
        return [(await client.get("/plain/")).status_code for _ in range(3)]

    with override_settings(LIMEN={"LIMITS": [looks]}):
        assert asyncio.run(by_asgi()) == [200, 200, 429]
    exempt = {"LIMITS": [looks], "EXEMPT_WHEN": lambda request: request.user.is_authenticated}
    with override_settings(LIMEN=exempt):
        assert asyncio.run(by_asgi()) == [200, 200, 200]


def test_the_user_is_not_read_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session in a cache blocks there; unlike a database, it raises no error."""
    on_loop: list[bool] = []

    def get_user(backend: object, user_id: int) -> Any:
        on_loop.append(asyncio._get_running_loop() is not None)
        return User(pk=user_id)

    monkeypatch.setattr(whom.ByNumber, "get_user", get_user)
    logs_in = {"exempt_when": lambda request: request.path.startswith("/login/")}
    limit = RateLimit("2/day", key="user", **logs_in)  # type: ignore[arg-type]

    async def by_asgi() -> list[int]:
        client = AsyncClient()
        await client.get("/login/7/")
        on_loop.clear()
        return [(await client.get("/plain/")).status_code for _ in range(3)]

    with override_settings(LIMEN={"LIMITS": [limit]}):
        assert asyncio.run(by_asgi()) == [200, 200, 429]
    assert on_loop
    assert not any(on_loop)


def test_a_key_that_may_be_missing_finds_the_user_by_asgi_too() -> None:
    looks = RateLimit(
        "1/day",
        key=whom.name_of,
        missing="deny",
        exempt_when=lambda request: request.path.startswith("/login/"),
    )

    async def by_asgi() -> list[int]:
        client = AsyncClient()
        await client.get("/login/7/")
        return [(await client.get("/plain/")).status_code for _ in range(2)]

    with override_settings(LIMEN={"LIMITS": [looks]}):
        assert asyncio.run(by_asgi()) == [200, 429]


@both
def test_counts_paths_that_match_no_route_together(get: Any) -> None:
    limen = {"LIMITS": [RateLimit("2/day", key=("ip", "route"))]}
    with override_settings(ROOT_URLCONF=urls(hello=hello), LIMEN=limen):
        answers = [*get("/no/"), *get("/nowhere/"), *get("/none/"), *get("/hello/")]
    assert [answer.status_code for answer in answers] == [404, 404, 429, 200]


def test_an_async_key_function_finds_the_user_by_asgi() -> None:
    async def name_of(request: Any) -> str:
        return str(request.user.get_username())

    logs_in = {"exempt_when": lambda request: request.path.startswith("/login/")}
    looks = RateLimit("1/day", key=name_of, **logs_in)  # type: ignore[arg-type]

    async def by_asgi() -> list[int]:
        client = AsyncClient()
        await client.get("/login/7/")
        return [(await client.get("/plain/")).status_code for _ in range(2)]

    with override_settings(LIMEN={"LIMITS": [looks]}):
        assert asyncio.run(by_asgi()) == [200, 429]


@both
def test_a_key_function_of_a_throttle_refuses_or_raises_as_rest_framework_does(get: Any) -> None:
    def nobody(request: Any) -> None:
        return None

    def unknown(request: Any) -> str:
        raise NotFound("no such tenant")

    statuses = []
    for function in (nobody, unknown):
        throttle = type(
            "Throttle", (RateLimitThrottle,), {"limits": "9/day", "key": staticmethod(function)}
        )

        class Throttled(views.Api):
            throttle_classes = (throttle,)

        with override_settings(ROOT_URLCONF=urls(api=Throttled.as_view()), LIMEN={}):
            statuses.append(get("/api/")[0].status_code)
    assert statuses == [403, 404]


@both
def test_all_that_is_known_of_a_request_is_asked_in_one_call(get: Any) -> None:
    seen: list[int] = []

    @ratelimit("9/hour")
    @ratelimit("8/hour", key="everyone")
    def view(request: HttpRequest) -> HttpResponse:
        seen.append(len(visit_of(request).passages))
        return HttpResponse()

    class Throttled(views.TwoThrottles):
        def get(self, request: Any) -> Response:
            seen.append(len(visit_of(request).passages))
            return Response()

    found = urls(view=view, api=Throttled.as_view())
    with override_settings(ROOT_URLCONF=found, LIMEN={"LIMITS": ["9/day"]}):
        get("/view/")
        get("/api/")
    # The throttles are known only when REST framework asks them, and then both.
    assert seen == [1, 2]


def test_a_limit_that_asks_no_user_makes_no_session_be_read() -> None:
    client = Client()
    client.get("/login/7/")
    assert "Cookie" not in client.get("/users/1/").headers.get("Vary", "")


def test_a_visit_begun_by_asgi_is_ended_there_whoever_else_asks() -> None:
    """A sync view in a thread, under a middleware on a loop: one visit, both limits given back."""

    class Classy(View):
        @method_decorator(ratelimit("1/day", deduct_when=lambda response: False))
        def get(self, request: HttpRequest) -> HttpResponse:
            visit_of(request).costs(3)
            return HttpResponse()

    limen = {"LIMITS": [RateLimit("9/day", SLOT, settle=lambda response: 3)]}
    with override_settings(ROOT_URLCONF=urls(classy=Classy.as_view()), LIMEN=limen):
        assert [answer.status_code for answer in get_async("/classy/", 3)] == [200] * 3
        answer = get_async("/classy/")[0]
        assert answer.status_code == 429
        assert answer.json()["violated-policies"] == ["9/day"]


def test_a_visit_begun_in_threads_is_ended_there_whoever_else_asks() -> None:
    """An async view by WSGI: its loop lasts no longer than it does."""

    class Classy(View):
        @method_decorator(ratelimit(SLOT, "3/day"))
        async def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    with override_settings(ROOT_URLCONF=urls(classy=Classy.as_view())):
        assert [answer.status_code for answer in get("/classy/", 4)] == [200] * 3 + [429]


@both
def test_a_leaky_bucket_delays_the_request(get: Any) -> None:
    clock = ManualClock()
    limen = {"LIMITS": ["2/minute leaky_bucket"], "LIMITER": Limiter(clock=clock)}
    with override_settings(LIMEN=limen):
        assert [answer.status_code for answer in get("/plain/", 2)] == [200, 200]
    assert clock.monotonic() == 30
