"""`/session`: who is let in by a cookie, for how long, and from where."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from limen.rules.stores.tokens import digest_of
from limen.server.auth.cookies import Cookies, Session, is_encrypted
from limen.server.dashboard.session import LASTS_S
from tests.server.admin.driving import ADMIN, CHECK, RULES, Answer, Driven, driven, settings_of
from tests.server.product import product
from tests.server.raw import Raw, request

GONE = "limen_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
OVER = "your session is over; sign in again"
OTHERS = "pages of other sites may not use this session"
UNMARKED = "with a session, changes need the header 'X-Limen-Request: 1'"
OFF = {"on": False}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Driven]:
    with driven(settings_of(tmp_path), RULES) as started:
        yield started


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    """One for all tests that change nothing."""
    with driven(settings_of(tmp_path_factory.mktemp("calm")), RULES) as started:
        yield started


def ask(service: Driven, method: str, path: str, body: Any = None, **headers: str | None) -> Answer:
    """Ask without a token; a header for each name, with dashes."""
    sent = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
    return service.ask(method, f"/{path}", body, role=None, headers=sent)


def sign_in(service: Driven, token: str = ADMIN, **headers: str) -> Answer:
    return ask(service, "POST", "/session", {"token": token}, x_limen_request="1", **headers)


def cookie_of(answer: Answer) -> str:
    """Return what a browser sends back."""
    assert answer.status == 200, answer
    return answer.headers["set-cookie"].partition(";")[0]


def value_of(answer: Answer) -> str:
    return cookie_of(answer).partition("=")[2]


@contextmanager
def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    now = time.time
    with monkeypatch.context() as patch:
        patch.setattr("limen.server.auth.tokens.time.time", lambda: now() + seconds)
        yield


# In, and out


def test_a_token_is_given_for_a_cookie_that_no_script_reads_and_no_other_site_sends(
    calm: Driven,
) -> None:
    answer = sign_in(calm)
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    value, *flags = answer.headers["set-cookie"].split("; ")
    assert value.startswith("limen_session=")
    assert flags == ["Path=/", f"Max-Age={LASTS_S}", "HttpOnly", "SameSite=Strict"]
    told = answer.json
    ends = datetime.fromisoformat(told.pop("expires"))
    assert told == {"name": "the admin token of this host", "role": "admin"}
    assert abs((ends - datetime.now(UTC)).total_seconds() - LASTS_S) < 60


def test_a_cookie_tells_no_token(calm: Driven) -> None:
    raw = base64.urlsafe_b64decode(value_of(sign_in(calm)))
    assert ADMIN.encode() not in raw


def test_who_is_signed_in_is_told_and_does_what_their_role_may(service: Driven) -> None:
    _, secret = service.token("viewer")
    cookie = cookie_of(sign_in(service, secret))
    told = ask(service, "GET", "/session", cookie=cookie).json
    assert (told["name"], told["role"]) == ("a viewer", "viewer")
    assert ask(service, "GET", "/admin/v1/rules", cookie=cookie).status == 200
    assert ask(service, "GET", "/admin/v1/tokens", cookie=cookie).status == 403
    changed = ask(service, "PUT", "/admin/v1/kill-switch", OFF, cookie=cookie, x_limen_request="1")
    assert (changed.status, "yours is viewer" in changed.detail) == (403, True)


def test_the_audit_names_who_was_signed_in(service: Driven) -> None:
    _, secret = service.token("admin")
    cookie = cookie_of(sign_in(service, secret))
    asked = {"role": "check", "name": "checkout"}
    made = ask(service, "POST", "/admin/v1/tokens", asked, cookie=cookie, **marked())
    assert made.json["created_by"] == "a admin"


def test_nobody_is_signed_in_without_a_cookie(calm: Driven) -> None:
    answer = ask(calm, "GET", "/session")
    assert (answer.status, answer.json) == (200, None)
    assert ask(calm, "GET", "/admin/v1/rules").status == 401


def test_signing_out_has_the_browser_forget_the_cookie(calm: Driven) -> None:
    for cookie in (cookie_of(sign_in(calm)), "limen_session=rubbish", None):
        answer = ask(calm, "DELETE", "/session", cookie=cookie, **marked())
        assert (answer.status, answer.json) == (200, None)
        assert answer.headers["set-cookie"] == GONE


def test_who_asks_by_a_token_is_told_as_well(calm: Driven) -> None:
    answer = calm.ask("GET", "//session")
    assert answer.json == {
        "name": "the admin token of this host",
        "role": "admin",
        "expires": None,
    }


@pytest.mark.parametrize(
    ("sent", "status", "detail"),
    [
        ({"token": "no-such-token-at-all"}, 401, "this token is unknown, revoked or expired"),
        ({"token": ""}, 401, "this token is unknown, revoked or expired"),
        ({"token": "\ud800"}, 400, "the body is not JSON"),
        ({"token": 7}, 422, "token: expected str, got int"),
        ({"token": ADMIN, "role": "admin"}, 422, "unknown field 'role'"),
        ({}, 422, "the field 'token' is missing"),
        (b"", 400, "the body is empty"),
        (b"token=x", 400, "the body is not JSON"),
        ({"token": "x" * 5_000}, 413, "the body is longer than 4,096 bytes"),
        (
            {"token": CHECK},
            403,
            "this token may ask for decisions alone; sign in with another one",
        ),
    ],
)
def test_who_is_not_let_in(service: Driven, sent: Any, status: int, detail: str) -> None:
    answer = ask(service, "POST", "/session", sent, **marked())
    assert (answer.status, detail in answer.detail) == (status, True), answer
    assert "set-cookie" not in answer.headers


def test_other_methods(calm: Driven) -> None:
    answer = ask(calm, "PUT", "/session", {"token": ADMIN}, **marked())
    assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET, HEAD, POST")


@pytest.mark.parametrize("token", [f" {ADMIN}\n", f"\t{ADMIN}"])
def test_a_token_that_was_pasted_with_space_around_it_is_the_same(calm: Driven, token: str) -> None:
    cookie = cookie_of(sign_in(calm, token))
    assert ask(calm, "GET", "/session", cookie=cookie).json["role"] == "admin"


# Where a cookie counts


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/check", {"attributes": {"user": "42"}}),
        ("GET", "/v1/usage", None),
        ("GET", "/metrics", None),
        ("GET", "/session/", None),
        ("GET", "/sessions", None),
    ],
)
def test_a_cookie_is_nothing_outside_the_administration(
    tmp_path: Path, method: str, path: str, body: Any
) -> None:
    flags = {"auth.checks": "token", "auth.metrics": "token"}
    with driven(settings_of(tmp_path, **flags), RULES) as service:
        cookie = cookie_of(sign_in(service))
        answer = ask(service, method, path, body, cookie=cookie, **marked())
        assert answer.status == (404 if "session" in path else 401)


def test_a_token_goes_before_a_cookie(service: Driven) -> None:
    cookie = cookie_of(sign_in(service))
    _, viewer = service.token("viewer")
    both = {"cookie": cookie, "authorization": f"Bearer {viewer}"}
    assert ask(service, "GET", "/session", **both).json["role"] == "viewer"
    assert ask(service, "GET", "/admin/v1/tokens", **both).status == 403
    wrong = ask(service, "GET", "/admin/v1/rules", cookie=cookie, authorization="Bearer no")
    assert (wrong.status, "set-cookie" in wrong.headers) == (401, False)
    # It is no other site's that knows the token: neither header is asked for.
    own = {"cookie": cookie, "authorization": f"Bearer {ADMIN}", "origin": "https://evil.example"}
    assert ask(service, "PUT", "/admin/v1/kill-switch", OFF, **own).status == 200


# Other sites


def marked() -> dict[str, str]:
    return {"x_limen_request": "1"}


# What was sent, and what is said to who reads and to who changes; None lets them pass.
SITES: list[tuple[Mapping[str, str], str | None, str | None]] = [
    ({}, None, UNMARKED),
    ({**marked()}, None, None),
    ({"x_limen_request": "0"}, None, UNMARKED),
    ({"x_limen_request": ""}, None, UNMARKED),
    ({**marked(), "sec_fetch_site": "same-origin"}, None, None),
    ({**marked(), "sec_fetch_site": "none"}, None, None),
    ({"sec_fetch_site": "same-origin"}, None, UNMARKED),
    ({**marked(), "sec_fetch_site": "same-site"}, OTHERS, OTHERS),
    ({**marked(), "sec_fetch_site": "cross-site"}, OTHERS, OTHERS),
    ({**marked(), "sec_fetch_site": ""}, OTHERS, OTHERS),
    ({**marked(), "sec_fetch_site": "cross-site", "origin": "http://limen:80"}, OTHERS, OTHERS),
    ({**marked(), "origin": "http://limen:80"}, None, None),
    ({**marked(), "origin": "http://LIMEN:80"}, None, None),
    # TLS may end at a proxy, which tells us the host and no scheme.
    ({**marked(), "origin": "https://limen:80"}, None, None),
    ({**marked(), "origin": "http://limen:81"}, OTHERS, OTHERS),
    ({**marked(), "origin": "http://limen"}, OTHERS, OTHERS),
    ({**marked(), "origin": "http://limen:80.evil.example"}, OTHERS, OTHERS),
    ({**marked(), "origin": "http://evil.example"}, OTHERS, OTHERS),
    ({**marked(), "origin": "null"}, OTHERS, OTHERS),
    ({**marked(), "origin": ""}, OTHERS, OTHERS),
    ({**marked(), "origin": "limen:80"}, OTHERS, OTHERS),
    # A proxy has changed the host; what the browser says of itself holds.
    (
        {**marked(), "sec_fetch_site": "same-origin", "origin": "https://limits.example"},
        None,
        None,
    ),
]


@pytest.mark.parametrize(("sent", "reads", "changes"), SITES)
def test_only_pages_of_the_service_use_a_session(
    calm: Driven, sent: Mapping[str, str], reads: str | None, changes: str | None
) -> None:
    cookie = cookie_of(sign_in(calm))
    for method, path, body, expected in (
        ("GET", "/admin/v1/rules", None, reads),
        ("GET", "/session", None, reads),
        ("PUT", "/admin/v1/kill-switch", OFF, changes),
        ("POST", "/admin/v1/rules/validate", {"document": RULES}, changes),
        ("DELETE", "/session", None, changes),
        ("POST", "/session", {"token": ADMIN}, changes),
    ):
        answer = ask(calm, method, path, body, cookie=cookie, host="limen:80", **sent)
        if expected is None:
            assert answer.status == 200, (method, path, answer)
        else:
            assert (answer.status, answer.detail) == (403, expected), (method, path)
            assert "set-cookie" not in answer.headers


def test_nobody_is_signed_in_by_another_site(calm: Driven) -> None:
    answer = ask(calm, "POST", "/session", {"token": ADMIN})
    assert (answer.status, answer.detail) == (403, UNMARKED)
    answer = sign_in(calm, origin="http://evil.example", host="limen")
    assert (answer.status, answer.detail) == (403, OTHERS)


def test_what_another_site_sends_is_not_read_at_length(calm: Driven) -> None:
    long = b" " * (2 * calm.service.settings.http.max_body)
    cookie = cookie_of(sign_in(calm))
    sent = {"cookie": cookie, "x_limen_request": "1"}
    assert ask(calm, "POST", "/admin/v1/rules/validate", long, **sent).status != 413
    sent["sec_fetch_site"] = "cross-site"
    refused = ask(calm, "POST", "/admin/v1/rules/validate", long, **sent)
    assert refused.status == 403, "refused before its body is read"


# The end


def test_a_session_ends_with_its_token(service: Driven) -> None:
    token, secret = service.token("viewer")
    cookie = cookie_of(sign_in(service, secret))
    service.ask("DELETE", f"/tokens/{token.id}")
    for path in ("/session", "/admin/v1/rules", "/admin/v1/live"):
        answer = ask(service, "GET", path, cookie=cookie)
        assert (answer.status, answer.detail) == (401, OVER)
        assert answer.headers["set-cookie"] == GONE
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_session_lasts_half_a_day(calm: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    cookie = cookie_of(sign_in(calm))
    with later(monkeypatch, LASTS_S - 60):
        assert ask(calm, "GET", "/admin/v1/rules", cookie=cookie).status == 200
    with later(monkeypatch, LASTS_S + 1):
        answer = ask(calm, "GET", "/admin/v1/rules", cookie=cookie)
        assert (answer.status, answer.detail) == (401, OVER)
        assert answer.headers["set-cookie"] == GONE


def test_a_session_lasts_no_longer_than_its_token(
    service: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = datetime.now(UTC) + timedelta(hours=1)
    _, secret = service.token("viewer", ends)
    answer = sign_in(service, secret)
    [age] = [each for each in answer.headers["set-cookie"].split("; ") if "Max-Age" in each]
    assert 3_500 < int(age.partition("=")[2]) <= 3_600
    assert abs((datetime.fromisoformat(answer.json["expires"]) - ends).total_seconds()) <= 1
    with later(monkeypatch, 3_601):
        assert ask(service, "GET", "/session", cookie=cookie_of(answer)).status == 401
        assert sign_in(service, secret).status == 401


def test_a_session_outlives_the_process_and_no_change_of_its_secret(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    with driven(settings) as before:
        cookie = cookie_of(sign_in(before))
    with driven(settings) as after:
        assert ask(after, "GET", "/admin/v1/rules", cookie=cookie).status == 200
    (Path(settings.data_dir) / "secret").write_text("another one, just as long as the first was")
    with driven(settings) as changed:
        assert ask(changed, "GET", "/admin/v1/rules", cookie=cookie).status == 401
        assert ask(changed, "GET", "/session", cookie=cookie).json is None


# Cookies that nobody wrote


def test_a_cookie_with_any_letter_changed_is_as_none(calm: Driven) -> None:
    value = value_of(sign_in(calm))
    for at, letter in enumerate(value):
        other = "B" if letter == "A" else "A"
        changed = f"limen_session={value[:at]}{other}{value[at + 1 :]}"
        answer = ask(calm, "GET", "/session", cookie=changed)
        assert (answer.status, answer.json) == (200, None), at


def bad_values() -> list[str]:
    digest, ends = digest_of(ADMIN), int(time.time()) + 3_600
    others = Cookies("another secret").write(Session(digest, ends))
    unsigned = base64.urlsafe_b64encode(bytes.fromhex(digest) + ends.to_bytes(8, "big")).decode()
    plain = base64.urlsafe_b64encode(
        bytes.fromhex(digest) + ends.to_bytes(8, "big") + bytes(32)
    ).decode()
    rubbish = ["", "=", "x", "x" * 15_000, "null", "é", "%00", "../../etc", "A" * 96, "-" * 96]
    return [others, unsigned, plain, digest, ADMIN, *rubbish]


@pytest.mark.parametrize("value", bad_values(), ids=lambda value: value[:20])
def test_bad_cookies_are_as_none(calm: Driven, value: str) -> None:
    answer = ask(calm, "GET", "/session", cookie=f"limen_session={value}")
    assert (answer.status, answer.json) == (200, None)
    refused = ask(calm, "GET", "/admin/v1/rules", cookie=f"limen_session={value}")
    assert (refused.status, "a token is needed" in refused.detail) == (401, True)


def test_how_a_cookie_is_found_among_others(calm: Driven) -> None:
    good = cookie_of(sign_in(calm))
    value = good.partition("=")[2]
    for sent, is_known in (
        (f"a=b; {good}; c=d", True),
        (f"a=b;{good}", True),
        (f"{good};", True),
        (f"theme=limen_session; {good}", True),
        (f"{good}; {good}", False),
        (f"limen_session=x; {good}", False),
        (f"{good}; limen_session", False),
        (f'limen_session="{value}"', False),
        (f"{good}=", False),
        (f"LIMEN_SESSION={value}", False),
        (f"xlimen_session={value}", False),
        (f"limen_session={value}, {good}", False),
    ):
        answer = ask(calm, "GET", "/session", cookie=sent)
        assert (answer.json is not None) == is_known, sent


# Who guesses


def test_valid_token_signs_in_while_failed_sign_ins_are_refused(service: Driven) -> None:
    answers = [sign_in(service, f"a-guess-of-mine-{n}") for n in range(12)]
    assert [answer.status for answer in answers] == [401] * 10 + [429] * 2
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
    assert "too many failed sign-ins from your address" in answers[-1].detail
    assert sign_in(service).status == 200
    assert sign_in(service, "another-guess").status == 429
    assert service.ask("GET", "/rules").status == 200


def test_valid_tokens_are_not_counted_as_failed_sign_ins(service: Driven) -> None:
    assert {sign_in(service).status for _ in range(50)} == {200}
    assert {sign_in(service, CHECK).status for _ in range(50)} == {403}


# On a socket


def test_the_cookie_is_for_encrypted_connections_where_there_is_one(calm: Driven) -> None:
    answer = sign_in(calm, origin="https://limen.example", host="limen.example")
    assert answer.headers["set-cookie"].endswith("; SameSite=Strict; Secure")


@pytest.mark.parametrize(
    ("scheme", "origin", "encrypted"),
    [
        ("https", None, True),
        ("http", b"https://limen.example", True),  # TLS ends at a proxy
        ("http", b"http://limen.example", False),
        ("http", None, False),
    ],
)
def test_whether_a_browser_came_by_tls(scheme: str, origin: bytes | None, encrypted: bool) -> None:
    headers = [] if origin is None else [(b"origin", origin)]
    assert is_encrypted({"scheme": scheme, "headers": headers}) is encrypted


def test_a_stream_is_opened_by_a_cookie_and_ends_with_it(tmp_path: Path) -> None:
    sent = f"Authorization: Bearer {ADMIN}"
    with product(tmp_path / "product", auth__admin_token=ADMIN) as served:
        made = served.ask(
            "/admin/v1/tokens", sent, method="POST", body={"role": "viewer", "name": "ann"}
        )
        token = json.loads(made.body)
        answer = served.ask(
            "/session", "X-Limen-Request: 1", method="POST", body={"token": token["secret"]}
        )
        cookie = answer.headers["set-cookie"].partition(";")[0]
        heard = b""
        with Raw(served.admin_port, timeout=30) as connection:
            connection.send(request("/admin/v1/live", f"Cookie: {cookie}"))
            while b"event: stats" not in heard:
                heard += connection.socket.recv(65_536)
            assert heard.startswith(b"HTTP/1.1 200 ")
            served.ask(f"/admin/v1/tokens/{token['id']}", sent, method="DELETE")
            while b"event: end" not in heard:
                heard += connection.socket.recv(65_536)
        again = served.ask("/admin/v1/live", f"Cookie: {cookie}")
        assert (again.status, again.headers["set-cookie"]) == (401, GONE)
        assert cookie.partition("=")[2] not in "".join(served.said + served.complained)


def failed_sign_ins(port: int, addresses: Iterable[str], token: str = "a-guess") -> list[int]:
    """Try to sign in behind a proxy, once for each client address; return the statuses."""
    statuses = []
    body = json.dumps({"token": token}).encode()
    with Raw(port) as raw:
        for address in addresses:
            headers = (f"X-Forwarded-For: {address}", "X-Limen-Request: 1")
            raw.send(request("/session", *headers, method="POST", body=body))
            statuses.append(raw.response().status)
    return statuses


def test_failed_sign_ins_behind_a_proxy_are_counted_by_client_address(tmp_path: Path) -> None:
    with product(tmp_path, auth__admin_token=ADMIN) as served:
        port = served.admin_port
        assert failed_sign_ins(port, ["203.0.113.5"] * 12) == [401] * 10 + [429] * 2
        assert failed_sign_ins(port, ["203.0.113.6"]) == [401]
        # The leftmost address is the client's own claim.
        assert failed_sign_ins(port, ["198.51.100.1, 203.0.113.5"]) == [429]
        assert failed_sign_ins(port, ["203.0.113.5"], ADMIN) == [200]
        # A client owns a whole /64 network of IPv6.
        one_network = [f"2001:db8:0:1::{number}" for number in range(1, 13)]
        assert failed_sign_ins(port, one_network) == [401] * 10 + [429] * 2
        assert failed_sign_ins(port, ["2001:db8:0:2::1"]) == [401]


def test_client_address_of_a_proxy_that_is_not_trusted_is_ignored(tmp_path: Path) -> None:
    settings = {"auth__admin_token": ADMIN, "gateway__trusted_proxies": "10.0.0.1"}
    addresses = [f"203.0.113.{number}" for number in range(12)]
    with product(tmp_path, **settings) as served:
        assert failed_sign_ins(served.admin_port, addresses) == [401] * 10 + [429] * 2
        assert failed_sign_ins(served.admin_port, ["203.0.113.99"], ADMIN) == [200]
        lines = [line for line in served.said + served.complained if "is ignored" in line]
    assert len(lines) == 1
    assert "X-Forwarded-For header of 127.0.0.1" in lines[0]
    assert "gateway.trusted_proxies" in lines[0]
