"""How alerts reach people: in the log, and grouped into few messages."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from limen.observe.alerts import Alert, Judge, Thresholds
from limen.observe.slices import RuleSlice, Slice
from limen.server.insight.deliver import MAX_LINES, MAX_WAITING, Delivery
from limen.server.insight.webhook import Webhook
from limen.server.settings.webhook_url import valid_webhook
from limen.testing import ManualClock

KEY = "sk_live_4242"
PATH = "T024BE7LD"
NOW = 1_790_000_000.0
NAMESPACE = "shop"


class Receiver:
    """A real server; `statuses` are its next answers, and 200 after those."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self.port = 0

    @property
    def webhook(self) -> Webhook:
        return Webhook(valid_webhook(f"http://127.0.0.1:{self.port}/{PATH}"), private=True)


@contextmanager
def serving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.bodies.append(json.loads(body))
            self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serving() as found:
        yield found


class Turns:
    """A delivery whose clock is moved by hand, as the tick would move it."""

    def __init__(self, carrier: Any) -> None:
        self.clock = ManualClock(NOW)
        self.delivery = Delivery(NAMESPACE, carrier, clock=self.clock)

    def turn(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.delivery.send_due(self.clock.time_ns() / 1e9)


def alert(name: str, *, ended: bool = False, top: tuple[tuple[str, int], ...] = ()) -> Alert:
    return Alert(
        id=f"refusals-{name}",
        kind="refusals",
        rule=name,
        started=NOW,
        ended=NOW + 9 if ended else None,
        value=0.75,
        worst=0.9,
        threshold=0.5,
        top=top or ((KEY, 7),),
        text=f"{name} refuses 75 % of its requests",
    )


class Broken:
    """Takes nothing, and raises."""

    def send(self, body: bytes, now: float) -> str | None:
        raise RuntimeError(f"https://127.0.0.1/{PATH}")


# The log


def test_a_begin_is_a_warning_and_an_end_an_info_each_one_line_without_keys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "limen.alerts")
    delivery = Delivery(NAMESPACE)
    delivery.deliver([alert("search"), alert("login", ended=True)])
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "alert began: search refuses 75 % of its requests"),
        ("INFO", "alert ended: login refuses 75 % of its requests"),
    ]
    assert {each.name for each in caplog.records} == {"limen.alerts"}
    assert all(KEY not in str(each.__dict__) for each in caplog.records)


def test_those_that_are_not_told_one_by_one_are_logged_as_a_number_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    delivery = Delivery(NAMESPACE)
    for more in (0, 37, 38, 5, 0, 2):
        delivery.deliver([], more)
    assert caplog.messages == [
        "37 more alerts are not told one by one",
        "2 more alerts are not told one by one",
    ]


def test_without_a_webhook_nothing_waits() -> None:
    delivery = Delivery(NAMESPACE)
    delivery.deliver([alert("search")], 5)
    assert not delivery.is_waiting
    delivery.send_due(NOW)
    assert (delivery.sent, delivery.failed, delivery.dropped) == (0, 0, 0)


# Messages


def test_a_message_tells_all_that_is_known(receiver: Receiver) -> None:
    turns = Turns(receiver.webhook)
    top = ((KEY, 7), ("h:0123", 3))
    turns.delivery.deliver([alert("search", top=top), alert("login", ended=True)], 3)
    assert turns.delivery.is_waiting
    turns.turn()
    assert receiver.bodies == [
        {
            "service": "limen",
            "host": socket.gethostname(),
            "namespace": "shop",
            "sent_at": "2026-09-21T14:13:20+00:00",
            "text": (
                f"limen (shop) on {socket.gethostname()}\n"
                "began: search refuses 75 % of its requests\n"
                "ended: login refuses 75 % of its requests\n"
                "and 3 more"
            ),
            "began": [
                {
                    "id": "refusals-search",
                    "kind": "refusals",
                    "rule": "search",
                    "started": NOW,
                    "ended": None,
                    "value": 0.75,
                    "worst": 0.9,
                    "threshold": 0.5,
                    "top": [[KEY, 7], ["h:0123", 3]],
                    "text": "search refuses 75 % of its requests",
                }
            ],
            "ended": [receiver.bodies[0]["ended"][0]],
            "more": 3,
        }
    ]
    assert receiver.bodies[0]["ended"][0]["ended"] == NOW + 9
    assert KEY not in receiver.bodies[0]["text"]
    assert (turns.delivery.sent, turns.delivery.is_waiting) == (1, False)


def test_what_waits_goes_in_one_message_as_soon_as_one_may_go(receiver: Receiver) -> None:
    turns = Turns(receiver.webhook)
    turns.delivery.deliver([alert("a")])
    turns.turn()
    for name in "bcd":
        turns.delivery.deliver([alert(name)])
        turns.turn(3)
    assert len(receiver.bodies) == 1
    turns.turn(1)
    assert len(receiver.bodies) == 2
    assert [each["rule"] for each in receiver.bodies[1]["began"]] == ["b", "c", "d"]
    turns.turn(10)
    assert len(receiver.bodies) == 2


def test_at_most_thirty_messages_go_in_an_hour(receiver: Receiver) -> None:
    turns = Turns(receiver.webhook)
    for number in range(50):
        turns.delivery.deliver([alert(str(number))])
        turns.turn(12)
    assert 25 <= len(receiver.bodies) <= 30
    turns.turn(3_600)
    told = [each["rule"] for body in receiver.bodies for each in body["began"]]
    assert told == [str(number) for number in range(50)]


