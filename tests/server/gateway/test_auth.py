"""`/v1/auth`: statuses, headers and bodies; who may ask; and what happens without the store."""

from __future__ import annotations

import base64
import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limen.rules import parse_text
from limen.testing import ManualClock
from tests.server.admin.driving import ADMIN, CHECK, Answer
from tests.server.asking import Asker, asking
from tests.server.gateway.test_forwarded import HEADERS, Headers, raw
from tests.servers import HOST, binaries, process

RULES = """
rules:
  - {name: search, match: {path: /search}, key: [user], limits: [2/hour, 100/day]}
  - {name: watched, match: {path: /search}, key: [user], limits: 1/day, mode: shadow}
  - {name: per-ip, match: {path: /by-ip}, key: [ip], limits: 1/hour}
  - {name: posts, match: {path: /posts, method: POST, host: shop.example}, key: [ip], limits: 1/h}
  - name: plans
    match: {path: /plan}
    key: [user]
    limits: 1/hour
    tiers: {by: plan, limits: {pro: 5/hour}}
  - {name: no-robots, match: {path: /blocked}, mode: block}
  - {name: tenants, match: {path: /tenant}, key: [tenant], missing: deny, limits: 5/hour}
  - {name: at-once, match: {path: /export}, key: [user], concurrency: {slots: 1, lease: 60s}}
  - {name: exports, match: {path: /export}, key: [user], limits: 7/hour}
  - {name: tokens, match: {path: /llm}, key: [user], cost: tokens, limits: 1000/hour}
  - {name: any-path, match: {path: /odd*}, key: [path], limits: 1/hour}
  - {name: closed, match: {path: /closed}, key: [user], limits: 5/hour, on_error: closed}
  - {name: open, match: {path: /open}, key: [user], limits: 1/hour, on_error: open}
  - {name: local, match: {path: /local}, key: [user], limits: 1/hour, on_error: local}
exemptions:
  - {name: our-own, match: {user: staff}}
"""
FOR_A_TIME = """
rules:
  - {name: sale, match: {path: /sale}, mode: block, ends: 1970-01-01T00:10:00Z}
"""
FLAGS: dict[str, Any] = {
    "gateway.attributes": ["user=X-User", "plan=X-Jwt:plan", "tokens=X-Tokens"],
    "gateway.trusted_proxies": ["127.0.0.0/8", "10.0.0.0/8"],
}


def ask(
    service: Asker, path: str, user: str = "", method: str = "GET", by: str = "GET", **more: Any
) -> Answer:
    """Ask as a gateway does that forwards method and path in headers."""
    headers = raw(
        x_forwarded_method=method,
        x_forwarded_uri=path,
        x_forwarded_host="shop.example",
        x_forwarded_for="203.0.113.9",
        x_user=user,
        authorization="Basic ZW5kOmNsaWVudA==",
        origin="https://evil.example",
    )
    given = dict([*headers, *more.pop("headers", [])])
    return service.ask(by, "/v1/auth", headers=list(given.items()), **more)


def follow(
    service: Asker,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Sequence[tuple[bytes, bytes]] = (),
    **more: Any,
) -> Answer:
    """Ask as Envoy does, whose questions have the path of the client behind ours."""
    given = [*raw(x_forwarded_for="203.0.113.9"), *headers]
    return service.ask(method, path, body, headers=given, **more)


@pytest.fixture(scope="module", params=["memory", "valkey"])
def service(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Asker]:
    """Each test has users of its own."""
    url = "memory://"
    if request.param == "valkey":
        url = f"redis://{HOST}:{request.getfixturevalue('module_valkey').port}"
    # Long enough for a machine that has much else to do.
    flags = {**FLAGS, "store.url": url, "store.deadline": 5.0, "gateway.deadline": 5.0}
    with asking(tmp_path_factory.mktemp(request.param), RULES, flags) as [started]:
        yield started


# The answer


