"""From the headers of a forwarded request to attributes; and who cannot make them say otherwise."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen.server.gateway.auth import Options, options_of
from limen.server.gateway.forwarded import Reader
from limen.server.http.exchange import Rejected
from limen.server.settings import load

Headers = list[tuple[bytes, bytes]]
GATEWAY, CLIENT = "10.0.0.1", "203.0.113.9"
ATTRIBUTES = ["user=X-User-Id", "plan=X-Jwt:plan", "sub=X-Jwt:sub", "agent=User-Agent"]
NETWORKS = ["10.0.0.0/8", "192.168.0.0/16", "::1"]


def reader(**settings: Any) -> Reader:
    given = {"trusted_proxies": NETWORKS, "attributes": ATTRIBUTES, **settings}
    return Reader(load({f"gateway.{name}": value for name, value in given.items()}, {}).gateway)


READER = reader()


def raw(**headers: str | bytes) -> Headers:
    """Return headers as a server has them: `x_user_id="42"`."""
    return [
        (name.replace("_", "-").encode(), value.encode() if isinstance(value, str) else value)
        for name, value in headers.items()
    ]


ADDRESS = raw(x_forwarded_for=CLIENT)
BASIC = raw(x_forwarded_method="GET", x_forwarded_uri="/a", x_forwarded_for=CLIENT)


def read(headers: Headers, peer: str | None = GATEWAY, by: Reader = READER) -> dict[str, str]:
    return by.attributes(by.forwarded(peer, headers).request)


def read_prefixed(
    path: bytes, headers: Sequence[tuple[bytes, bytes]] = (), method: str = "GET"
) -> dict[str, str]:
    given = [*ADDRESS, *headers]
    return READER.attributes(READER.prefixed(GATEWAY, given, method, path).request)


def payload(**claims: Any) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")


def refused(headers: Headers, by: Reader = READER) -> str:
    with pytest.raises(Rejected) as caught:
        read(headers, by=by)
    assert caught.value.status == 400
    return caught.value.detail


# What each gateway sends

CADDY = raw(
    host="limen:8080",
    x_forwarded_for=CLIENT,
    x_forwarded_host="Shop.Example:8443",
    x_forwarded_method="post",
    x_forwarded_proto="https",
    x_forwarded_uri="/search?q=1",
)
NGINX = raw(
    host="limen",
    x_forwarded_for=f"1.1.1.1, {CLIENT}",
    x_forwarded_host="shop.example",
    x_original_method="POST",
    x_original_uri="/search?q=1",
)
INGRESS = raw(
    x_forwarded_for=CLIENT,
    x_original_method="POST",
    x_original_url="https://someone@shop.example:443/search?q=1",
)
EXPECTED = {
    "method": "POST",
    "path": "/search",
    "host": "shop.example",
    "ip": CLIENT,
    "address": CLIENT,
}


@pytest.mark.parametrize("headers", [CADDY, NGINX, INGRESS], ids=["caddy", "nginx", "ingress"])
def test_what_each_gateway_sends(headers: Headers) -> None:
    assert read(headers) == EXPECTED


def test_what_envoy_sends() -> None:
    headers = raw(host="Shop.Example", x_forwarded_for=CLIENT, content_length="0")
    assert read_prefixed(b"/search", headers, "POST") == EXPECTED


def test_a_header_without_a_host_is_no_host() -> None:
    for more in ({}, {"x_forwarded_host": ""}, {"x_forwarded_host": ":80"}, {"host": "limen"}):
        assert "host" not in read(BASIC + raw(**more))
    assert "host" not in read_prefixed(b"/")


@pytest.mark.parametrize(
    ("sent", "host"),
    [
        ("A.example", "a.example"),
        ("a.example.", "a.example"),
        ("a.example.:80", "a.example"),
        ("evil.example, a.example", "a.example"),
        ("[2001:DB8::1]:80", "[2001:db8::1]"),
        ("2001:db8::1", "2001:db8::1"),
        ("[broken", "[broken]"),
        (b"\xff\xc3\xa9", "\udcffé"),
    ],
)
def test_a_host_has_one_spelling(sent: str | bytes, host: str) -> None:
    assert read(BASIC + raw(x_forwarded_host=sent))["host"] == host


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("x-forwarded-method", "X-Forwarded-Method or X-Original-Method"),
        ("x-forwarded-uri", "X-Forwarded-Uri, X-Original-URI or X-Original-URL"),
    ],
)
@pytest.mark.parametrize("empty", [True, False])
def test_what_is_missing_is_named(missing: str, says: str, empty: bool) -> None:
    left = [pair for pair in BASIC if pair[0] != missing.encode()]
    assert says in refused(left + ([(missing.encode(), b"")] if empty else []))


@pytest.mark.parametrize("method", ["GET, POST", "G T", "G\x00T", b"\xff", "G\tET", "(GET)"])
def test_what_is_no_method_is_refused(method: str | bytes) -> None:
    headers = raw(x_forwarded_method=method, x_forwarded_uri="/")
    assert refused(headers) == "the forwarded method is no method of HTTP"


# Paths


@pytest.mark.parametrize(
    ("sent", "path"),
    [
        (b"/search", "/search"),
        (b"/search/", "/search"),
        (b"//search", "/search"),
        (b"/x/../search", "/search"),
        (b"/x/%2e%2e/search", "/search"),
        (b"/%2E/s%65arch", "/search"),
        (b"/x//search", "/x/search"),
        (b"/x%2fsearch", "/x/search"),
        (b"/search;v=1", "/search"),
        (b"/search%3Bv=1", "/search"),
        (b"/;/search;a;b=c/;", "/search"),
        (b"/x/..;/search", "/search"),
        (b"/x/%2e%2e;v=1/search", "/search"),
        (b"/.;/search", "/search"),
        (b"/x\\search", "/x/search"),
        (b"/x%5csearch%5C", "/x/search"),
        (b"/" + b";" * 100_000, "/"),
        (b"/search%3fq=1", "/search?q=1"),
        (b"/%2573earch", "/%73earch"),
        (b"/%", "/%"),
        (b"/caf\xc3\xa9", "/café"),
        (b"/caf%C3%A9", "/café"),
        (b"/caf\xc3%a9", "/café"),
        (b"/\xff", "/\udcff"),
        (b"/%ff", "/\udcff"),
        (b"/%ed%a0%80", "/\udced\udca0\udc80"),
        (b"/" + b"a" * 100_000, "/" + "a" * 100_000),
        (b"/" + b"a/../" * 20_000, "/"),
    ],
)
def test_a_path_has_one_spelling(sent: bytes, path: str) -> None:
    for name in ("x_forwarded_uri", "x_original_uri", "x_original_url"):
        for query in (b"", b"?", b"?a=/other&b=%2F?"):
            headers = ADDRESS + raw(x_forwarded_method="GET", **{name: sent + query})
            assert read(headers)["path"] == path
    assert read_prefixed(sent)["path"] == path
    url = b"https://shop.example" + sent
    assert read(ADDRESS + raw(x_original_method="GET", x_original_url=url))["path"] == path


GUIDE = (Path(__file__).parents[3] / "docs" / "gateways.md").read_text()


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of a table in the guide, without the heading and the line below it."""
    table = GUIDE.partition(heading)[2].partition("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def test_the_guide_shows_the_path_that_rules_see() -> None:
    rows = rows_of("| request | path that rules see |")
    assert len(rows) == 9
    for spellings, path in rows:
        for spelling in re.findall(r"`([^`]+)`", spellings):
            headers = ADDRESS + raw(x_forwarded_method="GET", x_forwarded_uri=spelling)
            assert f"`{read(headers)['path']}`" == path.partition(":")[0]
    for spellings, *_ in rows_of("| request | some servers see | others see |"):
        for spelling in re.findall(r"`([^`]+)`", spellings):
            headers = ADDRESS + raw(x_forwarded_method="GET", x_forwarded_uri=spelling)
            assert refused(headers).startswith("the path is ambiguous: ")


AMBIGUOUS = (
    *(b"/..%2f..%2Fsearch", b"/x/a%2f..%2f..%2fsearch", b"/x//../search", b"/x/;/../search"),
    *(b"/x;v=%2f../search", b"/x;v=%2f..%2fsearch/y", b"/x;v\\..\\..\\search", b"/x;%5c../search"),
    *(b"/x/..%3b/search", b"/x/..\\search", b"/x%5c..%5csearch", b"/x/%2e%2e%3bv/search"),
)


@pytest.mark.parametrize("path", AMBIGUOUS)
def test_a_path_on_which_servers_disagree_is_refused(path: bytes) -> None:
    headers = ADDRESS + raw(x_forwarded_method="GET", x_forwarded_uri=path)
    assert refused(headers).startswith("the path is ambiguous: ")
    with pytest.raises(Rejected, match="the path is ambiguous"):
        read_prefixed(path)


@pytest.mark.parametrize(
    ("normalize", "path"),
    [
        (["parameters", "backslashes"], "/x/y/z"),
        (["parameters"], "/x/y\\z"),
        (["backslashes"], "/x;a/y/z"),
        ([], "/x;a/y\\z"),
    ],
)
def test_each_step_can_be_left_out(normalize: list[str], path: str) -> None:
    by = reader(normalize_path=normalize)
    headers = ADDRESS + raw(x_forwarded_method="GET", x_forwarded_uri="/x;a/y%5cz")
    assert read(headers, by=by)["path"] == path


def test_what_is_no_path_stays_as_it_is() -> None:
    headers = ADDRESS + raw(x_forwarded_method="OPTIONS")
    assert read(headers + raw(x_forwarded_uri="*"))["path"] == "*"
    assert read(headers + raw(x_original_url="https://a.b"))["path"] == "/"
    assert read(headers + raw(x_forwarded_uri="http://a.b/c"))["path"] == "/c"


# Who says otherwise


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (raw(x_original_uri="/free"), "path"),
        (raw(x_original_url="https://a.example/free"), "path"),
        (raw(x_original_method="HEAD"), "method"),
        (raw(x_forwarded_host="a.example", x_original_url="http://b.example/a"), "host"),
    ],
)
def test_headers_that_differ_are_refused(more: Headers, what: str) -> None:
    for headers in (BASIC + more, more + BASIC):
        assert refused(headers).startswith(f"headers name more than one {what}; ")


