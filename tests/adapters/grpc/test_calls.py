"""Calls that are let in and calls that are not, over real sockets, in threads and on asyncio."""

from __future__ import annotations

import re
from typing import Any

import grpc
import pytest

from limen import Concurrency, Limit
from limen.adapters import RateLimit, header
from limen.adapters.grpc import CallResponse
from limen.testing import ManualClock
from tests.adapters.grpc.conftest import Serve, Sources
from tests.adapters.grpc.serving import Answer, QuotaFailure, RetryInfo
from tests.adapters.grpc.shop import CHAT, OTHER, PLACE, UPLOAD, WATCH
from tests.waiting import wait_until

OK, REFUSED = "OK", "RESOURCE_EXHAUSTED"


def test_tells_where_a_client_stands_and_refuses_who_is_over_it(
    serve: Serve, sources: Sources
) -> None:
    clock = ManualClock()
    client = serve("2/minute", source=sources.limiter(clock=clock))
    first, second, third = [client.place() for _ in range(3)]
    assert (first.code.name, first.messages) == (OK, [b"tea"])
    assert first.initial["ratelimit-policy"] == '"2/minute";q=2;w=60'
    assert first.initial["ratelimit"] == '"2/minute";r=1;t=60'
    assert first.trailing == {}
    assert second.initial["ratelimit"] == '"2/minute";r=0;t=60'
    sentence = "2 requests a minute are allowed for this address; come back in 60 s."
    assert (third.code.name, third.detail) == (REFUSED, sentence)
    assert third.initial == {}
    assert third.trailing["retry-after"] == "60"
    assert third.trailing["ratelimit-policy"] == '"2/minute";q=2;w=60'
    assert third.trailing["ratelimit"] == '"2/minute";r=0;t=60'
    assert third.trailing["grpc-retry-pushback-ms"] == "60000"
    assert third.status.message == sentence
    assert third.detail_of(RetryInfo).retry_delay.ToTimedelta().total_seconds() == 60
    (violation,) = third.detail_of(QuotaFailure).violations
    assert (violation.subject, violation.description) == ("2/minute", sentence)
    clock.advance(59.9985)
    refused = client.place()
    assert refused.trailing["grpc-retry-pushback-ms"] == "2"
    assert refused.detail_of(RetryInfo).retry_delay.ToMicroseconds() == 1_500
    clock.advance(0.0015)
    assert client.codes(3) == [OK, OK, REFUSED]


def test_a_refused_call_of_any_kind_never_reaches_its_handler(serve: Serve) -> None:
    client = serve(
        limits_by_method=dict.fromkeys((PLACE, UPLOAD, WATCH, CHAT), "1/hour"),
    )

    def called() -> list[Answer]:
        return [
            client.place(b"unary unary"),
            client.upload(b"stream", b"unary"),
            client.watch(b"unary-stream 2"),
            client.chat(b"stream-stream", b"2"),
        ]

    answers = called()
    assert [answer.messages for answer in answers] == [
        [b"unary unary"],
        [b"stream unary"],
        [b"unary-stream", b"2"],
        [b"stream-stream", b"2"],
    ]
    for answer in answers:
        assert answer.initial["ratelimit"] == '"1/hour";r=0;t=3600'
        assert "ratelimit" not in answer.trailing
    for answer in called():
        assert (answer.code.name, answer.messages) == (REFUSED, [])
        assert answer.trailing["ratelimit"].startswith('"1/hour";r=0;t=')
        assert answer.detail_of(RetryInfo) is not None
    assert len(client.shop.seen) == 6


def test_several_limits_are_all_or_nothing(serve: Serve, sources: Sources) -> None:
    clock = ManualClock()
    limits = ("1/second", "3/hour", RateLimit("5/day", key="everyone"))
    client = serve(*limits, source=sources.limiter(clock=clock))
    assert client.codes(4) == [OK, REFUSED, REFUSED, REFUSED]
    clock.advance(1)
    assert client.place().initial["ratelimit"] == (
        '"1/second";r=0;t=1, "3/hour";r=1;t=3600, "5/day";r=3;t=86400'
    )


def test_a_status_names_every_limit_that_refuses(serve: Serve) -> None:
    client = serve("1/minute", "1/hour", "9/hour token_bucket")
    client.place()
    violations = client.place().detail_of(QuotaFailure).violations
    assert [each.subject for each in violations] == ["1/minute", "1/hour"]


