"""What a client makes of answers that are late, broken, or of somebody else."""

from __future__ import annotations

import logging
import time

import pytest

from limen import ConfigurationError, InvalidInput
from limen._internal.http1 import Garbled, Reader, Response
from limen.backends.circuit_breaker import FAILURES
from tests.client.conftest import Connect
from tests.client.drivers import Blocking, somebody
from tests.client.raw import chunked, problem, questions, raw, response, right, verdicts

TOKEN = "canary-0d5b8c11e7f24a96"


@pytest.mark.parametrize(
    "answer",
    [
        right,
        lambda _, body: chunked(verdicts(body)),
        lambda _, body: b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + verdicts(body),
        lambda _, body: response(verdicts(body)).replace(b"1.1", b"1.0", 1),
        lambda _, body: response(verdicts(body).replace(b'"allowed"', b'"new":[1],"allowed"')),
    ],
    ids=["length", "chunks", "close", "http/1.0", "of a newer service"],
)
@pytest.mark.parametrize("size", [1, 2**20])
def test_understands_every_form_of_an_answer(connect: Connect, answer: object, size: int) -> None:
    with raw(answer, size=size) as server:  # type: ignore[arg-type]  # a table of functions
        client = connect(server.url, timeout=5)
        said = [client.decide(somebody()) for _ in range(3)]
        assert [verdict.source for verdict in said] == ["store"] * 3


GARBAGE = {
    "no http": b"+OK redis says hello\r\n" * 3,
    "another http": b"HTTP/2 200 OK\r\n\r\n",
    "a page": response(b"<html>welcome</html>", kind="text/html"),
    "another json": response(b'{"hello": "world"}'),
    "too few": response(b"[]"),
    "500": response(b"oops", "500 Internal Server Error"),
    "503 by us": problem("503 Service Unavailable", "shedding"),
    "302": b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n",
    "404 of another": response(b"nothing", "404 Not Found", "text/html"),
    "400 of another": response(b"bad", "400 Bad Request", "text/html"),
    "429 of a proxy": response(b"", "429 Too Many Requests"),
    "half of it": response(b"[{")[:-1] + b"HTTP/1.1 200 OK",
    "a huge length": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n[]",
    "bad chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n[]\r\n",
    "another coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n[]",
    "endless headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
    "a header that is none": b"HTTP/1.1 200 OK\r\nnothing\r\n\r\n",
    "upgrade": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
}