def test_headers_that_agree_are_one() -> None:
    more = raw(
        x_original_method="get",
        x_original_uri="//a?other=query",
        x_original_url="https://Shop.example:443/%61#x",
        x_forwarded_host="shop.example",
    )
    assert read(BASIC + more) == read(BASIC) | {"host": "shop.example"}


@pytest.mark.parametrize(
    "name",
    [
        *("x-forwarded-method", "x-forwarded-uri", "x-forwarded-host", "x-original-uri"),
        *("x-original-method", "x-original-url", "x-user-id", "x-jwt", "x-limen-token"),
    ],
)
def test_a_header_that_stands_twice_is_refused(name: str) -> None:
    for values in ((b"a", b"b"), (b"a", b"a"), (b"", b"a")):
        said = refused([(name.encode(), value) for value in values])
        assert said.lower().startswith(f"{name} header is repeated; expected one value")


def test_a_single_address_stands_once() -> None:
    by = reader(address_header="x-real-ip")
    headers = raw(x_forwarded_method="GET", x_forwarded_uri="/a", x_real_ip=CLIENT)
    assert read(headers + raw(x_forwarded_for="1.1.1.1"), by=by)["ip"] == CLIENT
    assert "X-Real-Ip header is repeated" in refused(headers + raw(x_real_ip="1.1.1.1"), by=by)
    listed = [*headers[:2], (b"x-real-ip", f"1.1.1.1, {CLIENT}".encode())]
    assert "X-Real-Ip header is repeated or contains a comma" in refused(listed, by=by)