def test_who_is_allowed_is_told_where_he_stands(service: Asker) -> None:
    answer = ask(service, "/search?q=1", "stands", headers=[(b"x-request-id", b"mine-7")])
    assert (answer.status, answer.body) == (200, b"")
    assert re.sub(r"t=\d+", "t=", json.dumps(answer.headers)) == json.dumps(
        {
            "limen-status": "200",
            "cache-control": "no-store",
            "ratelimit-policy": '"search#1";q=2;w=3600, "search#2";q=100;w=86400',
            "ratelimit": '"search#1";r=1;t=, "search#2";r=99;t=',
            "x-request-id": "mine-7",
        }
    )


def test_who_is_refused_is_told_when_to_come_back(service: Asker) -> None:
    for _ in range(2):
        assert ask(service, "/search", "refused").status == 200
    answer = ask(service, "/search", "refused")
    assert (answer.status, answer.headers["limen-status"]) == (429, "429")
    assert answer.headers["ratelimit"].startswith('"search#1";r=0;t=')
    assert answer.headers["ratelimit-policy"] == '"search#1";q=2;w=3600, "search#2";q=100;w=86400'
    assert 3_000 < int(answer.headers["retry-after"]) <= 3_600
    assert answer.headers["cache-control"] == "no-store"
    assert answer.detail.startswith("2 requests an hour are allowed for this user; come back in ")
    assert answer.json["violated-policies"] == ["search#1"]
    assert "refused" not in answer.body.decode()  # nobody's name
    # Nothing was charged, and who has a name of his own has a quota of his own.
    assert service.usage(path="/search", user="refused").parts[1].remaining == 98
    assert ask(service, "/search", "another").status == 200


@pytest.mark.parametrize(
    ("path", "status", "rule"), [("/blocked", 403, "no-robots"), ("/tenant", 403, "tenants")]
)
def test_rules_that_refuse_without_counting(
    service: Asker, path: str, status: int, rule: str
) -> None:
    answer = ask(service, path)
    assert (answer.status, answer.headers["limen-status"]) == (status, str(status))
    assert answer.json["violated-policies"] == [rule]
    assert "retry-after" not in answer.headers
    assert answer.detail


def test_nothing_is_said_where_nothing_is_counted(service: Asker) -> None:
    for path, user in (("/free", "x"), ("/search", ""), ("/search", "staff")):
        answer = ask(service, path, user)
        assert (answer.status, answer.headers["limen-status"]) == (200, "200")
        assert not [name for name in answer.headers if "ratelimit" in name]


def test_the_status_of_a_refusal_can_be_chosen(service: Asker) -> None:
    ask(service, "/plan", "chosen")
    for status, true, path in ((403, 429, "/plan"), (599, 403, "/blocked"), (401, 403, "/tenant")):
        query = b"deny_status=%d" % status
        answer = ask(service, path, "chosen", query=query)
        assert (answer.status, answer.headers["limen-status"]) == (status, str(true))
        assert answer.json["status"] == status
        assert answer.detail
    answer = ask(service, "/plan", "unchosen", query=b"deny_status=403")
    assert (answer.status, answer.headers["limen-status"]) == (200, "200")
    for query in (b"deny_status=200", b"cost=-1", b"q=1"):
        answer = ask(service, "/plan", "chosen", query=query)
        assert (answer.status, answer.detail[:20]) == (400, "the query takes cost")


def test_a_request_that_cannot_be_counted_is_refused_with_the_chosen_status(service: Asker) -> None:
    repeated = [(b"x-user", b"a, b")]
    for query, status in ((b"", 400), (b"deny_status=403", 403)):
        answer = ask(service, "/plan", headers=repeated, query=query)
        assert (answer.status, answer.headers["limen-status"]) == (status, "400")
        assert answer.json["status"] == status
        assert answer.detail.startswith("X-User header is repeated or contains a comma")
        wrong = [(b"x-tokens", b"many")]
        answer = ask(service, "/llm", "tokens", headers=wrong, query=query)
        assert (answer.status, answer.headers["limen-status"]) == (status if query else 422, "422")
    # A mistake in the question itself has its own status: the gateway is set up wrongly.
    token = raw(x_limen_token="wrong")
    assert ask(service, "/plan", headers=token, query=b"deny_status=403").status == 401


