"""Whom calls are counted for: addresses, certificates, metadata, and functions of one's own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from limen.adapters import AddressSettings, RateLimit, either, header
from limen.adapters.grpc.call import CallRequest, address_of
from limen.adapters.manner import manner_of
from tests.adapters.grpc.conftest import Serve, Sources
from tests.adapters.grpc.serving import Kind, Shopper, serving
from tests.adapters.grpc.shop import OTHER, PLACE

OK, REFUSED = "OK", "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:50123", "192.0.2.7"),
        ("ipv6:%5B2001:db8::7%5D:50123", "2001:db8::7"),
        ("ipv6:[2001:db8::7]:50123", "2001:db8::7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:50123", "fe80::1%eth0"),
        ("unix:", None),
        ("unix:/run/shop.sock", None),
        ("unix-abstract:shop", None),
        ("", None),
        ("ipv4:", ""),
    ],
)
def test_reads_the_address_in_what_grpc_says_of_a_peer(peer: str, address: str | None) -> None:
    assert address_of(peer) == address


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0"])
def test_counts_by_address(serve: Serve, address: str) -> None:
    seen: list[str] = []
    limit = RateLimit("2/hour", exempt_when=lambda call: seen.append(call.peer))
    client = serve(limit, address=address)
    assert client.codes(3) == [OK, OK, REFUSED]
    assert f"[{address_of(seen[0])}]:0".replace("[127.0.0.1]", "127.0.0.1") == address


def test_a_socket_in_the_file_system_has_no_address(serve: Serve, tmp_path: Path) -> None:
    failed = serve("1/hour", address=f"unix:{tmp_path}/shop.sock").place()
    assert failed.code.name == "UNKNOWN"
    assert "the request has no address to count by" in failed.detail


def test_a_proxy_at_a_socket_in_the_file_system_may_tell_addresses(
    serve: Serve, tmp_path: Path
) -> None:
    trusted = AddressSettings(trusted_proxies=("unix",), header="X-Forwarded-For")
    client = serve("1/hour", address=f"unix:{tmp_path}/shop.sock", addresses=trusted)
    assert client.codes(2, metadata=[("x-forwarded-for", "192.0.2.1")]) == [OK, REFUSED]
    assert client.codes(1, metadata=[("x-forwarded-for", "192.0.2.2")]) == [OK]


@pytest.mark.parametrize("value", ["192.0.2.1", "?", ",,,", "[::", "a" * 4_000, '"', "1.1.1.1, x"])
def test_what_a_client_says_of_its_address_is_not_believed(serve: Serve, value: str) -> None:
    client = serve("2/hour")
    names = ("x-forwarded-for", "forwarded", "x-real-ip")
    assert [client.place(metadata=[(name, value)]).code.name for name in names] == [
        OK,
        OK,
        REFUSED,
    ]


@pytest.mark.parametrize("value", ["?", ",,,", "[::", "a" * 4_000, '"', ""])
def test_a_broken_word_of_a_trusted_proxy_counts_for_the_proxy(serve: Serve, value: str) -> None:
    trusted = AddressSettings(trusted_proxies=("127.0.0.1",), header="X-Forwarded-For")
    client = serve("1/hour", addresses=trusted)
    assert client.codes(2, metadata=[("x-forwarded-for", value)]) == [OK, REFUSED]
    assert client.codes(1, metadata=[("x-forwarded-for", "192.0.2.2")]) == [OK]


def test_counts_by_metadata_and_refuses_who_sends_none_or_two(serve: Serve) -> None:
    client = serve(RateLimit("1/hour", key=header("X-Api-Key")))
    for key in ("one-secret", "two-secret"):
        assert client.codes(2, metadata=[("x-api-key", key)]) == [OK, REFUSED]
    nobody = client.place()
    assert nobody.code.name == "UNAUTHENTICATED"
    assert nobody.detail == "This request has to say what it is counted by: X-Api-Key."
    assert nobody.trailing["grpc-retry-pushback-ms"] == "-1"
    assert nobody.status.details == []
    twice = client.place(metadata=[("x-api-key", "three"), ("x-api-key", "four")])
    assert twice.code.name == "UNAUTHENTICATED"
    refused = client.place(metadata=[("x-api-key", "one-secret")])
    assert b"one-secret" not in refused.status.SerializeToString()
    assert "one-secret" not in f"{refused.detail}{refused.trailing}"


def test_counts_each_method_apart_by_its_name(serve: Serve) -> None:
    client = serve(RateLimit("1/hour", key=("ip", "route")))
    assert [client.codes(2), client.codes(2, b"tea", OTHER)] == [[OK, REFUSED]] * 2


def test_counts_by_a_function_of_the_call(serve: Serve) -> None:
    def tenant(call: Any) -> str:
        assert call.method == PLACE
        return str(call.metadata["tenant"])

    client = serve(RateLimit("1/hour", key=tenant))
    for name in ("one", "two"):
        assert client.codes(2, metadata=[("tenant", name)]) == [OK, REFUSED]


def raising(call: Any) -> str:
    raise KeyError("one-secret")


def nothing(call: Any) -> None:
    return None


def number(call: Any) -> Any:
    return 42


WRONG = [
    (raising, "raising raised KeyError"),
    (nothing, "nothing returned None, and not text"),
    (number, "number returned int, and not text"),
]


@pytest.mark.parametrize(("function", "why"), WRONG, ids=["raises", "none", "int"])
def test_refuses_calls_whose_key_function_gives_no_key(
    serve: Serve, function: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(RateLimit("1/hour", key=function))
    for refused in (client.place(), client.watch(b"a")):
        assert refused.code.name == "UNAUTHENTICATED"
        assert function.__name__ not in refused.detail
        assert "one-secret" not in refused.detail
    assert client.shop.seen == []
    assert caplog.text.count(f"the key function {__name__}.{why}") == 1


@pytest.mark.parametrize("missing", ["deny", "skip"])
def test_an_abort_in_a_key_function_ends_the_call(serve: Serve, missing: Any) -> None:
    def abort(call: Any) -> Any:
        return call.context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no tenant")

    client = serve(RateLimit("1/hour", key=abort, missing=missing))
    for ended in (client.place(), client.watch(b"a")):
        assert (ended.code.name, ended.detail) == ("FAILED_PRECONDITION", "no tenant")
    assert client.shop.seen == []


@pytest.mark.parametrize(("function", "why"), WRONG, ids=["raises", "none", "int"])
def test_who_has_no_key_is_let_pass_or_refused_as_the_limit_says(
    serve: Serve, function: Any, why: str
) -> None:
    skipping = serve(RateLimit("1/hour", key=function, missing="skip"))
    assert skipping.codes(3) == [OK, OK, OK]
    denying = serve(RateLimit("1/hour", key=function, missing="deny"))
    assert denying.codes(2) == ["UNAUTHENTICATED"] * 2
    assert denying.shop.seen == []


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server, and two clients: one known by a URI, the other by its name alone."""
    folder = tmp_path_factory.mktemp("tls")
    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    openssl(folder, f"{new} -subj /CN=authority -keyout ca.key -out ca.crt")
    signed = f"{new} -CA ca.crt -CAkey ca.key"
    for name, alternative in (
        ("localhost", "DNS:localhost"),
        ("alice", "URI:spiffe://shop/alice,DNS:alice.example"),
        ("bob", None),
    ):
        more = f" -addext subjectAltName={alternative}" if alternative else ""
        openssl(folder, f"{signed} -subj /CN={name} -keyout {name}.key -out {name}.crt{more}")
    return folder