@pytest.mark.parametrize("value", [b"42, 43", b"42,", b",42", b",", b"42\t,\t43"])
def test_a_comma_in_a_header_with_one_value_is_refused(value: bytes) -> None:
    said = "X-User-Id header is repeated or contains a comma; expected one value."
    assert refused(BASIC + raw(x_user_id=value)).startswith(said)
    with pytest.raises(Rejected, match=re.escape(said)):
        read_prefixed(b"/", raw(x_user_id=value))
    with pytest.raises(Rejected, match="Host header is repeated or contains a comma"):
        read_prefixed(b"/", raw(host=value))


def test_a_comma_in_a_path_is_part_of_it() -> None:
    headers = raw(x_forwarded_method="GET", x_forwarded_uri="/a,b", x_forwarded_for=CLIENT)
    assert read(headers)["path"] == "/a,b"
    by = reader(attributes=["uri=X-Forwarded-Uri"], list_headers=["X-Forwarded-Uri"])
    assert read(headers, by=by)["uri"] == "/a,b"
    assert "X-Forwarded-Uri header is repeated;" in refused(headers + headers[1:2], by=by)


@pytest.mark.parametrize(
    "lines", [[b"a, b"], [b"a,b"], [b"a", b"b"], [b"a", b"", b"b"], [b",a ,\t,b ,"]]
)
def test_a_list_has_one_spelling(lines: list[bytes]) -> None:
    by = reader(attributes=["tags=X-Tags", "via=X-Forwarded-For"], list_headers=["x-TAGS"])
    found = read(BASIC + [(b"x-tags", line) for line in lines], by=by)
    assert (found["tags"], found["via"]) == ("a, b", CLIENT)
    given = [*ADDRESS, *[(b"x-tags", line) for line in lines]]
    assert by.attributes(by.prefixed(GATEWAY, given, "GET", b"/").request)["tags"] == "a, b"