def test_what_began_and_ended_while_it_waited_is_told_once_as_ended(receiver: Receiver) -> None:
    turns = Turns(receiver.webhook)
    turns.delivery.deliver([alert("a"), alert("b")])
    turns.delivery.deliver([alert("a", ended=True)])
    turns.turn()
    (body,) = receiver.bodies
    assert [each["rule"] for each in body["began"]] == ["b"]
    assert [each["rule"] for each in body["ended"]] == ["a"]


def test_at_most_two_hundred_wait_and_the_rest_is_a_number(receiver: Receiver) -> None:
    turns = Turns(receiver.webhook)
    turns.delivery.deliver([alert(str(number)) for number in range(1_000)])
    # Those that wait can still end.
    turns.delivery.deliver([alert("0", ended=True), alert("999", ended=True)])
    turns.turn()
    (body,) = receiver.bodies
    assert (len(body["began"]), len(body["ended"])) == (MAX_WAITING - 1, 1)
    assert body["more"] == 801
    lines = body["text"].split("\n")
    assert len(lines) == MAX_LINES + 2
    assert lines[-1] == "and 981 more"
    turns.turn(10)
    assert len(receiver.bodies) == 1


# Failures


def test_a_message_that_failed_is_sent_again_as_it_was_with_what_came_later_behind_it(
    receiver: Receiver,
) -> None:
    receiver.statuses = [500, 503]
    turns = Turns(receiver.webhook)
    turns.delivery.deliver([alert("a")])
    turns.turn()
    turns.delivery.deliver([alert("b")])
    turns.turn(5)  # a broken receiver is not called more often
    assert len(receiver.bodies) == 1
    for _ in range(3):
        turns.turn(10)
    told = [[each["rule"] for each in body["began"]] for body in receiver.bodies]
    assert told == [["a"], ["a"], ["a"], ["b"]]
    delivery = turns.delivery
    assert (delivery.sent, delivery.failed, delivery.dropped) == (2, 2, 0)


def test_a_message_is_given_up_after_three_more_attempts_with_one_warning(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.statuses = [500] * 4
    turns = Turns(receiver.webhook)
    turns.delivery.deliver([alert("a")])
    caplog.clear()
    for _ in range(6):
        turns.turn(10)
    delivery = turns.delivery
    assert (delivery.sent, delivery.failed, delivery.dropped) == (0, 4, 1)
    assert len(receiver.bodies) == 4
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert warnings == [
        f"webhook at 127.0.0.1:{receiver.port}: it answered 500; "
        "given up after 4 times, with 1 in it"
    ]
    turns.delivery.deliver([alert("b")])
    turns.turn(10)
    assert delivery.sent == 1


def test_whatever_goes_wrong_nothing_is_raised_and_no_secret_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    turns = Turns(Broken())
    turns.delivery.deliver([alert("a")])
    for _ in range(4):
        turns.turn(10)
    # A key that cannot be written, and a time that is none.
    turns = Turns(Webhook(valid_webhook(f"http://10.255.255.1/{PATH}")))
    turns.delivery.deliver([alert("b", top=(("\ud800", 1),))])
    turns.turn()
    turns.clock.advance(10)
    turns.delivery.send_due(float("nan"))
    assert turns.delivery.failed == 2
    assert "RuntimeError" in caplog.text
    assert PATH not in caplog.text
    assert KEY not in caplog.text


def test_never_are_two_sent_at_a_time() -> None:
    class Slow:
        def __init__(self) -> None:
            self.inside, self.release = threading.Event(), threading.Event()
            self.calls = 0

        def send(self, body: bytes, now: float) -> str | None:
            self.calls += 1
            self.inside.set()
            self.release.wait(20)
            return None

    slow = Slow()
    turns = Turns(slow)
    turns.delivery.deliver([alert("a")])
    thread = threading.Thread(target=turns.turn)
    thread.start()
    try:
        assert slow.inside.wait(20)
        # While one is under way others can be told of, and do not wait for it.
        turns.delivery.deliver([alert("b")])
        turns.turn(3_600)
        assert slow.calls == 1
    finally:
        slow.release.set()
        thread.join()
    turns.turn(10)
    assert (slow.calls, turns.delivery.sent) == (2, 2)


def test_alerts_of_a_judge_arrive(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    turns, judge = Turns(receiver.webhook), Judge(Thresholds())
    burst = RuleSlice(100, 900, top_denied=((KEY, 900),))
    busy = Slice(int(NOW), 10, 100, 900, 0, (), (), {"search": burst})
    calm = Slice(int(NOW), 10, 0, 0, 0, (), (), {})
    for second, slice_ in enumerate([busy] * 3 + [calm] * 20):
        turns.delivery.deliver(judge.judge(slice_, NOW + second), judge.more)
        turns.turn(1)
    first, second_ = receiver.bodies
    assert [each["kind"] for each in first["began"]] == ["refusals", "key"]
    assert [each["id"] for each in second_["ended"]] == [each["id"] for each in first["began"]]
    assert second_["ended"][0]["ended"] == NOW + 8
    assert len(caplog.messages) == 4
    assert KEY not in caplog.text
    turns.delivery.close()