def test_the_cost_can_be_chosen_by_the_gateway_alone(service: Asker) -> None:
    answer = ask(service, "/search", "costly", query=b"cost=2")
    assert '"search#1";r=0' in answer.headers["ratelimit"]
    assert ask(service, "/search", "costly").status == 429
    assert ask(service, "/search", "costly", query=b"cost=0").status == 200
    # Caddy passes the query of its client on.
    assert ask(service, "/search?q=1&cost=0", "costly", query=b"q=1&cost=0").status == 429
    assert ask(service, "/search?cost=0", "costly", query=b"cost=0").status == 400
    for name in (b"x-original-uri", b"x-original-url"):
        more = [(name, b"/search?hidden")]
        answer = ask(service, "/search?cost=0", "costly", query=b"cost=0", headers=more)
        assert answer.status == 400
    # And Envoy's questions have no other.
    headers = raw(x_user="costly")
    answer = follow(
        service, "GET", "/v1/auth/search", headers=headers, query=b"cost=0&deny_status=599"
    )
    assert answer.status == 429


def test_every_method_may_be_used_and_bodies_do_not_matter(service: Asker) -> None:
    for by in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PURGE"):
        assert ask(service, "/free", by=by, body=b"{not json").status == 200
    longest = service.service.settings.http.max_body
    answer = ask(service, "/search", "long body", by="POST", body=b"x" * (longest + 1))
    assert answer.status == 413
    assert service.usage(path="/search", user="long body").remaining == 2


def test_method_host_and_address_are_attributes(service: Asker) -> None:
    mine = [(b"x-forwarded-for", b"198.51.100.1")]
    assert ask(service, "/posts", method="post", headers=mine).status == 200
    assert ask(service, "/posts", method="GET", headers=mine).status == 200
    other = [*mine, (b"x-forwarded-host", b"other.example")]
    assert ask(service, "/posts", method="POST", headers=other).status == 200
    assert ask(service, "/./posts//", method="POST", headers=mine).status == 429
    elsewhere = [(b"x-forwarded-for", b"198.51.100.2")]
    assert ask(service, "/posts", method="POST", headers=elsewhere).status == 200


def test_a_claim_chooses_the_tier(service: Asker) -> None:
    pro = [(b"x-jwt", base64.urlsafe_b64encode(b'{"plan": "pro"}'))]
    answers = [ask(service, "/plan", "tiered", headers=pro).status for _ in range(6)]
    assert answers == [200] * 5 + [429]
    answer = ask(service, "/plan", "tiered", headers=[(b"x-jwt", b"garbage")])
    assert (answer.status, "x-jwt" in answer.detail) == (400, True)


def test_a_cost_that_is_none_is_refused_in_one_sentence(service: Asker) -> None:
    assert ask(service, "/llm", "tokens", headers=[(b"x-tokens", b"990")]).status == 200
    assert ask(service, "/llm", "tokens", headers=[(b"x-tokens", b"11")]).status == 429
    for wrong in (b"many", b"-1", b"\xff", b"\xed\xa0\x80"):
        answer = ask(service, "/llm", "tokens", headers=[(b"x-tokens", wrong)])
        assert (answer.status, "'tokens'" in answer.detail) == (422, True)


def test_a_rule_that_needs_a_slot_is_left_out(service: Asker) -> None:
    for _ in range(3):
        answer = ask(service, "/export", "slots")
        assert answer.status == 200
        assert answer.headers["ratelimit-policy"] == '"exports#1";q=7;w=3600'
    assert service.acquire(attributes={"path": "/export", "user": "slots"}).slot is not None