def openssl(folder: Path, words: str) -> None:
    subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)


@contextmanager
def shopping(where: str, folder: Path, name: str | None, shop: Any) -> Iterator[Shopper]:
    pair = [(folder / f"{name}.{end}").read_bytes() for end in ("key", "crt")] if name else []
    credentials = grpc.ssl_channel_credentials((folder / "ca.crt").read_bytes(), *pair)
    port = where.rpartition(":")[2]
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        yield Shopper(channel, shop)


def secured(folder: Path, *, asks: bool) -> grpc.ServerCredentials:
    pair = ((folder / "localhost.key").read_bytes(), (folder / "localhost.crt").read_bytes())
    authority = (folder / "ca.crt").read_bytes()
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=asks)


def test_counts_by_who_the_certificate_of_a_client_names(
    kind: Kind, sources: Sources, certificates: Path
) -> None:
    seen: list[str | None] = []

    def is_exempt(call: Any) -> bool:
        seen.append(CallRequest(manner_of({}), call).user)
        return False

    limit = RateLimit("1/hour", key="user", exempt_when=is_exempt)
    with serving(kind, sources.limiter(), limit, credentials=secured(certificates, asks=True)) as (
        where,
        shop,
    ):
        for name in ("alice", "bob"):
            with shopping(where, certificates, name, shop) as client:
                assert client.codes(2) == [OK, REFUSED]
    assert seen == ["spiffe://shop/alice"] * 2 + ["bob"] * 2


def test_who_shows_no_certificate_is_nobody(
    kind: Kind, sources: Sources, certificates: Path
) -> None:
    limits = {
        PLACE: RateLimit("1/hour", key="user"),
        OTHER: RateLimit("1/hour", key=either("user", "ip")),
    }
    with (
        serving(
            kind,
            sources.limiter(),
            limits_by_method=limits,
            credentials=secured(certificates, asks=False),
        ) as (where, shop),
        shopping(where, certificates, None, shop) as client,
    ):
        assert client.codes(1) == ["UNAUTHENTICATED"]
        assert client.codes(2, b"tea", OTHER) == [OK, REFUSED]