def test_a_refusal_by_very_many_limits_still_arrives(serve: Serve) -> None:
    limits = [Limit(1, 60 + number, name=f"{number:03}" * 26) for number in range(60)]
    client = serve(*limits)
    assert client.codes(2) == [OK, REFUSED]
    assert len(client.place().detail_of(QuotaFailure).violations) == 8


@pytest.mark.parametrize(
    "cost", [3, lambda call: 3 * len(call.metadata["weight"])], ids=["number", "function"]
)
def test_a_call_costs_what_it_is_said_to(serve: Serve, cost: Any) -> None:
    client = serve(RateLimit("7/hour", cost=cost))
    answers = [client.place(metadata=[("weight", "1")]) for _ in range(3)]
    assert [answer.code.name for answer in answers] == [OK, OK, REFUSED]
    assert answers[1].initial["ratelimit"].startswith('"7/hour";r=1;')


def test_who_is_exempt_is_not_limited_nor_told(serve: Serve) -> None:
    client = serve(RateLimit("1/hour", exempt_when=lambda call: "staff" in call.metadata))
    staff = [client.place(metadata=[("staff", "1")]) for _ in range(3)]
    assert [answer.code.name for answer in staff] == [OK, OK, OK]
    assert staff[0].initial == {}
    assert client.codes(2) == [OK, REFUSED]


def test_counts_calls_that_fail_in_one_way_and_no_others(serve: Serve) -> None:
    def is_not_found(response: CallResponse) -> bool:
        return response.code is grpc.StatusCode.NOT_FOUND

    client = serve(RateLimit("2/hour", deduct_when=is_not_found))
    assert client.codes(5) == [OK] * 5
    assert client.place().initial["ratelimit"].startswith('"2/hour";r=2;')
    assert client.place(b"fail").trailing["ratelimit"].startswith('"2/hour";r=2;')
    assert client.place(b"abort").trailing["ratelimit"].startswith('"2/hour";r=1;')
    assert client.watch(b"tea abort").code.name == "NOT_FOUND"
    assert client.codes(1) == [REFUSED]


def test_settles_what_the_last_message_says(serve: Serve) -> None:
    client = serve(RateLimit("100/hour", cost=10, settle=lambda response: int(response.message)))
    client.place(b"40")
    assert client.watch(b"1 2 30").messages == [b"1", b"2", b"30"]
    assert client.place(b"0").initial["ratelimit"].startswith('"100/hour";r=20;')


def test_settles_by_how_many_messages_were_sent(serve: Serve) -> None:
    ended: list[CallResponse] = []

    def sent(response: CallResponse) -> int:
        ended.append(response)
        return response.messages_sent

    client = serve(RateLimit("100/hour", settle=sent))
    client.watch(b"a b c")
    client.chat(b"a b", b"c abort")
    client.chat()
    assert [(response.code.name, response.messages_sent) for response in ended] == [
        (OK, 3),
        ("NOT_FOUND", 3),
        (OK, 0),
    ]
    assert client.place().initial["ratelimit"].startswith('"100/hour";r=93;')


def test_a_handler_says_what_its_call_cost(serve: Serve) -> None:
    client = serve("100/hour")
    client.place(b"cost 40")
    assert client.place().initial["ratelimit"].startswith('"100/hour";r=59;')


@pytest.mark.parametrize("end", ["answer", "failure"])
def test_a_slot_is_free_again_when_a_call_is_over(serve: Serve, end: str) -> None:
    client = serve(Concurrency(1, lease=600))
    stream = client.watching(b"a wait fail" if end == "failure" else b"a wait")
    assert next(stream) == b"a"
    assert client.shop.waiting.acquire(timeout=30)
    refused = client.place()
    assert refused.code.name == REFUSED
    assert "1 request at a time is allowed" in refused.detail
    client.shop.go_on.set()
    if end == "failure":
        with pytest.raises(grpc.RpcError):
            list(stream)
    else:
        assert list(stream) == []
    assert client.codes(3) == [OK, OK, OK]
    assert client.place(b"fail").code.name == "UNKNOWN"
    assert client.codes(1) == [OK]


@pytest.mark.parametrize("how", [b"tea", b"fail", b"abort", b"code"])
def test_who_has_an_answer_finds_the_slot_free(serve: Serve, how: bytes) -> None:
    client = serve(Concurrency(1, lease=600))
    for call in [client.place, client.watch, client.chat, client.upload] * 5:
        assert call(how).code.name != REFUSED