def test_it_counts_with_the_other_ways_to_ask(service: Asker) -> None:
    counts = service.service.watch
    before = counts.allowed, counts.refused, counts.refused_by.get("search", 0)
    service.check({"path": "/search", "user": "shared"})
    statuses = [ask(service, "/search", "shared").status for _ in range(2)]
    assert statuses == [200, 429]
    after = counts.allowed, counts.refused, counts.refused_by["search"]
    assert after == (before[0] + 2, before[1] + 1, before[2] + 1)


def test_what_is_not_utf_8_is_counted_apart(service: Asker) -> None:
    for odd in (
        b"/odd\xff",
        b"/odd%FE",
        b"/odd\xc3\xa9",
        b"/odd" + b"x" * 9_000,
        b"/odd\xed\xa0\x80",
    ):
        headers = [(b"x-forwarded-uri", odd)]
        assert [ask(service, "", headers=headers).status for _ in range(2)] == [200, 429]
    same = [(b"x-forwarded-uri", b"/odd%c3\xa9")]
    assert ask(service, "", headers=same).status == 429
    for user in (b"\xff", b"\xfe", b"\xff\xff", "é".encode(), "é".encode("latin-1")):
        headers = [(b"x-user", user)]
        statuses = [ask(service, "/plan", headers=headers).status for _ in range(2)]
        assert statuses == [200, 429]


# The path of the client itself


def test_a_path_may_follow(service: Asker) -> None:
    headers = raw(x_user="follows", host="shop.example")
    for method, path in (("GET", "/v1/auth/search"), ("POST", "/v1/auth//x/..//search/")):
        assert follow(service, method, path, headers=headers).status == 200
    raw_path = b"/v1/auth/s%65arch"
    answer = follow(service, "GET", "/v1/auth/search", headers=headers, raw_path=raw_path)
    assert (answer.status, answer.headers["limen-status"]) == (429, "429")
    headers += raw(x_forwarded_uri="/free", x_forwarded_method="GET", x_original_url="/free")
    assert follow(service, "GET", "/v1/auth/search", headers=headers).status == 429
    assert follow(service, "GET", "/v1/auth/", headers=headers).status == 200


def test_a_path_that_climbs_leads_nowhere_else(service: Asker) -> None:
    """What follows is only ever a path to count by, and never one of ours."""
    for path in ("/v1/auth/../check", "/v1/auth/../../admin/v1/tokens", "/v1/auth/%2e%2e/check"):
        answer = follow(service, "POST", path, b"{}")
        assert (answer.status, answer.body, answer.headers["limen-status"]) == (200, b"", "200")


def test_what_only_looks_like_a_path_that_follows(service: Asker) -> None:
    for raw_path in (b"/v1%2fauth/search", b"/v1/auth%2Fsearch", b"/v1/%61uth/search"):
        answer = follow(service, "GET", "/v1/auth/search", raw_path=raw_path)
        assert answer.status == 404
        assert answer.detail
    for path in ("/v1/authx", "/v1/aut", "/V1/auth", "//v1/auth"):
        assert follow(service, "GET", path).status == 404


# Who may ask


def test_who_may_not_forward_is_told_so_and_logged_once(
    service: Asker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "limen"):
        for peer in ("203.0.113.77", "11.0.0.1", "::1", "::ffff:11.0.0.1", "what"):
            answer = ask(service, "/search", "stranger", client=peer)
            assert (answer.status, peer in answer.detail) == (400, False)
            assert "gateway.trusted_proxies" in answer.detail
            answer = follow(service, "GET", "/v1/auth/search", client=peer)
            assert answer.status == 400
    assert [record.message for record in caplog.records] == [
        "a question of the gateway at 203.0.113.77 is not answered: you may not forward requests: "
        "see gateway.trusted_proxies"
    ]
    for peer in ("10.1.2.3", "::ffff:10.1.2.3", "127.0.0.2"):
        assert ask(service, "/free", client=peer).status == 200
    # The same words from somebody else are not taken for those of a gateway.
    assert ask(service, "/free", client="11.0.0.1").status == 400
    assert service.usage(path="/search", user="stranger").remaining == 2


