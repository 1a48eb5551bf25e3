"""The Django adapter over real sockets: `runserver` by WSGI, uvicorn by ASGI, on all stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.adapters.django.sites import Site, site
from tests.client.services import Served
from tests.gateways.app import ask
from tests.servers import HOST
from tests.waiting import wait_until

# Long enough for a machine that has much else to do.
PATIENT = {"DEADLINE": 5, "EVERYWHERE": True}
RULES = """
rules:
  - name: search-per-user
    match: {route: "/users/<int:id>/", method: GET}
    key: [ip]
    limits: 2/day
"""
KINDS = ["wsgi", "asgi"]
SITES = ["wsgi memory", "asgi memory", "asgi valkey", "wsgi service"]
Open = Callable[..., Site]


@pytest.fixture(scope="module")
def opened() -> Iterator[Open]:
    """Run a project with a setting, once for all who want the same."""
    found: dict[str, Site] = {}
    with ExitStack() as stack:

        def run(kind: str, limen: dict[str, Any], **environ: str) -> Site:
            name = f"{kind} {sorted(limen.items())} {sorted(environ.items())}"
            if name not in found:
                found[name] = stack.enter_context(site(kind, limen, **environ))
            return found[name]

        yield run


@pytest.fixture(scope="module")
def on(opened: Open, store: str, remote: Served) -> Callable[[str], Site]:
    """Return a project by a server, on a store: `"asgi valkey"`."""

    def found(name: str) -> Site:
        kind, where = name.split()
        more: dict[str, Any] = {
            "memory": {},
            "valkey": {"STORE": store, "NAMESPACE": "django"},
            "service": {"SERVICE": remote.url},
        }[where]
        return opened(kind, {**more, **PATIENT})

    return found


@pytest.fixture(params=SITES)
def everywhere(request: pytest.FixtureRequest, on: Callable[[str], Site]) -> Site:
    """A project by both servers, on one of the stores each."""
    return on(request.param)


@pytest.fixture(params=KINDS)
def simple(request: pytest.FixtureRequest, opened: Open) -> Site:
    """A project by each server, in memory."""
    return opened(request.param, PATIENT)


def statuses(client: httpx2.Client, path: str, times: int, method: str = "GET") -> list[int]:
    return [client.request(method, path).status_code for _ in range(times)]


def test_lets_in_and_refuses_with_headers_and_a_body(everywhere: Site) -> None:
    visitor = everywhere.visitor()
    first, *_, last = [visitor.get(f"/users/{id}/") for id in range(4)]
    assert first.status_code == 200
    assert first.json() == {"let": "in"}
    assert first.headers["ratelimit-policy"] == '"3/day";q=3;w=86400'
    assert first.headers["ratelimit"].startswith('"3/day";r=2;t=')
    assert "retry-after" not in first.headers
    assert last.status_code == 429
    assert last.headers["content-type"] == "application/problem+json"
    assert last.headers["cache-control"] == "no-store"
    assert last.headers["ratelimit"].startswith('"3/day";r=0;t=')
    problem = last.json()
    assert problem["status"] == 429
    assert problem["violated-policies"] == ["3/day"]
    assert problem["retry-after"] == int(last.headers["retry-after"]) > 80_000
    assert "for this address" in problem["detail"]


def test_each_address_has_a_count_of_its_own(everywhere: Site) -> None:
    assert statuses(everywhere.visitor(), "/users/1/", 4) == [200, 200, 200, 429]
    assert statuses(everywhere.visitor(), "/users/1/", 1) == [200]


def test_lets_in_again_after_the_wait(on: Callable[[str], Site]) -> None:
    visitors = {name: on(name).visitor() for name in SITES}
    waits: list[int] = []
    for visitor in visitors.values():
        answers = [visitor.get("/soon/") for _ in range(4)]
        refusal = next(answer for answer in answers if answer.status_code == 429)
        waits.append(int(refusal.headers["retry-after"]))
    time.sleep(max(waits))
    found = {name: visitor.get("/soon/").status_code for name, visitor in visitors.items()}
    assert found == dict.fromkeys(SITES, 200)


def test_several_limits_are_all_or_nothing(everywhere: Site) -> None:
    visitor = everywhere.visitor()
    answers = [visitor.get("/two/") for _ in range(8)]
    assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 5
    # What the hour refuses, the day does not count.
    assert answers[2].headers["ratelimit"].split(", ")[1].startswith('"5/day";r=2;')
    assert answers[7].json()["violated-policies"] == ["3/hour"]


def test_a_request_may_cost_more_than_one(everywhere: Site) -> None:
    visitor = everywhere.visitor()
    assert statuses(visitor, "/cost/", 3) == [200, 200, 429]
    assert visitor.get("/cost-of/?units=9").headers["ratelimit"].startswith('"10/day";r=1;')
    assert visitor.get("/cost-of/?units=2").status_code == 429
    assert visitor.get("/cost-of/").status_code == 200


def test_who_is_exempt_is_not_counted(everywhere: Site) -> None:
    visitor = everywhere.visitor()
    assert statuses(visitor, "/but-staff/", 2) == [200, 429]
    answer = visitor.get("/but-staff/", headers={"X-Staff": "yes"})
    assert answer.status_code == 200
    assert "ratelimit" not in answer.headers


def test_only_failed_logins_count(everywhere: Site) -> None:
    visitor = everywhere.visitor()
    assert statuses(visitor, "/sign-in/?password=right", 5) == [200] * 5
    assert visitor.get("/sign-in/?password=right").headers["ratelimit"].startswith('"2/day";r=2;')
    assert statuses(visitor, "/sign-in/?password=wrong", 3) == [401, 401, 429]
    assert statuses(visitor, "/sign-in/?password=right", 1) == [429]


def test_a_response_may_say_what_it_cost(everywhere: Site) -> None:
    visitor = everywhere.visitor()
    visitor.get("/settled/")
    assert visitor.get("/settled/").headers["ratelimit"].startswith('"1000/day";r=959;')


def test_a_view_may_say_what_it_cost(everywhere: Site) -> None:
    visitor = everywhere.visitor()
    visitor.get("/costly/")
    assert visitor.get("/costly/").headers["ratelimit"].startswith('"1000/day";r=992;')


def test_a_slot_is_held_until_the_stream_has_ended(everywhere: Site) -> None:
    path = "/streamed/" if everywhere.kind == "wsgi" else "/streamed-async/"
    visitor, other = everywhere.visitor(), everywhere.visitor()
    with visitor.stream("GET", f"{path}?until=seen") as answer:
        assert answer.status_code == 200
        assert answer.headers["ratelimit-policy"] == '"1 at once";q=1;qu="concurrent-requests"'
        parts = answer.iter_raw()
        assert b"first" in next(parts)
        assert visitor.get(path).status_code == 429
        assert other.get(path).status_code == 200
        other.get("/release/seen/")
        assert b"last" in b"".join(parts)
    wait_until(lambda: visitor.get(path).status_code == 200)


def test_a_slot_is_free_again_when_a_view_has_raised(everywhere: Site) -> None:
    assert statuses(everywhere.visitor(), "/fails/", 3) == [500, 500, 500]


def test_what_holds_everywhere_and_what_stands_on_a_view_is_one_decision(everywhere: Site) -> None:
    visitor = everywhere.visitor()
    answers = [visitor.get("/everywhere/limited/") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 429]
    policies = [
        policy.split(";")[0] for policy in answers[0].headers["ratelimit-policy"].split(", ")
    ]
    assert policies == ['"4/day"', '"1000/week"', '"2/day"']
    # Those whom the view refuses are not counted elsewhere either.
    assert visitor.get("/everywhere/plain/").headers["ratelimit"].startswith('"4/day";r=1;')


def test_what_holds_everywhere_also_counts_what_is_not_found(everywhere: Site) -> None:
    visitor = everywhere.visitor()
    answers = [visitor.get(f"/everywhere/nothing/{number}/") for number in range(5)]
    assert [answer.status_code for answer in answers] == [404] * 4 + [429]
    assert answers[0].headers["ratelimit"].startswith('"4/day";r=3;')


def test_an_exempt_view_is_never_refused(everywhere: Site) -> None:
    visitor = everywhere.visitor()
    assert statuses(visitor, "/everywhere/plain/", 5) == [200] * 4 + [429]
    answer = visitor.get("/everywhere/health/")
    assert answer.status_code == 200
    assert "ratelimit" not in answer.headers


def test_a_browser_is_shown_a_page(simple: Site) -> None:
    visitor = simple.visitor(accept="text/html,application/xhtml+xml,*/*;q=0.8")
    answer = [visitor.get("/users/1/") for _ in range(4)][3]
    assert answer.status_code == 429
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "Accept" in answer.headers["vary"]
    assert "come back in" in answer.text


def test_a_route_is_one_endpoint_whatever_stands_in_its_path(simple: Site) -> None:
    visitor = simple.visitor()
    assert [visitor.get(f"/users/{id}/").status_code for id in range(4)] == [200] * 3 + [429]
    # The same view under another route, or included elsewhere, is another endpoint.
    assert statuses(visitor, "/again/", 4) == [200] * 3 + [429]
    assert statuses(visitor, "/app/users/1/", 4) == [200] * 3 + [429]


def test_a_route_is_one_endpoint_in_every_language(simple: Site) -> None:
    visitor = simple.visitor()
    paths = ["/en/translated/", "/de/translated/", "/en/translated/"]
    assert [visitor.get(path).status_code for path in paths] == [200, 200, 429]


@pytest.mark.parametrize("path", ["/users/1/", "/async/users/1/"])
def test_async_views_are_limited_as_all_others(simple: Site, path: str) -> None:
    assert statuses(simple.visitor(), path, 4) == [200] * 3 + [429]


@pytest.mark.parametrize("path", ["/classy/", "/classy-async/"])
def test_classes_are_limited_as_a_whole_and_by_method(simple: Site, path: str) -> None:
    visitor = simple.visitor()
    assert statuses(visitor, path, 2, "POST") == [200, 429]
    # The refused POST is given back to the class.
    assert statuses(visitor, path, 3) == [200, 200, 429]


def test_limits_that_are_stacked_are_one_decision(simple: Site) -> None:
    first = simple.visitor()
    answers = [first.get("/stacked/") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 3 + [429]
    assert answers[0].headers["ratelimit-policy"] == '"3/hour";q=3;w=3600, "5/day";q=5;w=86400'
    # The fourth was not counted for everyone: two are left.
    assert statuses(simple.visitor(), "/stacked/", 3) == [200, 200, 429]


def logged_in(site: Site, number: int) -> httpx2.Client:
    visitor = site.visitor()
    assert visitor.get(f"/login/{number}/").status_code == 200
    return visitor


@pytest.mark.parametrize("path", ["/by-user/", "/by-user-async/", "/by-name/"])
def test_counts_by_who_is_logged_in_wherever_he_sits(simple: Site, path: str) -> None:
    number = 100 + len(path)
    here, there = logged_in(simple, number), logged_in(simple, number)
    found = [visitor.get(path).status_code for visitor in (here, there, here)]
    assert found == [200, 200, 429], simple.log()
    assert logged_in(simple, 7).get(path).status_code == 200


def test_who_is_not_logged_in_is_refused_by_a_limit_of_users(simple: Site) -> None:
    answer = simple.visitor().get("/by-user/")
    assert answer.status_code == 403
    assert answer.json()["detail"] == "This request has to say what it is counted by: user."


def test_who_is_not_logged_in_may_be_counted_by_address_instead(simple: Site) -> None:
    assert statuses(simple.visitor(), "/by-user-or-ip/", 3) == [200, 200, 429]
    assert statuses(logged_in(simple, 8), "/by-user-or-ip/", 3) == [200, 200, 429]


def test_counts_by_header(simple: Site) -> None:
    here, there = simple.visitor(x_api_key="one"), simple.visitor(x_api_key="two")
    assert statuses(here, "/by-header/", 3) == [200, 200, 429]
    assert statuses(there, "/by-header/", 1) == [200]
    tab = ("X-Api-Key", "one\t")
    assert ask(simple.visitor().base_url.port or 0, "/by-header/", tab, of=HOST).status == 429
    assert statuses(simple.visitor(), "/by-header/", 1) == [403]


def test_counts_by_route_whoever_asks(simple: Site) -> None:
    found = [simple.visitor().get(f"/by-route/{id}/").status_code for id in range(3)]
    assert found == [200, 200, 429]


def test_counts_by_a_function_of_ones_own(simple: Site) -> None:
    assert statuses(simple.visitor(x_tenant="one"), "/by-tenant/", 3) == [200, 200, 429]
    assert statuses(simple.visitor(x_tenant="two"), "/by-tenant/", 1) == [200]
    # Who has none is not limited, as the limit says, and shares no count with anybody.
    assert statuses(simple.visitor(), "/by-tenant/", 4) == [200] * 4


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/broken/", "whom.broken raised LookupError"),
        ("/nobody/", "whom.nobody returned None"),
        ("/number/", "whom.number returned int"),
    ],
)
def test_refuses_requests_whose_key_function_gives_no_key(
    simple: Site, path: str, said: str
) -> None:
    assert simple.visitor().get(path).status_code == 403
    wait_until(lambda: said in simple.log())


def test_a_404_of_a_key_function_is_the_response(simple: Site) -> None:
    assert statuses(simple.visitor(), "/hidden/", 2) == [404, 404]


def test_a_key_function_that_raises_may_be_let_pass_or_refused(simple: Site) -> None:
    assert statuses(simple.visitor(), "/broken-skip/", 3) == [200] * 3
    assert statuses(simple.visitor(), "/broken-deny/", 1) == [403]


def test_a_proxy_header_is_not_believed_unless_that_is_asked_for(simple: Site) -> None:
    visitor = simple.visitor()
    sent = ["192.0.2.1", "192.0.2.2, 192.0.2.3", '"', ",,,", "\xff" * 200]
    found = [
        visitor.get(
            "/users/1/", headers=[(b"X-Forwarded-For", value.encode("latin-1"))]
        ).status_code
        for value in sent
    ]
    assert found == [200, 200, 200, 429, 429]


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_is_away_is_never_an_error(kind: str, opened: Open, dead_store: str) -> None:
    away = opened(kind, {"STORE": dead_store, "EVERYWHERE": True})
    visitor = away.visitor()
    for path in ["/users/1/", "/everywhere/plain/", "/slow/", "/costly/", "/api/"]:
        start = time.monotonic()
        assert visitor.get(path).status_code == 200, away.log()
        assert time.monotonic() - start < 10  # redis-py alone would try for as long as it takes
    # It is counted here meanwhile.
    assert statuses(visitor, "/users/1/", 3) == [200, 200, 429]


def test_rules_of_a_file_hold_everywhere(opened: Open, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    ruled = opened("wsgi", {"RULES": str(rules)})
    visitor = ruled.visitor()
    answers = [visitor.get(f"/users/{id}/") for id in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["violated-policies"] == ["search-per-user#1"]
    assert visitor.get("/plain/").status_code == 200


def test_rules_of_a_service_hold_everywhere(opened: Open, remote: Served) -> None:
    asked = opened("asgi", {"SERVICE": remote.url, "DEADLINE": 5})
    assert statuses(asked.visitor(), "/blocked", 1) == [403]
    assert statuses(asked.visitor(), "/plain/", 1) == [200]


def test_a_stream_that_its_client_leaves_gives_its_slot_back(opened: Open) -> None:
    asgi = opened("asgi", PATIENT)
    visitor = asgi.visitor()
    with visitor.stream("GET", "/endless/") as answer:
        parts = answer.iter_raw()
        next(parts)
        assert visitor.get("/endless/").status_code == 429

    def is_free() -> bool:
        with visitor.stream("GET", "/endless/") as answer:
            return answer.status_code == 200

    wait_until(is_free, details=asgi.log)


def test_a_request_that_is_cancelled_gives_its_slot_back(opened: Open) -> None:
    asgi = opened("asgi", PATIENT)
    visitor = asgi.visitor()
    with pytest.raises(httpx2.ReadTimeout):
        visitor.get("/slow/?seconds=60", timeout=0.5)
    wait_until(lambda: visitor.get("/slow/").status_code == 200, details=asgi.log)


def test_a_middleware_that_knows_threads_alone_does_no_harm(opened: Open) -> None:
    mixed = opened("asgi", PATIENT, SYNC_NEIGHBOUR="yes")
    for path in ["/users/1/", "/async/users/1/", "/classy-async/", "/api/"]:
        assert statuses(mixed.visitor(), path, 4) == [200] * 3 + [429], path
    assert statuses(logged_in(mixed, 5), "/by-user-async/", 3) == [200, 200, 429]


@pytest.mark.parametrize("path", ["/api/", "/other-api/"])
def test_a_throttle_refuses_as_rest_framework_does(everywhere: Site, path: str) -> None:
    visitor = everywhere.visitor()
    answers = [visitor.get(path) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 3 + [429]
    assert answers[0].headers["ratelimit"].startswith('"3/day";r=2;')
    refusal = answers[3]
    wait = int(refusal.headers["retry-after"])
    assert 80_000 < wait <= 86_400
    assert refusal.json() == {
        "detail": f"Request was throttled. Expected available in {wait} seconds."
    }


def test_a_throttle_counts_over_all_views_that_it_stands_on(simple: Site) -> None:
    visitor = simple.visitor()
    found = [visitor.get(path).status_code for path in ["/api/", "/other-api/"] * 2]
    assert found == [200, 200, 200, 429]


def test_all_throttles_of_a_view_are_one_decision(simple: Site) -> None:
    visitor = simple.visitor()
    answers = [visitor.get("/two-throttles/") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    # Who was refused by the second was not counted by the first.
    assert visitor.get("/api/").headers["ratelimit"].startswith('"3/day";r=0;')


def test_a_throttle_that_decides_by_itself_is_asked_when_its_turn_comes(simple: Site) -> None:
    visitor = simple.visitor()
    assert statuses(visitor, "/posting/", 2) == [200, 200]
    assert statuses(visitor, "/posting/", 2, "POST") == [200, 429]


def test_a_throttle_counts_by_the_user_of_rest_framework(simple: Site) -> None:
    found = [simple.visitor(x_token="41").get("/user-api/").status_code for _ in range(3)]
    assert found == [200, 200, 429]
    assert statuses(simple.visitor(x_token="42"), "/user-api/", 1) == [200]
    answer = simple.visitor().get("/user-api/")
    assert answer.status_code == 403
    assert answer.json() == {"detail": "This request has to say what it is counted by: user."}


def test_throttles_take_their_limits_from_scopes(simple: Site) -> None:
    assert statuses(simple.visitor(), "/scoped/", 4) == [200] * 3 + [429]
    assert statuses(simple.visitor(), "/uploads/", 3) == [200, 200, 429]
    assert statuses(simple.visitor(), "/unscoped/", 5) == [200] * 5
