"""Limits of views, classes of views and blueprints, over real sockets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import flask
import pytest
from flask import Blueprint, Flask
from flask.views import MethodView, View

from limen import ConfigurationError, InvalidLimit, Limiter
from limen.adapters import RateLimit
from limen.adapters.flask import RateLimits, Terms
from limen.testing import ManualClock
from tests.adapters.flask.apps import limited, serving
from tests.adapters.wsgi.serving import statuses


def test_a_view_has_limits_of_its_own() -> None:
    clock = ManualClock()
    app, limits = limited(source=Limiter(clock=clock))

    @app.get("/search")
    @limits.limit("1/minute", "10/day")
    def search() -> str:
        return "found"

    with serving(app) as client:
        first, second = client.get("/search"), client.get("/search")
        assert (first.status_code, second.status_code) == (200, 429)
        assert first.headers["ratelimit-policy"] == '"1/minute";q=1;w=60, "10/day";q=10;w=86400'
        assert second.headers.get_list("retry-after") == ["60"]
        assert "ratelimit" not in client.get("/").headers
        clock.advance(60)
        assert statuses(client, 1, "/search") == [200]


def test_limits_of_the_application_and_of_a_view_are_told_together_and_charged_together() -> None:
    asked: list[int] = []
    limiter = Limiter(observers=[lambda decision: asked.append(len(decision.parts))])
    app, limits = limited("3/hour", source=limiter)

    @app.get("/search")
    @limits.limit("1/hour")
    def search() -> str:
        return "found"

    with serving(app) as client:
        first = client.get("/search")
        assert first.headers["ratelimit-policy"] == '"3/hour";q=3;w=3600, "1/hour";q=1;w=3600'
        # In one call.
        assert asked == [2]
        assert statuses(client, 5, "/search") == [429] * 5
        # Those five were refused by the view, and so charged by nobody.
        assert statuses(client, 3) == [200, 200, 429]


def test_routes_are_known_by_their_template() -> None:
    app, limits = limited()

    @app.get("/users/<int:id>")
    @limits.limit("2/hour")
    def user(id: int) -> str:
        return str(id)

    @app.get("/users/me")
    @limits.limit("2/hour")
    def me() -> str:
        return "me"

    with serving(app) as client:
        found = [client.get(f"/users/{number}").status_code for number in range(3)]
        assert found == [200, 200, 429]
        assert statuses(client, 1, "/users/me") == [200]


def test_methods_of_one_path_count_apart() -> None:
    app, limits = limited()
    app.get("/things")(limits.limit("1/hour")(lambda: "read"))
    app.add_url_rule(
        "/things", "write", limits.limit("1/hour")(lambda: "written"), methods=["POST"]
    )
    with serving(app) as client:
        assert [client.get("/things").status_code for _ in range(2)] == [200, 429]
        assert [client.post("/things").status_code for _ in range(2)] == [200, 429]


def test_hosts_of_one_path_count_apart() -> None:
    app = Flask(__name__, subdomain_matching=True)
    app.config["SERVER_NAME"] = "shop.example"
    limits = RateLimits(Limiter(), app=app)
    for name in ("api", "www"):
        view = limits.limit("1/hour")(lambda: "")
        app.add_url_rule("/", name, view, subdomain=name)
    client = app.test_client()
    for name in ("api", "www"):
        found = [client.get("/", base_url=f"http://{name}.shop.example") for _ in range(2)]
        assert [answer.status_code for answer in found] == [200, 429]


def test_a_view_that_has_several_urls_counts_once() -> None:
    app, limits = limited()

    @app.get("/signin")
    @app.get("/login")
    @app.post("/login")
    @limits.limit("2/hour")
    def login() -> str:
        return "in"

    with serving(app) as client:
        assert statuses(client, 1, "/login") + statuses(client, 1, "/signin") == [200, 200]
        assert client.post("/login").status_code == 429


def test_one_scope_is_one_count() -> None:
    app, limits = limited()
    shared = limits.limit("2/hour", scope="reports")
    app.add_url_rule("/a", "a", shared(lambda: "a"))
    app.add_url_rule("/b", "b", shared(lambda: "b"))
    with serving(app) as client:
        found = [client.get(path).status_code for path in ("/a", "/b", "/a", "/b")]
        assert found == [200, 200, 429, 429]


def test_several_decorators_all_hold() -> None:
    app, limits = limited()

    @app.get("/search")
    @limits.limit("9/hour")
    @limits.limit("2/hour")
    def search() -> str:
        return "found"

    with serving(app) as client:
        assert statuses(client, 3, "/search") == [200, 200, 429]


def test_a_decorator_may_stand_above_the_route() -> None:
    app, limits = limited()

    @limits.limit("1/hour")
    @app.get("/search")
    def search() -> str:
        return "found"

    with serving(app) as client:
        assert statuses(client, 2, "/search") == [200, 429]


def test_a_decorator_that_hides_the_view_hides_no_limit() -> None:
    app, limits = limited("9/hour")

    def hiding(view: Callable[[], str]) -> Callable[[], str]:
        def hidden() -> str:
            return view()

        return hidden

    @limits.limit("5/hour")
    @limits.limit("2/hour")
    def search() -> str:
        return "found"

    app.add_url_rule("/search", "search", hiding(search))
    with serving(app) as client:
        answers = [client.get("/search") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
        # Asked about later, and told and charged together all the same.
        assert answers[0].headers["ratelimit-policy"] == (
            '"9/hour";q=9;w=3600, "5/hour";q=5;w=3600, "2/hour";q=2;w=3600'
        )
        assert client.get("/").headers["ratelimit"].startswith('"9/hour";r=6;')


def test_any_other_function_counts_each_of_its_calls() -> None:
    app, limits = limited()

    @limits.limit("3/hour")
    def send_message() -> None: ...

    @app.get("/one")
    def one() -> str:
        send_message()
        return "sent"

    @app.get("/two")
    def two() -> str:
        send_message()
        send_message()
        return "sent"

    with serving(app) as client:
        assert [client.get(path).status_code for path in ("/two", "/two", "/one")] == [
            200,
            429,  # for its second message: the first one is given back
            200,
        ]
        told = client.get("/one").headers["ratelimit-policy"]
        assert told.count("3/hour") == 1
    send_message()  # outside of a request, nobody is limited


def test_one_count_is_told_once_however_often_it_was_asked() -> None:
    app, limits = limited()

    @limits.limit("5/hour")
    def send_message() -> None: ...

    @app.get("/three")
    def three() -> str:
        for _ in range(3):
            send_message()
        return "sent"

    with serving(app) as client:
        answer = client.get("/three")
        assert answer.headers["ratelimit"].startswith('"5/hour";r=2;')
        assert "," not in answer.headers["ratelimit"]


def test_async_views_are_limited_too() -> None:
    app, limits = limited()

    @app.get("/slow")
    @limits.limit("1/hour")
    async def slow() -> str:
        flask.g.limen.costs(1)
        return "done"

    assert inspect.iscoroutinefunction(slow)
    with serving(app) as client:
        assert client.get("/slow").text == "done"
        assert statuses(client, 1, "/slow") == [429]


class TestClasses:
    def test_decorators_of_a_class_limit_all_of_its_methods_together(self) -> None:
        app, limits = limited()

        class Things(MethodView):
            decorators = [limits.limit("2/hour")]  # noqa: RUF012  # as Flask's documents have it

            def get(self) -> str:
                return "read"

            def post(self) -> str:
                return "written"

        app.add_url_rule("/things", view_func=Things.as_view("things"))
        with serving(app) as client:
            assert client.get("/things").status_code == 200
            assert client.post("/things").status_code == 200
            assert client.get("/things").status_code == 429

    def test_a_class_can_be_limited_by_itself(self) -> None:
        app, limits = limited()

        @limits.limit("1/hour")
        class Thing(View):
            def dispatch_request(self) -> str:
                return "thing"

        app.add_url_rule("/thing", view_func=Thing.as_view("thing"))
        with serving(app) as client:
            assert statuses(client, 2, "/thing") == [200, 429]

    def test_methods_count_apart_and_beside_their_class(self) -> None:
        app, limits = limited()

        class Things(MethodView):
            decorators = [limits.limit("4/hour")]  # noqa: RUF012  # as Flask's documents have it

            @limits.limit("1/hour")
            def get(self) -> str:
                return "read"

            @limits.limit("2/hour")
            async def post(self) -> str:
                return "written"

        app.add_url_rule("/things", view_func=Things.as_view("things"))
        with serving(app) as client:
            read = client.get("/things")
            assert read.headers["ratelimit-policy"] == '"4/hour";q=4;w=3600, "1/hour";q=1;w=3600'
            assert [client.head("/things").status_code, client.get("/things").status_code] == [
                429,
                429,
            ]
            assert [client.post("/things").status_code for _ in range(3)] == [200, 200, 429]

    def test_one_method_of_a_class_can_be_exempt(self) -> None:
        app, limits = limited("1/hour")

        class Things(MethodView):
            @limits.exempt
            def get(self) -> str:
                return "read"

            def post(self) -> str:
                return "written"

        app.add_url_rule("/things", view_func=Things.as_view("things"))
        with serving(app) as client:
            assert statuses(client, 3, "/things") == [200] * 3
            assert [client.post("/things").status_code for _ in range(2)] == [200, 429]


class TestBlueprints:
    def test_all_routes_of_one_are_limited_each_apart(self) -> None:
        app, limits = limited("100/hour")
        shop = Blueprint("shop", __name__, url_prefix="/shop")
        deep = Blueprint("deep", __name__, url_prefix="/deep")
        limits.limit("3/hour")(shop)
        limits.limit("2/hour")(deep)

        @shop.get("/<int:id>")
        def thing(id: int) -> str:
            return str(id)

        @deep.get("/<int:id>")
        def deep_thing(id: int) -> str:
            return str(id)

        shop.register_blueprint(deep)
        app.register_blueprint(shop)
        app.register_blueprint(shop, url_prefix="/again", name="again")
        with serving(app) as client:
            for prefix in ("/shop", "/again"):
                answers = [client.get(f"{prefix}/{number}") for number in range(4)]
                assert [answer.status_code for answer in answers] == [200] * 3 + [429]
                answers = [client.get(f"{prefix}/deep/{number}") for number in range(3)]
                assert [answer.status_code for answer in answers] == [200] * 2 + [429]
                assert answers[0].headers["ratelimit-policy"] == (
                    '"100/hour";q=100;w=3600, "3/hour";q=3;w=3600, "2/hour";q=2;w=3600'
                )
            assert client.get("/").headers["ratelimit-policy"] == '"100/hour";q=100;w=3600'

    def test_limits_of_a_view_hold_beside_those_of_its_blueprint(self) -> None:
        app, limits = limited()
        shop = Blueprint("shop", __name__)
        limits.limit("9/hour")(shop)
        shop.get("/strict")(limits.limit("2/hour")(lambda: ""))
        app.register_blueprint(shop)
        with serving(app) as client:
            assert statuses(client, 3, "/strict") == [200, 200, 429]

    def test_each_extension_asks_about_its_own_limits_of_a_shared_blueprint(self) -> None:
        shop = Blueprint("shop", __name__)
        shop.add_url_rule("/item", view_func=lambda: "item", endpoint="item")
        (first, limits), (second, other) = limited(), limited()
        limits.limit("1/hour")(shop)
        other.limit("2/hour")(shop)
        for app, allowed in ((first, 1), (second, 2)):
            app.register_blueprint(shop)
            with serving(app) as client:
                assert statuses(client, 3, "/item").count(200) == allowed

    def test_one_that_is_exempt_has_its_own_limits_alone(self) -> None:
        app, limits = limited("1/hour", per_route=["1/day"])
        outer, inner = Blueprint("outer", __name__), Blueprint("inner", __name__)
        limits.limit("2/hour")(outer)
        limits.exempt(limits.limit("3/hour")(inner))
        inner.add_url_rule("/inner", "view", lambda: "inner")
        inner.add_url_rule("/own", "own", limits.limit("1/minute")(lambda: "own"))
        outer.add_url_rule("/outer", "view", lambda: "outer")
        outer.register_blueprint(inner)
        app.register_blueprint(outer)
        with serving(app) as client:
            policies = {
                path: client.get(path).headers["ratelimit-policy"]
                for path in ("/inner", "/own", "/outer")
            }
            assert policies == {
                "/inner": '"3/hour";q=3;w=3600',
                "/own": '"3/hour";q=3;w=3600, "1/minute";q=1;w=60',
                "/outer": '"1/hour";q=1;w=3600, "2/hour";q=2;w=3600',
            }


def test_an_exempt_view_has_its_own_limits_alone() -> None:
    app, limits = limited("1/hour", per_route=["1/day"])

    @app.get("/healthz")
    @limits.exempt
    def healthz() -> str:
        return "ok"

    @app.get("/strict")
    @limits.exempt
    @limits.limit("2/hour")
    def strict() -> str:
        return "ok"

    with serving(app) as client:
        assert statuses(client, 3, "/healthz") == [200] * 3
        assert "ratelimit" not in client.get("/healthz").headers
        assert statuses(client, 3, "/strict") == [200, 200, 429]
        assert statuses(client, 2) == [200, 429]


def test_defaults_hold_for_each_route_that_has_no_limits_of_its_own() -> None:
    app, limits = limited("100/hour", per_route=["2/hour"])
    app.add_url_rule("/own", "own", limits.limit("3/hour")(lambda: "own"))
    app.add_url_rule("/other/<name>", "other", lambda name: name)
    shop = Blueprint("shop", __name__)
    limits.limit("4/hour")(shop)
    shop.add_url_rule("/shop", "shop", lambda: "shop")
    app.register_blueprint(shop)
    with serving(app) as client:
        assert statuses(client, 3) == [200, 200, 429]
        found = [client.get(f"/other/{name}").status_code for name in "abc"]
        assert found == [200, 200, 429]
        assert statuses(client, 4, "/own") == [200] * 3 + [429]
        assert statuses(client, 5, "/shop") == [200] * 4 + [429]
        assert client.get("/nowhere").headers["ratelimit-policy"] == '"100/hour";q=100;w=3600'


class TestInstalling:
    def test_limits_that_are_not_installed_are_an_error(self) -> None:
        limits, app = RateLimits(Limiter()), Flask(__name__)
        app.testing = True
        app.add_url_rule("/", "home", limits.limit("1/hour")(lambda: ""))
        with pytest.raises(ConfigurationError, match=r"call init_app\(app\)"):
            app.test_client().get("/")

    def test_twice_in_one_application_is_an_error(self) -> None:
        app, limits = limited("1/hour")
        with pytest.raises(ConfigurationError, match=r"installed in .* already"):
            limits.init_app(app)

    def test_one_extension_serves_several_applications(self) -> None:
        limits = RateLimits(per_route=["2/hour"])
        shop = Blueprint("shop", __name__)

        @shop.get("/shop")
        @limits.limit("1/hour")
        def view() -> str:
            return "shop"

        apps = [Flask(f"app{number}") for number in range(2)]
        for app in apps:
            app.register_blueprint(shop)
            limits.init_app(app)
            app.add_url_rule("/", "home", lambda: "home")
        with serving(apps[0]) as one, serving(apps[1]) as other:
            for client in (one, other):  # each has a limiter of its own, from its configuration
                assert statuses(client, 2, "/shop") == [200, 429]
                assert statuses(client, 3) == [200, 200, 429]

    def test_limits_of_another_extension_are_an_error_and_never_forgotten(self) -> None:
        app, _ = limited()
        other = RateLimits(Limiter())

        @other.limit("1/hour")
        class Thing(View):
            def dispatch_request(self) -> str:
                return "thing"

        app.add_url_rule("/view", "view", other.limit("1/hour")(lambda: ""))
        app.add_url_rule("/class", view_func=Thing.as_view("class"))
        app.testing = True
        for path in ("/view", "/class"):
            with pytest.raises(ConfigurationError, match="not installed in this application"):
                app.test_client().get(path)

    def test_what_cannot_be_asked_is_said_at_once_whichever_comes_first(self) -> None:
        limits = RateLimits(Limiter())
        with pytest.raises(InvalidLimit):
            limits.limit("1/parsec")
        limits.limit()
        with pytest.raises(ConfigurationError, match="a limiter knows no rules"):
            limits.init_app(Flask(__name__))
        _, limits = limited()
        with pytest.raises(ConfigurationError, match="a limiter knows no rules"):
            limits.limit()

        async def key(request: Any) -> str:
            return "a"

        with pytest.raises(ConfigurationError, match="runs in threads and cannot await"):
            limits.limit("1/hour", key=key)
        with pytest.raises(ConfigurationError, match="says all by itself"):
            limits.limit(RateLimit("1/hour"), key="user")

    def test_a_view_can_be_called_by_a_test_itself(self) -> None:
        app, limits = limited()

        @limits.limit("1/hour")
        def view() -> str:
            return "called"

        with app.test_request_context("/"):
            assert [view(), view()] == ["called", "called"]

    def test_several_requests_in_one_context_of_the_application_are_told_apart(self) -> None:
        app, limits = limited("3/hour")
        app.add_url_rule("/free", "free", limits.exempt(lambda: ""))
        with app.app_context():
            client = app.test_client()
            assert "ratelimit" in client.get("/").headers
            assert "ratelimit" not in client.get("/free").headers
            assert client.get("/").headers["ratelimit"].startswith('"3/hour";r=1;')


def test_a_decorator_takes_all_that_a_rate_limit_takes() -> None:
    taken = inspect.signature(RateLimit).parameters
    hints = get_type_hints(Terms)
    assert list(hints) == [name for name in taken if name != "limits"]
    assert hints == {name: get_type_hints(RateLimit.__init__)[name] for name in hints}