def test_open_checks_need_no_token_and_refuse_a_bad_one(service: Asker) -> None:
    for token, status in ((CHECK, 200), (ADMIN, 200), ("wrong", 401), ("", 200), ("é", 401)):
        answer = ask(service, "/free", headers=raw(x_limen_token=token))
        assert answer.status == status, token
        assert not token or token not in answer.body.decode()


def test_pages_of_other_sites_may_not_ask(service: Asker) -> None:
    for site, status in (("cross-site", 403), ("same-site", 403), ("none", 200), ("", 200)):
        headers = raw(sec_fetch_site=site, x_user="pages")
        assert follow(service, "GET", "/v1/auth/free", headers=headers).status == status
        headers += raw(x_limen_token=CHECK)
        assert follow(service, "GET", "/v1/auth/free", headers=headers).status == 200
        # A page cannot send the headers of the other form; so there it is the client's own.
        assert ask(service, "/free", headers=headers[:1]).status == 200


@pytest.fixture(scope="module")
def closed(tmp_path_factory: Any) -> Iterator[Asker]:
    flags = {**FLAGS, "auth.checks": "token"}
    with asking(tmp_path_factory.mktemp("closed"), RULES, flags) as [started]:
        yield started


def test_a_token_is_needed_where_checks_are_closed(
    closed: Asker, caplog: pytest.LogCaptureFixture
) -> None:
    answer = ask(closed, "/free")
    assert (answer.status, answer.detail) == (
        401,
        "a token is needed: send it as 'X-Limen-Token: ...'",
    )
    assert ask(closed, "/free", headers=raw(x_limen_token="")).detail == answer.detail
    bearer = [(b"authorization", f"Bearer {ADMIN}".encode())]
    assert ask(closed, "/free", headers=bearer).status == 401
    assert ask(closed, "/free", headers=raw(x_limen_token=f"Bearer {CHECK}")).status == 200
    for token, status in ((CHECK, 200), (ADMIN, 200), (f"{CHECK}x", 401)):
        headers = raw(x_limen_token=token)
        assert ask(closed, "/free", headers=headers).status == status
        assert follow(closed, "GET", "/v1/auth/free", headers=headers).status == status
    # With a token, whoever connects still has to be a gateway.
    headers = raw(x_limen_token=CHECK)
    assert ask(closed, "/free", headers=headers, client="8.8.8.8").status == 400
    assert ask(closed, "/free", client="8.8.8.8").status == 401
    assert CHECK not in caplog.text


def test_the_role_has_to_do(closed: Asker) -> None:
    bearer = [(b"authorization", f"Bearer {ADMIN}".encode())]
    for role, status in (("check", 200), ("viewer", 403), ("editor", 403), ("admin", 200)):
        made = closed.post("/admin/v1/tokens", {"name": role, "role": role}, headers=bearer).json
        answer = ask(closed, "/free", headers=raw(x_limen_token=made["secret"]))
        assert answer.status == status
        if status == 403:
            assert answer.detail == f"this needs the role check or admin, and yours is {role}"
            assert "limen-status" not in answer.headers


# What is remembered


def test_a_question_asked_again_is_decided_by_the_rules_of_the_day(tmp_path: Path) -> None:
    with asking(tmp_path, RULES, FLAGS) as [service]:
        assert service.service.engine.rules.is_timeless
        for _ in range(2):
            assert ask(service, "/search", "again").status == 200
        assert ask(service, "/search", "again").status == 429
        service.service.engine.use(parse_text(RULES.replace("2/hour", "9/hour")))
        answer = ask(service, "/search", "again")
        assert '"search#1";q=9;w=3600' in answer.headers["ratelimit-policy"]
        assert '"search#1";r=6' in answer.headers["ratelimit"]
        # The cost is part of the question, and who connected as well.
        answer = ask(service, "/search", "again", query=b"cost=5")
        assert '"search#1";r=1' in answer.headers["ratelimit"]
        assert ask(service, "/search", "again", client="8.8.8.8").status == 400