def test_browsers_may_send_commas_by_default() -> None:
    agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)"
    assert read(BASIC + raw(user_agent=agent))["agent"] == agent
    assert "agent" not in read(BASIC + raw(user_agent=" , ,"))


def test_headers_say_nothing_of_a_path_that_is_the_clients_own() -> None:
    more = raw(
        x_forwarded_method="HEAD",
        x_forwarded_uri="/free",
        x_original_uri="/free",
        x_original_url="https://free.example/free",
        x_forwarded_host="free.example",
        host="shop.example",
    )
    found = read_prefixed(b"/paid", more + more[:-1])
    assert (found["method"], found["path"], found["host"]) == ("GET", "/paid", "shop.example")


@pytest.mark.parametrize(
    ("lines", "ip"),
    [
        ([CLIENT], CLIENT),
        ([f"1.1.1.1, {CLIENT}"], CLIENT),
        (["1.1.1.1", CLIENT], CLIENT),
        ([f"1.1.1.1,{CLIENT}, 10.9.9.9", "192.168.0.1"], CLIENT),
        ([f"{CLIENT}, garbage"], GATEWAY),
        (["unknown"], GATEWAY),
        (["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
        (["", ""], GATEWAY),
        ([f"127.0.0.1, {CLIENT}:4711"], CLIENT),
        (["2001:db8:1:2:3::4"], "2001:db8:1:2::"),
        (["\xff"], GATEWAY),
    ],
)
def test_an_address_is_read_from_the_right(lines: list[str], ip: str) -> None:
    headers = raw(x_forwarded_method="GET", x_forwarded_uri="/a")
    headers += [(b"x-forwarded-for", line.encode("latin-1")) for line in lines]
    assert read(headers)["ip"] == ip


def test_all_clients_are_not_counted_as_one_for_want_of_an_address() -> None:
    said = "the address of the client is missing: let the gateway send X-Forwarded-For, or name"
    assert refused(BASIC[:2]).startswith(said)
    assert refused([*BASIC[:2], (b"x-forwarded-for", b"")]).startswith(said)
    with pytest.raises(Rejected, match=said):
        READER.attributes(READER.prefixed(GATEWAY, (), "GET", b"/a").request)


def test_forwarded_is_read_from_the_right() -> None:
    by = reader(address_header="forwarded")
    headers = raw(x_forwarded_method="GET", x_forwarded_uri="/a")
    for clients in ('for="1.1.1.1', 'for=1.1.1.1;x="\\', "for=1.1.1.1", '"', "\\"):
        lines = [("forwarded", clients), ("forwarded", f'for="{CLIENT}"')]
        sent = [(name.encode(), value.encode()) for name, value in lines]
        assert read(headers + sent, by=by)["ip"] == CLIENT


def test_the_whole_address_is_an_attribute_too() -> None:
    headers = raw(x_forwarded_method="GET", x_forwarded_uri="/", x_forwarded_for="2001:DB8::5:1")
    found = read(headers)
    assert (found["ip"], found["address"]) == ("2001:db8::", "2001:db8::5:1")
    assert read(headers, by=reader(ipv6_prefix=128))["ip"] == "2001:db8::5:1"


def test_who_connects_by_a_path_has_no_address() -> None:
    by = reader(trusted_proxies=["unix", "10.0.0.0/8"])
    assert by.trusts(None)
    assert not READER.trusts(None)
    assert read(BASIC, None, by)["ip"] == CLIENT
    assert "ip" not in read([*BASIC[:2], (b"x-forwarded-for", b"unknown")], None, by)
    # Whoever is not trusted is refused by whoever asks `trusts`; but no word of it is taken here.
    assert read(BASIC, "8.8.8.8", by)["ip"] == "8.8.8.8"


# Attributes that the settings name


def test_headers_of_the_settings_are_attributes() -> None:
    found = read(BASIC + raw(x_user_id="42", user_agent=b"\xe9\xff caf\xc3\xa9", x_other="no"))
    assert (found["user"], found["agent"]) == ("42", "\udce9\udcff café")
    assert {"plan", "sub"}.isdisjoint(found)
    assert "user" not in read(BASIC + raw(x_user_id=""))
    assert read_prefixed(b"/", raw(x_user_id="7"))["user"] == "7"


def test_whitespace_around_a_value_is_not_part_of_it() -> None:
    jwt = b"\tBearer " + HEADER + b"." + payload(plan="pro") + b".c2lnbmF0dXJl \t"
    found = read(BASIC + raw(x_user_id="\t 4 2 \t", x_jwt=jwt, x_forwarded_host="a.example\t"))
    assert (found["user"], found["plan"], found["host"]) == ("4 2", "pro", "a.example")
    assert "user" not in read(BASIC + raw(x_user_id=" \t "))
    assert read_prefixed(b"/", raw(x_user_id="7\t"))["user"] == "7"
    assert READER.forwarded(GATEWAY, raw(x_limen_token="secret\t")).token == b"secret"


def test_a_header_may_serve_twice() -> None:
    by = reader(attributes=["uri=X-Forwarded-Uri", "also=X-Forwarded-Uri", "via=X-Forwarded-For"])
    found = read(raw(x_forwarded_method="GET", x_forwarded_uri="/a/?b", x_forwarded_for="1.1.1.1"))
    assert "uri" not in found
    headers = raw(x_forwarded_method="GET", x_forwarded_uri="/a/?b", x_forwarded_for="1.1.1.1")
    found = read(headers, by=by)
    assert (found["uri"], found["also"], found["via"]) == ("/a/", "/a/", "1.1.1.1")
    prefixed = by.attributes(by.prefixed(GATEWAY, headers, "GET", b"/b").request)
    assert (prefixed["path"], prefixed["uri"]) == ("/b", "/a/?b")


HEADER = base64.urlsafe_b64encode(b'{"alg":"RS256"}').rstrip(b"=")


@pytest.mark.parametrize(
    ("claims", "found"),
    [
        ({"plan": "pro", "sub": "42"}, {"plan": "pro", "sub": "42"}),
        ({"plan": "größer ÿÿ>>>???", "sub": 42}, {"plan": "größer ÿÿ>>>???", "sub": "42"}),
        ({"plan": True, "sub": 1.5}, {"plan": "true", "sub": "1.5"}),
        ({"plan": None, "sub": ""}, {}),
        ({"plan": ["a"], "sub": {"plan": "x"}}, {}),
        ({"other": "x"}, {}),
        ({}, {}),
        ({"sub": 10**400}, {"sub": str(10**400)}),
    ],
)
def test_claims_of_a_jwt(claims: dict[str, Any], found: dict[str, str]) -> None:
    body = payload(**claims)
    padded = base64.b64encode(json.dumps(claims).encode())
    whole = HEADER + b"." + body + b".c2lnbmF0dXJl"
    for value in (body, padded, whole, b"Bearer " + whole, HEADER + b"." + body + b"."):
        said = read(BASIC + raw(x_jwt=value))
        assert {name: said[name] for name in ("plan", "sub") if name in said} == found


@pytest.mark.parametrize(
    "value",
    [
        *(b"garbage", b".", b"..", b"a.b", b"a.b.c", b"a.b.c.d.e", b"!!!!", b"\xff\xfe"),
        base64.b64encode(b"[]"),
        base64.b64encode(b'"plan"'),
        base64.b64encode(b'{"plan": "\xff"}'),
        base64.b64encode(b'{"plan": "\\ud800"}'),
        base64.b64encode(b'{"plan": 1e999}'),
        base64.b64encode(b"[" * 9_000),
        base64.b64encode(b'{"plan":' + b"[" * 9_000),
        base64.b64encode(b'{"plan":' + b"1" * 5_000 + b"}"),
        b"Basic " + base64.b64encode(b"user:password"),
    ],
)
def test_a_claim_of_no_jwt_is_refused(value: bytes) -> None:
    said = refused(BASIC + raw(x_jwt=value))
    assert said.startswith("the header x-jwt holds neither a JWT nor the payload of one")
    assert "password" not in said


# What one may ask for beside


@pytest.mark.parametrize(
    ("query", "options"),
    [
        (b"deny_status=403", Options(1, 403)),
        (b"cost=0", Options(0)),
        (b"cost=25&deny_status=599", Options(25, 599)),
        (b"deny_status=400&cost=0007", Options(7, 400)),
    ],
)
def test_options(query: bytes, options: Options) -> None:
    for clients in (b"", b"q=1", b"cost=9&q=2"):
        assert options_of(query, clients) == options


@pytest.mark.parametrize(
    "query",
    [
        *(b"deny_status=200", b"deny_status=399", b"deny_status=600", b"deny_status=", b"cost="),
        *(b"cost=-1", b"cost=1.5", b"cost=+1", b"cost=9999999999999999", b"cost=1&cost=2", b"&"),
        *(b"deny_status=403&deny_status=403", b"q=1", b"cost", b"cost=1&q=1", b"cost=%31"),
        *(b"\xff", b"cost=\xb2", b"cost=1 ", b"COST=1", b"cost=1;deny_status=403", b"cost=1\n"),
    ],
)
def test_options_that_make_no_sense_are_refused(query: bytes) -> None:
    with pytest.raises(Rejected, match="the query takes cost, from 0 to") as caught:
        options_of(query, b"another=1")
    assert caught.value.status == 400


def test_the_query_of_a_client_is_no_option() -> None:
    """Caddy passes it on, unless it is told not to by `uri /v1/auth?`."""
    for query in (b"q=1", b"q=1&cost=0", b"cost", b"cost=0;q=1", b"deny_status=599&%63ost=0"):
        assert options_of(query, query) == Options()
    for query, clients in (
        (b"cost=0", b"cost=0"),
        (b"cost=0", b"cost=0&q=1"),
        (b"deny_status=403", b"q=1;deny_status=403"),
        (b"cost=0&deny_status=503", b"deny_status=503&cost=0"),
        (b"cost=0;deny_status=503", b"deny_status=503&cost=0"),
    ):
        with pytest.raises(Rejected, match="nobody can tell whose they are"):
            options_of(query, clients)


# Whatever comes

NAMES = st.sampled_from(
    [
        *(b"x-forwarded-method", b"x-forwarded-uri", b"x-forwarded-host", b"x-forwarded-for"),
        *(b"x-original-method", b"x-original-uri", b"x-original-url", b"host", b"forwarded"),
        *(b"x-user-id", b"x-jwt", b"x-limen-token", b"x-other", b"sec-fetch-site"),
    ]
)
VALUES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"GET", b"/a", b"https://a/b", b"1.1.1.1", b"a.b.c", b"", b",", b'"', b"["]),
    st.text('/%.?#:;@[]"\\,a2eEfF \t', max_size=20).map(str.encode),
)
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=12)