@pytest.mark.parametrize("reply", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_no_answer(
    connect: Connect, reply: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with raw(lambda *_: reply) as server, caplog.at_level(logging.WARNING):
        client = connect(server.url, timeout=30)
        began = time.monotonic()
        verdict = client.check("k", "1/minute")
        assert time.monotonic() - began < 20  # seen to be garbage, not waited for
        assert verdict
        assert verdict.source == "local"
        assert verdict.degraded
        assert not client.check("k", "1/minute")
        assert client.refund("a receipt") is False
        assert client.slot(somebody("/export")).acquire().source == "open"
    assert "did not answer" in caplog.text


@pytest.mark.parametrize("cut", [0, 1, 10, 40, 80, 120, 200])
def test_half_an_answer_is_none(connect: Connect, cut: int) -> None:
    def answer(head: bytes, body: bytes) -> bytes:
        whole = response(verdicts(body))
        assert len(whole) > 200
        return whole[:cut]

    for closes in (True, False):
        with raw(answer, closes=closes) as server:
            client = connect(server.url, timeout=30 if closes else 0.25)
            began = time.monotonic()
            assert client.check("k", "1/minute").source == "local"
            assert time.monotonic() - began < 20


def test_an_answer_byte_by_byte_is_cut_off_at_the_deadline(connect: Connect) -> None:
    with raw(right, pause_s=0.01, size=1) as server:
        client = connect(server.url, timeout=0.25)
        for _ in range(2):
            began = time.monotonic()
            assert client.decide(somebody()).source == "open"
            assert time.monotonic() - began > 0.2


def test_nobody_gets_the_answer_to_another(connect: Connect) -> None:
    """A server that says more than it was asked is not listened to any longer."""

    def answer(head: bytes, body: bytes) -> bytes:
        return response(verdicts(body)) + response(b"[1]")

    with raw(answer) as server:
        client = connect(server.url, timeout=1)
        for _ in range(5):
            assert client.decide(somebody()).source == "store"


@pytest.mark.parametrize("stands_still", [False, True])
def test_a_connection_that_the_service_closed_is_not_used_again(
    connect: Connect, stands_still: bool
) -> None:
    with raw(right, closes=True) as server:
        client = connect(server.url, timeout=5)
        for _ in range(2):
            assert client.decide(somebody()).source == "store"
            if stands_still:
                time.sleep(1.05)  # a loop does not run meanwhile, and hears of nothing
            else:
                client.pause(0.05)
        assert client.decide_many([somebody()])[0].source == "store"


def test_after_five_failures_the_service_is_left_alone_and_one_caller_tries(
    connect: Connect,
) -> None:
    with raw(lambda *_: b"") as server:
        client = connect(server.url, timeout=0.1)
        for _ in range(FAILURES):
            client.decide(somebody())
        began = time.monotonic()
        assert len(server.asked) == FAILURES
        client.together([lambda: client.decide(somebody())] * 200, 16)
        client.usage(somebody())
        # Nobody waited, and nobody asked; on a machine so slow that a second went by, one did.
        assert len(server.asked) - FAILURES <= time.monotonic() - began
        client.pause(began + 1.0 - time.monotonic())
        before = len(server.asked)
        client.together([lambda: client.decide(somebody())] * 200, 16)
        took = time.monotonic() - began - 1.0
        assert 1 <= len(server.asked) - before <= 1 + took
        server.answer = right
        while client.decide(somebody()).source != "store":
            assert time.monotonic() - began < 20
            client.pause(0.02)


def test_a_bad_item_is_told_and_the_others_are_asked_again(connect: Connect) -> None:
    """In the calls that tasks share; each thread makes a call of its own."""
    lists: list[int] = []

    def answer(head: bytes, body: bytes) -> bytes:
        if not lists:
            time.sleep(0.3)  # so that others gather
        asked = questions(body)
        lists.append(len(asked))
        for number, question in enumerate(asked):
            if question["attributes"]["user"].startswith("bad"):
                return problem("422 Unprocessable Entity", f"[{number}].cost: expected less")
        return right(head, body)

    with raw(answer) as server:
        client = connect(server.url, timeout=5)
        names = ["bad" if number % 8 == 3 else "good" for number in range(32)]
        said = client.together([lambda name=name: client.decide({"user": name}) for name in names])  # type: ignore[misc]
        for name, answer_ in zip(names, said, strict=True):
            if name == "bad":
                assert isinstance(answer_, InvalidInput)
                assert str(answer_) == "cost: expected less"
            else:
                assert answer_.source == "store"
        assert max(lists) > 8 if isinstance(client, Blocking) else max(lists) == 1


@pytest.mark.parametrize(
    "reason",
    [
        problem("413 Content Too Large", "the body is longer than 1,024 bytes"),
        problem("422 Unprocessable Entity", "expected array of length <= 4"),
    ],
    ids=["bytes", "items"],
)
def test_a_list_that_is_too_much_for_the_service_is_halved(connect: Connect, reason: bytes) -> None:
    def answer(head: bytes, body: bytes) -> bytes:
        return right(head, body) if len(questions(body)) <= 4 else reason

    with raw(answer) as server:
        client = connect(server.url, timeout=5)
        said = client.decide_many([somebody() for _ in range(30)])
        assert [verdict.source for verdict in said] == ["store"] * 30
        numbers = [len(questions(body)) for body in server.asked]
        assert sum(number for number in numbers if number <= 4) == 30


def test_a_bad_item_of_a_list_is_named_by_its_number(connect: Connect) -> None:
    def answer(head: bytes, body: bytes) -> bytes:
        asked = questions(body)
        if len(asked) > 100:
            return problem("413 Content Too Large", "too much")
        for number, question in enumerate(asked):
            if question["attributes"]["user"] == "bad":
                return problem("422 Unprocessable Entity", f"[{number}]: no such thing")
        return right(head, body)

    with raw(answer) as server:
        client = connect(server.url, timeout=5)
        requests = [{"user": "good"}] * 1_234 + [{"user": "bad"}] + [{"user": "good"}] * 100
        with pytest.raises(InvalidInput, match=r"^\[1234\]: no such thing$"):
            client.decide_many(requests)


def test_a_service_that_tells_the_token_is_not_quoted(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    answers = {
        "401 Unauthorized": ConfigurationError,
        "422 Unprocessable Entity": InvalidInput,
        "503 Service Unavailable": None,
    }
    for status, error in answers.items():
        with raw(lambda head, _, status=status: problem(status, head.decode())) as server:  # type: ignore[misc]
            client = connect(server.url, token=TOKEN, timeout=1)
            if error is None:
                client.decide(somebody())
            else:
                with pytest.raises(error) as raised:
                    client.decide(somebody())
                assert "***" in str(raised.value)
                assert TOKEN not in str(raised.value)
    assert "***" in caplog.text
    assert TOKEN not in caplog.text


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: a/b; c=d\r\nContent-Length: 3\r\n\r\nabc"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_reads_one_response_after_the_other_however_it_comes(size: int) -> None:
    reader, found = Reader(), []
    data = WHOLE + chunked(b"defgh") + b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
    for each in (WHOLE, chunked(b"defgh"), data[-46:]):
        for first in range(0, len(each), size):
            response_ = reader.feed(each[first : first + size])
            if response_ is not None:
                found.append(response_)
    assert found == [
        Response(200, "a/b", b"abc", True),
        Response(200, "", b"defgh", True),
        Response(204, "", b"", False),
    ]
    with pytest.raises(Garbled, match="closed before the answer was complete"):
        reader.feed(b"")