def test_a_rule_that_ends_is_not_remembered_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    with asking(tmp_path, FOR_A_TIME, FLAGS) as [service]:
        monkeypatch.setattr(service.service.engine, "_clock", clock)
        assert ask(service, "/sale").status == 403
        clock.advance(601)
        assert ask(service, "/sale").status == 200


@pytest.mark.parametrize(
    ("styles", "names"),
    [
        (["x-ratelimit"], {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}),
        (
            ["draft-11", "x-ratelimit-delta"],
            {
                "ratelimit-policy",
                "ratelimit",
                "x-ratelimit-limit",
                "x-ratelimit-remaining",
                "x-ratelimit-reset",
            },
        ),
        (
            ["draft-07", "draft-03"],
            {
                "ratelimit-policy",
                "ratelimit",
                "ratelimit-limit",
                "ratelimit-remaining",
                "ratelimit-reset",
            },
        ),
        ([], set()),
    ],
)
def test_headers_are_of_the_styles_asked_for(
    tmp_path: Path, styles: list[str], names: set[str]
) -> None:
    with asking(tmp_path, RULES, {**FLAGS, "http.headers": styles}) as [service]:
        answers = [ask(service, "/search", "styled") for _ in range(3)]
        checked = service.post("/v1/check", {"attributes": {"path": "/search", "user": "styled"}})
    assert [answer.status for answer in answers] == [200, 200, 429]
    for answer in (*answers, checked):
        assert {name for name in answer.headers if "ratelimit" in name} == names
        assert ("retry-after" in answer.headers) == (answer in (answers[-1], checked))
    if "draft-07" in styles:
        said = r"limit=2, remaining=0, reset=3[56]\d\d"
        assert re.fullmatch(said, answers[-1].headers["ratelimit"])
        assert answers[-1].headers["ratelimit-policy"] == "2;w=3600, 100;w=86400"
        assert answers[-1].headers["ratelimit-limit"] == "2, 2;w=3600, 100;w=86400"
        assert answers[-1].headers["ratelimit-reset"] == answers[-1].headers["retry-after"]


# The form of a refusal

BROWSER = [(b"accept", b"text/html,application/xhtml+xml,*/*;q=0.8")]


def test_a_refusal_has_the_form_that_the_client_asks_for(service: Asker) -> None:
    ask(service, "/plan", "forms", headers=BROWSER)
    page = ask(service, "/plan", "forms", headers=BROWSER)
    assert (page.status, page.headers["limen-status"]) == (429, "429")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert (page.headers["content-language"], page.headers["vary"]) == ("en", "Accept")
    assert page.headers["ratelimit"].startswith('"plans#1";r=0;t=')
    assert b"<p>1 request an hour is allowed for this user; come back in " in page.body
    assert f"urn:limen:{page.headers['x-request-id']}" in page.body.decode()
    text = ask(service, "/plan", "forms", headers=[(b"accept", b"text/plain")])
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert text.body.startswith(b"1 request an hour is allowed for this user; come back in ")
    for wish in (b"*/*", b"application/json", b"image/png", b"\xff", b""):
        answer = ask(service, "/plan", "forms", headers=[(b"accept", wish)])
        assert (answer.status, answer.headers["vary"]) == (429, "Accept")
        assert answer.detail


def test_the_form_is_chosen_where_the_path_follows_too(service: Asker) -> None:
    answer = follow(service, "GET", "/v1/auth/blocked", headers=BROWSER)
    assert (answer.status, answer.headers["content-type"]) == (403, "text/html; charset=utf-8")
    assert b"<p>Requests like this are blocked.</p>" in answer.body
    # A header may be sent in several lines.
    lines = [(b"accept", b"image/png"), (b"accept", b"text/plain")]
    answer = follow(service, "GET", "/v1/auth/blocked", headers=lines)
    assert answer.body == b"Requests like this are blocked.\n"