def test_a_slot_is_free_again_when_the_client_goes_away(serve: Serve) -> None:
    client = serve(Concurrency(1, lease=600))
    stream = client.watching(b" ".join([b"a"] * 1_000_000))
    assert next(stream) == b"a"
    assert client.codes(1) == [REFUSED]
    stream.cancel()
    # The stream itself is closed, too.
    assert client.shop.closed.acquire(timeout=30)
    wait_until(lambda: client.place().code.name == OK)


def test_how_a_call_ended_is_known_when_the_client_goes_away(serve: Serve) -> None:
    ended: list[tuple[CallResponse, bool]] = []

    def note(response: CallResponse) -> None:
        # The handler has tidied up by then.
        ended.append((response, client.shop.closed.acquire(blocking=False)))

    client = serve(RateLimit("10/hour", deduct_when=note))
    stream = client.watching(b"code " + b" ".join([b"a"] * 1_000_000))
    next(stream)
    stream.cancel()
    wait_until(lambda: bool(ended))
    ((response, is_closed),) = ended
    assert response.code is grpc.StatusCode.CANCELLED
    assert is_closed


def test_methods_have_limits_of_their_own_and_services_one_together(serve: Serve) -> None:
    client = serve(
        "10/hour",
        limits_by_method={
            PLACE: ["1/hour", RateLimit("5/day", key=header("x-api-key"))],
            "/shop.Orders/*": "3/hour",
        },
    )
    key = {"metadata": [("x-api-key", "secret")]}
    assert client.codes(2, **key) == [OK, REFUSED]
    assert [client.upload(b"a").code.name for _ in range(3)] == [OK, OK, REFUSED]
    assert client.codes(8, b"tea", OTHER) == [OK] * 7 + [REFUSED]


def test_the_same_limit_counts_two_methods_apart(serve: Serve) -> None:
    one = RateLimit("1/hour")
    client = serve(limits_by_method={PLACE: one, OTHER: one})
    assert [client.codes(2), client.codes(2, b"tea", OTHER)] == [[OK, REFUSED]] * 2


def test_a_scope_counts_methods_together(serve: Serve) -> None:
    one = RateLimit("1/hour", scope="writes")
    client = serve(limits_by_method={PLACE: one, OTHER: one})
    assert [client.codes(1), client.codes(1, b"tea", OTHER)] == [[OK], [REFUSED]]


def test_methods_and_services_can_be_exempt(serve: Serve) -> None:
    client = serve("1/hour", exempt=["/shop.Other/*", UPLOAD])
    assert client.codes(3, b"tea", OTHER) == [OK, OK, OK]
    assert [client.upload(b"a").code.name for _ in range(3)] == [OK, OK, OK]
    assert client.codes(2) == [OK, REFUSED]


def test_a_method_that_does_not_exist_is_charged_to_nobody(serve: Serve) -> None:
    client = serve("1/hour")
    assert client.codes(3, b"tea", "/shop.Orders/Nothing") == ["UNIMPLEMENTED"] * 3
    assert client.codes(2) == [OK, REFUSED]


def test_a_leaky_bucket_delays_a_call(serve: Serve, sources: Sources) -> None:
    clock = ManualClock()
    limit = Limit(10, 1, algorithm="leaky_bucket", burst=10)
    client = serve(limit, source=sources.limiter(clock=clock))
    before = clock.monotonic()
    assert client.codes(3) == [OK, OK, OK]
    assert clock.monotonic() - before == pytest.approx(0.2)


def test_a_call_that_would_begin_after_its_deadline_is_refused_at_once_and_charged_nothing(
    serve: Serve,
) -> None:
    client = serve(Limit(2, 7200, algorithm="leaky_bucket", name="orders"))
    assert client.codes(1) == [OK]
    for _ in range(2):
        late = client.place(timeout=30)
        assert late.code.name == REFUSED
        assert re.fullmatch(
            r"This call would have to wait 3(600|5\d\d(\.\d+)?) s, and its deadline is in "
            r"\d+(\.\d+)? s; come back later, or with more time\.",
            late.detail,
        )
        wait = late.detail_of(RetryInfo).retry_delay.ToTimedelta().total_seconds()
        assert 3_500 < wait < 3_600
        (violation,) = late.detail_of(QuotaFailure).violations
        assert violation.subject == "orders"
        assert late.trailing["ratelimit"].startswith('"orders";r=')
    assert client.shop.seen == [b"tea"]
