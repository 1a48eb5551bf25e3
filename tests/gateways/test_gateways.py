"""Real gateways with the files of `examples/gateways`, before a real limen.

Each lets pass what the rules allow, tells who is refused why and for how long, and believes no
client about itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateways.app import Answer
from tests.gateways.gateways import PER_ADDRESS, WRITES_PER_KEY, Gateway
from tests.gateways.places import new_address


@pytest.fixture
def client() -> str:
    """The address of a client who has not been here before."""
    return new_address()


def asked(gateway: Gateway, client: str, times: int) -> Iterator[Answer]:
    return (gateway.ask(of=client) for _ in range(times))


def is_told_when_to_come_back(answer: Answer) -> bool:
    """Whether a refusal says all that a client needs to know, as the rules have it."""
    wait = int(answer.headers["retry-after"])
    assert 50 <= wait <= 60
    assert f"q={PER_ADDRESS};w=60" in answer.headers["ratelimit-policy"]
    assert answer.headers["ratelimit"].endswith(f";r=0;t={wait}")
    return answer.status == 429


def test_lets_through_what_is_allowed_and_refuses_the_next(gateway: Gateway, client: str) -> None:
    for answer in asked(gateway, client, PER_ADDRESS):
        assert answer.status == 200
        assert answer.reached["path"] == "/"
    refused = gateway.ask(of=client)
    assert is_told_when_to_come_back(refused)
    assert "x-app" not in refused.headers
    assert gateway.ask(of=new_address()).status == 200, "another client is counted apart"


def test_who_may_pass_sees_what_is_left(gateway: Gateway, client: str) -> None:
    left = [answer.headers.get("ratelimit") for answer in asked(gateway, client, 3)]
    if not gateway.kind.shows_passing:
        assert left == [None] * 3
        return
    assert [text and text.split(";")[1] for text in left] == ["r=9", "r=8", "r=7"]
    policy = gateway.ask(of=client).headers["ratelimit-policy"]
    assert f"q={PER_ADDRESS};w=60" in policy


def test_a_refusal_is_a_problem_in_json(gateway: Gateway, client: str) -> None:
    refused = list(asked(gateway, client, PER_ADDRESS + 1))[-1]
    problem = refused.problem
    assert problem["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert ("detail" in problem) == gateway.kind.bodies
    assert refused.headers["cache-control"] == "no-store"


def test_a_browser_is_shown_a_page(gateway: Gateway, client: str) -> None:
    refused = gateway.ask("/internal/metrics", ("Accept", "text/html,*/*;q=0.8"), of=client)
    assert refused.status == gateway.kind.blocked
    is_page = refused.headers["content-type"].startswith("text/html")
    assert is_page == (gateway.kind.bodies and not gateway.kind.is_grpc)
    assert (b"<!doctype html>" in refused.body.lower()) == is_page


def test_who_is_blocked_is_not_told_to_come_back(gateway: Gateway, client: str) -> None:
    refused = gateway.ask("/internal/metrics?all=1", of=client)
    assert refused.status == gateway.kind.blocked
    assert "x-app" not in refused.headers
    assert "retry-after" not in refused.headers
    assert refused.problem["title"]


def test_a_blocked_path_has_no_other_spelling(gateway: Gateway, client: str) -> None:
    paths = ["/internal", "/internal/", "//internal/a", "/x/../internal/a", "/x/%2e%2e/internal/a"]
    # Envoy puts paths into descriptors as they are encoded, and limen leaves descriptors alone.
    if not gateway.kind.is_grpc:
        paths += ["/%69nternal/a", "/internal%2fa"]
    for path in paths:
        # Some gateways send the client to the normal path, or say that there is no such thing.
        answer = gateway.ask(path, of=client)
        assert answer.status in (gateway.kind.blocked, 307, 400), path
        assert "x-app" not in answer.headers


SPOOFED = (
    ("X-Forwarded-For", "203.0.113.{}"),
    ("X-Real-IP", "203.0.113.{}"),
    ("Forwarded", "for=203.0.113.{}"),
    ("X-Envoy-External-Address", "203.0.113.{}"),
    ("X-Forwarded-Uri", "/free/{}"),
    ("X-Forwarded-Method", "OPTIONS"),
    ("X-Forwarded-Host", "host-{}.example"),
    ("X-Original-URI", "/free/{}"),
    ("X-Original-URL", "http://free.example/{}"),
    ("X-Original-Method", "OPTIONS"),
    ("X-Limen-Token", "made-up-{}"),
    ("Authorization", "Bearer made-up-{}"),
    ("Limen-Status", "200"),
    ("RateLimit", '"free";r=1000;t=1'),
    ("Sec-Fetch-Site", "cross-site"),
    ("Origin", "https://elsewhere.example"),
    ("Content-Type", "application/x-www-form-urlencoded"),
)


def spoofed(number: int) -> list[tuple[str, str]]:
    return [(name, value.format(number)) for name, value in SPOOFED]


def test_a_client_cannot_say_who_it_is(gateway: Gateway, client: str) -> None:
    for number in range(PER_ADDRESS):
        assert gateway.ask("/", *spoofed(number), of=client).status == 200
    assert is_told_when_to_come_back(gateway.ask("/", *spoofed(99), of=client))
    assert gateway.ask("/", of=client).status == 429, "with or without these headers"


def test_a_client_cannot_say_that_it_asks_for_something_else(gateway: Gateway, client: str) -> None:
    answer = gateway.ask("/internal/metrics", *spoofed(1), of=client)
    assert answer.status == gateway.kind.blocked


QUERIES = ("cost=0", "deny_status=200", "cost=0&deny_status=404", "cost=50", "deny_status=403")


def test_a_clients_query_is_not_an_option(gateway: Gateway, client: str) -> None:
    for number in range(PER_ADDRESS):
        path = f"/?{QUERIES[number % 4]}"
        answer = gateway.ask(path, of=client)
        assert (answer.status, answer.reached["path"]) == (200, path)
    for query in QUERIES:
        assert is_told_when_to_come_back(gateway.ask(f"/?{query}", of=client))


def test_a_body_reaches_the_application_untouched(gateway: Gateway, client: str) -> None:
    for size in (1, 1_000, 100_000):
        body = bytes(number * size % 251 for number in range(size))
        answer = gateway.ask("/orders?of=today", of=client, method="POST", body=body)
        assert answer.status == 200
        assert answer.reached["method"] == "POST"
        assert answer.reached["path"] == "/orders?of=today"
        assert bytes.fromhex(answer.reached["body"]) == body


def test_every_method_counts_and_passes(gateway: Gateway, client: str) -> None:
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
    for method in methods:
        answer = gateway.ask(of=client, method=method)
        assert answer.status == 200
        assert method == "HEAD" or answer.reached["method"] == method
    left = PER_ADDRESS - len(methods)
    answers = [answer.status for answer in asked(gateway, client, left + 1)]
    assert answers == [200] * left + [429]
    assert is_told_when_to_come_back(gateway.ask(of=client, method="HEAD"))


def test_what_the_application_says_itself_is_left_alone(gateway: Gateway, client: str) -> None:
    for status in (401, 403, 404, 429, 500, 502, 503, 504):
        answer = gateway.ask("/", ("X-Answer-With", str(status)), of=client)
        assert answer.status == status
        assert answer.headers["content-type"] == "application/json"
        assert answer.reached["path"] == "/"


def test_the_token_of_the_gateway_does_not_reach_the_application(
    gateway: Gateway, client: str
) -> None:
    headers = gateway.ask(of=client).reached["headers"]
    assert "x-limen-token" not in headers
    assert "authorization" not in headers


def test_a_key_is_counted_wherever_it_is_used(gateway: Gateway) -> None:
    key = ("X-Api-Key", f"key-of-{gateway}")
    writes = [
        gateway.ask("/orders", key, of=new_address(), method="POST") for _ in range(WRITES_PER_KEY)
    ]
    assert [answer.status for answer in writes] == [200] * WRITES_PER_KEY
    refused = gateway.ask("/orders", key, of=new_address(), method="DELETE")
    assert refused.status == 429
    assert "writes-per-key" in refused.headers["ratelimit"]
    assert gateway.ask("/orders", key, of=new_address()).status == 200, "reading is free"
    other = ("X-Api-Key", f"another-of-{gateway}")
    assert gateway.ask("/orders", other, of=new_address(), method="POST").status == 200