def test_a_choice_of_form_tells_nothing_more(service: Asker) -> None:
    hostile = raw(x_user="<script>secret-name</script>", x_forwarded_host="secret-host")
    hostile += [(b"x-request-id", b"<script>alert(1)</script>")]
    ask(service, "/plan", headers=hostile)
    for wish in (b"text/html", b"text/plain", b"*/*"):
        answer = ask(service, "/plan?secret=1", headers=[*hostile, (b"accept", wish)])
        assert answer.status == 429
        assert b"secret" not in answer.body
        assert wish != b"text/html" or b"<script" not in answer.body


def test_only_refusals_have_a_form(service: Asker) -> None:
    """Who is let through has no body; mistakes of a gateway are for who runs it."""
    answer = ask(service, "/free", "forms", headers=BROWSER)
    assert (answer.status, answer.body) == (200, b"")
    assert not {"vary", "content-type"} & {*answer.headers}
    assert ask(service, "/search", "forms", headers=BROWSER, query=b"cost=-1").detail
    asked = {"attributes": {"path": "/blocked"}}
    answer = service.post("/v1/check", asked, headers=BROWSER)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json["allowed"] is False


# Without the store


def test_a_store_that_is_frozen_is_not_waited_for(tmp_path: Path) -> None:
    with process(binaries()["valkey"]) as server:
        flags = {
            **FLAGS,
            "store.url": f"redis://{HOST}:{server.port}",
            "store.deadline": 20.0,
            "gateway.deadline": 0.05,
        }
        with asking(tmp_path, RULES, flags) as [service]:
            ask(service, "/local", "warm")
            server.pause()
            try:
                told = {}
                for path in ("/closed", "/open", "/local"):
                    began = time.monotonic()
                    told[path] = [ask(service, path, "frozen") for _ in range(2)]
                    assert time.monotonic() - began < 10
                denied = ask(service, "/closed", "frozen", query=b"deny_status=403")
            finally:
                server.resume()
    assert [answer.status for answer in told["/closed"]] == [503, 503]
    assert told["/closed"][0].headers["limen-status"] == "503"
    assert told["/closed"][0].headers["retry-after"] == "1"
    assert "ratelimit" not in told["/closed"][0].headers  # nobody counted
    assert (denied.status, denied.headers["limen-status"]) == (403, "503")
    assert [answer.status for answer in told["/open"]] == [200, 200]
    assert [answer.status for answer in told["/local"]] == [200, 429]
    assert '"local#1";r=0' in told["/local"][0].headers["ratelimit"]


def test_the_shorter_deadline_holds(tmp_path: Path) -> None:
    """Also when it is that of the store."""
    with process(binaries()["valkey"]) as server:
        flags = {
            **FLAGS,
            "store.url": f"redis://{HOST}:{server.port}",
            "store.deadline": 0.05,
            "gateway.deadline": 20.0,
        }
        with asking(tmp_path, RULES, flags) as [service]:
            ask(service, "/closed", "warm")
            server.pause()
            try:
                began = time.monotonic()
                assert ask(service, "/closed", "frozen").status == 503
                assert time.monotonic() - began < 10
            finally:
                server.resume()


# Whatever comes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HEADERS, st.binary(max_size=20), st.binary(max_size=20), st.booleans())
def test_no_headers_make_the_service_fail(
    service: Asker, headers: Headers, sent: bytes, query: bytes, trusted: bool
) -> None:
    client = "127.0.0.1" if trusted else "8.8.8.8"
    counts = service.service.watch
    before = counts.allowed + counts.refused
    for path, more in (
        ("/v1/auth", {"headers": [*raw(x_original_method="GET"), *headers]}),
        ("/v1/auth/x", {"headers": headers, "raw_path": b"/v1/auth/" + sent}),
    ):
        answer = follow(service, "GET", path, client=client, query=query, **more)
        assert answer.status in (200, 400, 401, 403, 422, 429)
        assert trusted or answer.status in (400, 401, 403)
        assert answer.status == 200 or answer.detail
    assert trusted or counts.allowed + counts.refused == before
