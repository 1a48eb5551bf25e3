"""What gateways do when limen is stopped, slow, or says what nobody understands.

They do what the file promises, within a moment, and no longer than it lasts.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.gateways.gateways import (
    GUARDED,
    NOISY,
    PER_ADDRESS,
    SLOW,
    STARTING,
    STOPPED,
    TOKEN,
    UNSURE,
    WAITS_S,
    Gateway,
)
from tests.gateways.places import new_address
from tests.server.product import Product, product
from tests.servers import HOST
from tests.waiting import generous

BODY = b"three pieces" * 10_000
SOON_S = generous(WAITS_S)


@pytest.mark.parametrize("ailment", [STOPPED, SLOW, NOISY])
def test_passes_or_refuses_as_the_file_says(gateway: Gateway, ailment: str) -> None:
    client = new_address()
    assert gateway.ask(of=client).status == 200
    expected = (gateway.kind.open if gateway.fails_open else gateway.kind.closed)[ailment]
    with gateway.ailing(ailment):
        for _ in range(1 if ailment == SLOW else 3):
            answer = gateway.ask("/orders?a=1", of=client, method="POST", body=BODY)
            assert answer.seconds < SOON_S
            assert answer.status == (expected or 200)
            if expected is None:
                assert answer.reached["path"] == "/orders?a=1"
                assert bytes.fromhex(answer.reached["body"]) == BODY
            else:
                assert "x-app" not in answer.headers
    answers = [gateway.ask(of=client) for _ in range(PER_ADDRESS)]
    expected_now = [200] * (PER_ADDRESS - 1) + [429]
    assert [answer.status for answer in answers] == expected_now, "it counts again at once"


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A limen whose database accepts connections and never answers, so it has no rules yet."""
    settings = {"gateway__trusted_proxies": HOST, "auth__check_token": TOKEN}
    with socket.create_server((HOST, 0)) as silent:
        rules = f"postgresql://limen@{HOST}:{silent.getsockname()[1]}/limen"
        with product(tmp_path_factory.mktemp("starting"), rules=rules, **settings) as limen:
            assert limen.ask("/readyz").status == 503
            yield limen


def test_passes_or_refuses_while_limen_has_no_rules_yet(
    gateway: Gateway, starting: Product
) -> None:
    port = starting.grpc_port if gateway.kind.is_grpc else starting.port
    gateway.others[STARTING] = port
    expected = (gateway.kind.open if gateway.fails_open else gateway.kind.closed)[STARTING]
    with gateway.ailing(STARTING):
        answer = gateway.ask("/orders", of=new_address())
    assert answer.seconds < SOON_S
    assert answer.status == (expected or 200)
    assert ("x-app" in answer.headers) == (expected is None)


def test_while_the_store_is_away_each_rule_says_what_to_do(gateway: Gateway) -> None:
    client = new_address()
    with gateway.ailing(UNSURE):
        assert gateway.ask("/", of=client).status == 200, "limen counts for itself"
        refused = gateway.ask("/login", of=client)
    assert refused.status == gateway.kind.closed_rule
    assert "x-app" not in refused.headers
    assert int(refused.headers["retry-after"]) >= 1


def test_without_the_token_that_limen_wants(tokenless: Gateway) -> None:
    with tokenless.ailing(GUARDED):
        answer = tokenless.ask("/", of=new_address())
    assert answer.status == (tokenless.kind.unwelcome or 200)


TROUBLE = (
    "/" + "a" * 7_000,
    "/" + "b" * 20_000,
    "/" + "c" * 50_000,
    "/?" + "&" * 3_000,
    "/?" + "d=e&" * 1_500,
    "/%00",
    "/%ff%fe",
    "/a%0d%0ab",
    "/..%2f..",
    "/\xff\xfe",
    "/%",
    "/%zz",
    "//",
    "/;a=b",
    "*",
    "http://elsewhere.example/",
)
BAD_KEYS = ("\xff\xfe", "a" * 7_000, "a,b", '"', "=?utf-8?q?=ff?=", "%00", " ", "")


def test_a_client_does_not_pass_for_the_trouble_it_makes(gateway: Gateway) -> None:
    """What limen does not take is not what limen does not answer."""
    client = new_address()
    answers = [gateway.ask(path, of=client) for path in TROUBLE]
    answers += [gateway.ask("/", ("X-Api-Key", key), of=client) for key in BAD_KEYS]
    answers += [gateway.ask("/", ("Host", host), of=client) for host in ("", "\xff", "a" * 3_000)]
    answers += [gateway.ask(of=client) for _ in range(PER_ADDRESS)]
    assert max(answer.seconds for answer in answers) < SOON_S
    # Each that reached the application was counted, whatever it looked like.
    assert [answer.status for answer in answers if "x-app" in answer.headers] == [200] * PER_ADDRESS
    assert {answer.status for answer in answers} <= {200, 307, 400, 404, 414, 429, 431, 494}