@given(HEADERS, st.binary(max_size=30), st.sampled_from([GATEWAY, "8.8.8.8", "x", "", None]))
def test_any_headers_give_attributes_or_one_sentence(
    headers: Headers, path: bytes, peer: str | None
) -> None:
    statuses = {400}
    for is_prefixed in (False, True):
        try:
            if is_prefixed:
                question = READER.prefixed(peer, headers, "GET", b"/" + path)
            else:
                question = READER.forwarded(peer, headers)
            found = READER.attributes(question.request)
        except Rejected as error:
            statuses.add(error.status)
            continue
        assert all(type(value) is str and value for value in found.values())
        assert peer == GATEWAY or found.get("address") == (peer if peer == "8.8.8.8" else None)
    assert statuses == {400}


@given(HEADERS)
def test_no_header_moves_an_address_that_the_gateway_wrote(headers: Headers) -> None:
    sent = [pair for pair in headers if pair[0] in (b"x-forwarded-for", b"forwarded", b"x-other")]
    assert read([*BASIC[:2], *sent, (b"x-forwarded-for", CLIENT.encode())])["ip"] == CLIENT
    by = reader(address_header="forwarded")
    ours = (b"forwarded", f"for={CLIENT}".encode())
    assert read([*BASIC[:2], *sent, ours], by=by)["ip"] == CLIENT
