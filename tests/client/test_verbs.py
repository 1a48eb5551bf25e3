"""Every verb, of both clients, against a real service."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from limen import (
    AsyncClient,
    Client,
    ConfigurationError,
    InvalidInput,
    InvalidLimit,
    LimenError,
    Limit,
)
from limen.client import ServiceRefused
from tests.client.conftest import Connect
from tests.client.drivers import Threaded, somebody
from tests.client.raw import raw, right
from tests.client.services import Served, served
from tests.waiting import wait_until

TOKEN = "canary-c4f1a7e2d9b83065"


def test_decides_by_the_rules(client: Threaded) -> None:
    facts = somebody()
    said = [client.decide(facts) for _ in range(11)]
    assert [bool(verdict) for verdict in said] == [True] * 10 + [False]
    assert [verdict.remaining for verdict in said[:3]] == [9, 8, 7]
    refused = said[-1]
    assert refused.rule == "search-per-user"
    assert refused.limit == "10/minute"
    assert refused.retry_after is not None
    assert 0 < refused.retry_after <= 60
    assert {verdict.source for verdict in said} == {"store"}
    assert not any(verdict.degraded for verdict in said)
    assert [part.mode for part in refused.parts] == ["enforce", "shadow"]


def test_a_cost_is_charged(client: Threaded) -> None:
    facts = somebody()
    assert client.decide(facts, cost=7).remaining == 3
    assert not client.decide(facts, cost=4)
    assert client.decide(facts, cost=3).remaining == 0


def test_decides_by_limits_of_ones_own(client: Threaded) -> None:
    key = somebody()["user"]
    verdict = client.check(key, "5/minute", Limit(3, 3600), cost=2)
    assert verdict
    assert verdict.rule is None
    assert [(part.limit, part.remaining) for part in verdict.parts] == [
        ("5/minute", 3),
        ("3/hour", 1),
    ]
    refused = client.check(key, "5/minute", "3/hour", cost=2)
    assert not refused
    assert refused.limit == "3/hour"
    assert refused.source == "store"


def test_peek_and_usage_charge_nothing(client: Threaded) -> None:
    facts = somebody()
    client.decide(facts)
    for _ in range(3):
        assert client.peek(facts).remaining == 9
        assert client.usage(facts).remaining == 9
    assert not client.peek(facts, cost=10)
    assert client.decide(facts).remaining == 8


def test_usage_takes_any_text(client: Threaded) -> None:
    facts = {"user": somebody()["user"] + " a&b=c/é%?#\n", "path": "/search"}
    client.decide(facts)
    assert client.usage(facts).remaining == 9


def test_a_refund_gives_back_once(client: Threaded) -> None:
    facts = somebody()
    verdict = client.decide(facts, cost=4)
    assert client.refund(verdict)
    assert client.usage(facts).remaining == 10
    assert not client.refund(verdict.receipt)
    assert client.usage(facts).remaining == 10


def test_what_was_refused_has_nothing_to_give_back(client: Threaded) -> None:
    facts = somebody()
    verdict = client.decide(facts, cost=11)
    assert not verdict
    assert client.refund(verdict) is False
    assert client.settle(verdict, 3) is False


def test_settles_by_number_and_by_attribute(client: Threaded) -> None:
    facts = {**somebody("/llm"), "tokens": "600"}
    verdict = client.decide(facts, cost=1)
    assert client.settle(verdict.receipt, {"tokens": 731})
    left = {part.rule: part.remaining for part in client.usage(facts).parts}
    assert left == {"tokens-per-user": 269, "asked-per-user": 499}

    facts = {**somebody("/llm"), "tokens": "600"}
    verdict = client.decide(facts, cost=100)
    assert client.settle(verdict, 40)
    left = {part.rule: part.remaining for part in client.usage(facts).parts}
    assert left == {"tokens-per-user": 400, "asked-per-user": 460}


def test_decides_many_in_one_call(client: Threaded, service: Served) -> None:
    facts = somebody()
    before = service.calls()
    said = client.decide_many([facts] * 25)
    assert service.calls() - before == 2  # one, and the question before
    assert [bool(verdict) for verdict in said] == [True] * 10 + [False] * 15
    assert client.decide_many([]) == []


def test_a_long_list_goes_in_several_calls(client: Threaded, service: Served) -> None:
    facts = somebody()
    before = service.calls()
    said = client.decide_many([facts] * 2_500)
    assert service.calls() - before == 4
    assert sum(bool(verdict) for verdict in said) == 10
    assert {verdict.source for verdict in said} == {"store"}


def test_a_list_that_is_too_long_in_bytes_goes_in_several_calls(client: Threaded) -> None:
    facts = {**somebody(), "referer": "x" * 4_000}
    said = client.decide_many([facts] * 400)
    assert sum(bool(verdict) for verdict in said) == 10
    assert {verdict.source for verdict in said} == {"store"}


def test_holds_a_slot(client: Threaded) -> None:
    facts = somebody("/export")
    with client.slot(facts) as slot:
        assert slot.verdict is not None
        assert slot.verdict
        with client.slot(facts):
            with pytest.raises(ServiceRefused, match="refused by rule exports-at-once") as refused:
                client.slot(facts).__enter__()
            assert not refused.value.verdict
            again = pickle.loads(pickle.dumps(refused.value))
            assert again.verdict == refused.value.verdict
        with client.slot(facts):
            pass
    assert not isinstance(refused.value, ValueError)
    assert isinstance(refused.value, LimenError)


def test_a_slot_is_renewed_while_it_is_held(client: Threaded) -> None:
    facts = somebody("/export")
    with client.slot(facts), client.slot(facts):
        client.pause(1.6)  # longer than the lease
        assert not client.usage(facts)
    assert client.usage(facts)


def test_a_slot_can_be_held_by_hand(client: Threaded) -> None:
    slot = client.slot(somebody("/export"))
    assert not slot.renew()
    assert not slot.release()
    assert slot.acquire()
    with pytest.raises(InvalidInput, match="held already"):
        slot.acquire()
    assert slot.renew()
    assert slot.release()
    assert not slot.release()


def test_a_slot_where_no_rule_asks_for_one_is_a_decision(client: Threaded) -> None:
    facts = somebody()
    with client.slot(facts) as slot:
        assert slot.verdict is not None
        assert slot.verdict.remaining == 9


BAD = [
    (lambda c: c.decide({"user": 42}), "attribute 'user' must be text, got int"),
    (lambda c: c.decide({"user": "\ud800"}), "attribute 'user' is not valid Unicode"),
    (lambda c: c.decide("user"), "attributes must be a mapping"),
    (lambda c: c.decide({"": "x"}), "the name of an attribute must be text of 1 to 100"),
    (lambda c: c.decide({"user": "x" * 5_000}), "attribute 'user' is longer than 4,096"),
    (lambda c: c.decide({str(n): "x" for n in range(101)}), "at most 100 attributes, got 101"),
    (lambda c: c.decide({}, cost=-1), "cost must be a whole number"),
    (lambda c: c.decide({}, cost=float("nan")), "cost must be a whole number"),
    (lambda c: c.decide({}, cost=2**53), "cost must be a whole number"),
    (lambda c: c.decide_many([{}, {"a": 1}]), r"\[1\]: attribute 'a' must be text"),
    (lambda c: c.decide_many({}), "expected a list of attributes"),
    (lambda c: c.check("", "1/s"), "key must be non-empty"),
    (lambda c: c.check(b"\xff", "1/s"), "a service takes keys of up to"),
    (lambda c: c.check("k"), "expected at least one limit"),
    (lambda c: c.check("k", Limit(1, 1, name="n")), "cannot tell limits apart by name"),
    (lambda c: c.refund("forged"), "this receipt was not written here"),
    (lambda c: c.refund(None), "expected a Verdict or its receipt"),
    (lambda c: c.settle("forged", -1), "actual_cost must be a whole number"),
    (lambda c: c.settle("forged", {}), "expected the cost of 1 to 100 attributes"),
    (lambda c: c.settle("forged", {"tokens": "7"}), "the cost 'tokens' must be a whole number"),
    (lambda c: c.slot({"user": 1}), "attribute 'user' must be text"),
    (lambda c: c.decide({"user": "1", "path": "/llm", "tokens": "many"}), "tokens"),
]


@pytest.mark.parametrize(("call", "reason"), BAD)
def test_bad_input_is_an_error_that_says_so(client: Threaded, call: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        call(client)


def test_a_limit_that_is_not_understood_is_an_error(client: Threaded) -> None:
    with pytest.raises(InvalidLimit):
        client.check("k", "many per day")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"url": "localhost:8080"}, "must be like http://localhost:8080"),
        ({"url": "ftp://localhost"}, "must be like http://localhost:8080"),
        ({"url": "http://host:99999"}, "must be like http://localhost:8080"),
        ({"url": "http://host/?a=b"}, "must be like http://localhost:8080"),
        ({"url": "http://a b/"}, "must be like http://localhost:8080"),
        ({"url": "http://"}, "must be like http://localhost:8080"),
        ({"url": "http://my..host:8080"}, "must be like http://localhost:8080"),
        ({"url": f"http://{'a' * 64}.example"}, "must be like http://localhost:8080"),
        ({"url": f"http://{'a.' * 127}"}, "must be like http://localhost:8080"),
        ({"url": 8080}, "must be text"),
        ({"url": f"http://ann:{TOKEN}@host"}, "must not hold a login"),
        ({"token": f"{TOKEN}\r\nX: y"}, "token must be text of printable ASCII"),
        ({"token": ""}, "token must be text of printable ASCII"),
        ({"timeout": 0}, "timeout must be seconds above 0"),
        ({"timeout": float("nan")}, "timeout must be seconds above 0"),
        ({"on_error": "shut"}, "on_error must be local, open or closed"),
        ({"instances": 0}, "instances must be a whole number from 1"),
        ({"ssl_context": object()}, "ssl_context must be an ssl.SSLContext"),
    ],
)
@pytest.mark.parametrize("made", [Client, AsyncClient])
def test_a_client_that_is_put_together_wrongly_says_so(
    made: Any, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason) as error:
        made(**{"url": "http://localhost:8080", **settings})
    assert TOKEN not in str(error.value)


@pytest.mark.parametrize("made", [Client, AsyncClient])
def test_an_address_may_have_a_path_and_be_of_ipv6(made: Any) -> None:
    assert repr(made("https://[::1]/limits/")).endswith("Client of https://[::1]/limits>")
    assert repr(made("http://localhost", token=TOKEN)).endswith("Client of http://localhost>")


@pytest.mark.parametrize("made", [Client, AsyncClient])
@pytest.mark.parametrize(
    "url", [" http://host:8080\n", "http://host:8080?", "http://host:8080/#", "http://host:8080/?#"]
)
def test_an_address_may_have_white_space_around_and_empty_parts(made: Any, url: str) -> None:
    assert repr(made(url)).endswith("Client of http://host:8080>")


@pytest.mark.parametrize("host", ["my.host.", "a" * 63 + ".example", "my_host", "127.0.0.1"])
def test_labels_of_a_host_have_up_to_63_characters(host: str) -> None:
    assert repr(Client(f"http://{host}")).endswith(f"Client of http://{host}>")


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("closed")
    with served(folder, "auth.checks=token", f"auth.check_token={TOKEN}") as started:
        yield started


def test_asks_with_a_token(connect: Connect, closed: Served) -> None:
    assert connect(closed.url, token=TOKEN, timeout=5).decide(somebody()).source == "store"


@pytest.mark.parametrize("token", [None, "wrong-0123456789abcdef"])
def test_a_wrong_token_is_raised_and_never_shown(
    connect: Connect, closed: Served, token: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(closed.url, token=token, timeout=5)
    facts = somebody("/export")
    with caplog.at_level(logging.DEBUG):
        for verb in (
            lambda: client.decide(facts),
            lambda: client.check("k", "1/s"),
            lambda: client.usage(facts),
            lambda: client.decide_many([facts]),
            lambda: client.refund("receipt"),
            lambda: client.slot(facts).acquire(),
        ):
            with pytest.raises(ConfigurationError, match="refuses the token") as error:
                verb()
            assert str(token) not in str(error.value) or token is None
    assert str(token) not in caplog.text
    assert token is None or token not in repr(client.client) + repr(vars(client.client))


def test_no_packages_are_needed() -> None:
    code = (
        "import sys, limen; print(sorted({name.partition('.')[0] for name in sys.modules} & "
        "{'redis', 'httpx', 'aiohttp', 'uvicorn', 'fastapi', 'pydantic', 'yaml'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_nothing_is_left_open(connect: Connect, service: Served) -> None:
    client = connect(service.url, timeout=5)
    client.together([lambda: client.decide(somebody())] * 64)
    client.together([lambda: client.usage(somebody())] * 64)
    assert _connections(service.port)
    client.close()
    client.pause(0.05)
    wait_until(lambda: not _connections(service.port), interval_s=0.05)


def test_a_connection_in_use_is_closed_behind_its_call() -> None:
    def answer(head: bytes, body: bytes) -> bytes:
        time.sleep(0.1)
        return right(head, body)

    with raw(answer) as server:
        client = Client(server.url, timeout=5)
        caller = threading.Thread(target=lambda: client.decide(somebody()))
        caller.start()
        wait_until(lambda: server.asked, interval_s=0.001)
        client.close()
        caller.join()
        assert not _connections(int(server.url.rpartition(":")[2]))


def _connections(port: int) -> list[str]:
    """Return the connections of this machine to a port, that have not been closed."""
    lines = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    established = "01"
    return [
        line
        for line in lines.splitlines()
        if (fields := line.split())[2].endswith(f":{port:04X}") and fields[3] == established
    ]
