"""What a client may do, and what it gets: calls in every form that HTTP/2 has for them."""

from __future__ import annotations

import struct

import pytest
from hyperframe.frame import (
    DataFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.server.grpc.serving import Served
from tests.server.grpc.wire import (
    BIG,
    CANCEL,
    EACH,
    ECHO,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    NO_ERROR,
    REFUSED_STREAM,
    WAIT,
    Wire,
    as_bytes,
    continuation,
    data,
    headers,
    in_pieces,
    prefixed,
    raw,
)
from tests.waiting import wait_until

MANY = 300_000


def test_a_call_is_answered_as_grpc_has_it(either: Served) -> None:
    with Wire(either.port) as wire:
        wire.call(1, b"hello")
        answer = wire.read(1)
    assert answer.headers == [
        {":status": "200", "content-type": "application/grpc"},
        {"grpc-status": "0"},
    ]
    assert answer.messages == [b"hello"]
    assert (answer.is_ended, answer.reset) == (True, None)


# Columns: headers that differ; the HTTP status, the code of gRPC, what is said.
@pytest.mark.parametrize(
    ("more", "status", "code", "detail"),
    [
        ({":method": "GET"}, "405", None, ""),
        ({"content-type": "application/json"}, "415", None, ""),
        ({"content-type": "application/grpc-web"}, "415", None, ""),
        ({"content-type": "application/grpc+proto"}, "200", 0, ""),
        ({"content-type": "application/grpc;x=y"}, "200", 0, ""),
        ({":path": "/t/Nothing"}, "200", 12, "no such method"),
        ({":path": ""}, "200", 12, "no such method"),
        ({"grpc-encoding": "gzip"}, "200", 12, "compressed"),
        ({"grpc-encoding": "identity"}, "200", 0, ""),
        ({"grpc-timeout": "1S"}, "200", 0, ""),
        ({"grpc-timeout": "123456789S"}, "200", 3, "grpc-timeout"),
        ({"grpc-timeout": "soon"}, "200", 3, "grpc-timeout"),
    ],
)
def test_what_cannot_be_called_is_refused(
    served: Served, more: dict[str, str], status: str, code: int | None, detail: str
) -> None:
    for ends in (True, False):
        with Wire(served.port) as wire:
            block = wire.encoder.encode(list((headers() | more).items()))
            wire.send(HeadersFrame(1, block, flags=["END_HEADERS"]))
            if ends or code == 0:
                wire.send(data(1, prefixed(b"x"), ends=True))
            answer = wire.read(1)
            assert answer.headers[0][":status"] == status
            assert code is None or answer.status == code
            assert detail in answer.detail
            wire.call(3, b"goes on")
            assert wire.read(3).messages == [b"goes on"]
            assert answer.reset == (None if code == 0 else NO_ERROR)


# Columns: what the body of a call is.
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0\0",
        prefixed(b"x")[:-1],
        prefixed(b"x") + b"y",
        prefixed(b"x") * 2,
        b"\1\0\0\0\1x",
    ],
)
def test_what_is_not_one_message_is_an_invalid_argument(served: Served, body: bytes) -> None:
    with Wire(served.port) as wire:
        wire.send(wire.head(1), data(1, body, ends=True))
        answer = wire.read(1)
        assert (answer.status, answer.reset) == (3, None)
        assert "one message" in answer.detail
        wire.send(wire.head(3, ends=True))
        assert wire.read(3).status == 3


def test_an_empty_message_is_one(served: Served) -> None:
    with Wire(served.port) as wire:
        wire.call(1, b"")
        assert wire.read(1).messages == [b""]


@pytest.mark.parametrize("piece", [1, 3, 16_384])
def test_a_message_may_come_in_many_frames(either: Served, piece: int) -> None:
    message = bytes(range(256)) * (4 if piece < 16 else 1_000)
    body = prefixed(message)
    with Wire(either.port, {INITIAL_WINDOW_SIZE: 2**20}) as wire:
        wire.send(WindowUpdateFrame(0, 2**20), wire.head(1), *in_pieces(1, body, piece))
        assert wire.read(1).messages == [message]


def test_padding_priority_continuation_and_trailers_change_nothing(served: Served) -> None:
    with Wire(served.port) as wire:
        block = wire.encoder.encode(list(headers().items()))
        first = HeadersFrame(
            1, block[:4], flags=["PADDED", "PRIORITY"], pad_length=200, stream_weight=7
        )
        wire.send(first, continuation(1, b""), continuation(1, block[4:9]))
        wire.send(continuation(1, block[9:], ends=True))
        body = prefixed(b"padded")
        wire.send(DataFrame(1, body[:3], flags=["PADDED"], pad_length=255))
        wire.send(DataFrame(1, body[3:], flags=["PADDED"], pad_length=0))
        trailers = wire.encoder.encode([("x-checksum", "1")])
        wire.send(HeadersFrame(1, trailers, flags=["END_HEADERS", "END_STREAM"]))
        assert wire.read(1).messages == [b"padded"]


def test_every_call_gets_its_own_answer_however_they_are_interleaved(either: Served) -> None:
    numbers = range(1, 200, 2)
    with Wire(either.port) as wire:
        wire.send(*[wire.head(number) for number in numbers])
        for part in (slice(0, 2), slice(2, 6)):
            wire.send(*[data(n, prefixed(b"%d" % n)[part]) for n in reversed(numbers)])
        wire.send(*[data(n, prefixed(b"%d" % n)[6:], ends=True) for n in numbers])
        for number in numbers:
            assert wire.read(number).messages == [b"%d" % number]


def test_calls_that_are_answered_later_hold_up_nobody(served: Served) -> None:
    served.call(served.methods.go_on.clear)
    with Wire(served.port) as wire:
        wire.call(1, b"slow", WAIT)
        wire.call(3, b"quick")
        assert wire.read(3).messages == [b"quick"]
        assert not wire.answer(1).headers
        served.call(served.methods.go_on.set)
        assert wire.read(1).messages == [b"slow"]


def test_a_ping_is_answered_with_what_it_says(served: Served) -> None:
    with Wire(served.port) as wire:
        wire.send(PingFrame(0, b"01234567"), PingFrame(0, b"abcdefgh"))
        wire.until(lambda: wire.pings == [b"01234567", b"abcdefgh"])


def test_it_says_what_it_takes(served: Served) -> None:
    with Wire(served.port) as wire:
        wire.until(lambda: wire.acks == 1 and 0 in wire.widened)
        assert wire.settings == {3: 1_000, 4: 1_048_581, 6: 16_384}
        assert wire.widened[0] + 65_535 == 4 * 2**20


# Room for answers


def test_an_answer_that_is_larger_than_the_window_waits_for_room(either: Served) -> None:
    with Wire(either.port, {INITIAL_WINDOW_SIZE: 10}) as wire:
        wire.call(1, b"%d" % MANY, BIG)
        wire.until(lambda: len(wire.answer(1).data) == 10)
        wire.asks_again()
        assert len(wire.answer(1).data) == 10
        wire.send(WindowUpdateFrame(1, 90))
        wire.until(lambda: len(wire.answer(1).data) == 100)
        # From here on it is the window of the connection that there is no room in.
        wire.send(WindowUpdateFrame(1, 10 * MANY))
        wire.until(lambda: len(wire.answer(1).data) == 65_535)
        wire.asks_again()
        assert len(wire.answer(1).data) == 65_535
        wire.send(WindowUpdateFrame(0, 10 * MANY))
        answer = wire.read(1)
    assert [len(message) for message in answer.messages] == [MANY // 251 * 251 + 251]
    assert max(answer.sizes) <= 16_384
    assert answer.status == 0


def test_a_window_may_shrink_below_nothing(served: Served) -> None:
    with Wire(served.port, {INITIAL_WINDOW_SIZE: 1_000}) as wire:
        wire.call(1, b"%d" % MANY, BIG)
        wire.until(lambda: len(wire.answer(1).data) == 1_000)
        wire.send(SettingsFrame(0, {INITIAL_WINDOW_SIZE: 0}), WindowUpdateFrame(1, 999))
        wire.asks_again()
        assert len(wire.answer(1).data) == 1_000
        wire.send(WindowUpdateFrame(1, 2))
        wire.until(lambda: len(wire.answer(1).data) == 1_001)
        wire.send(SettingsFrame(0, {INITIAL_WINDOW_SIZE: 500}))
        wire.until(lambda: len(wire.answer(1).data) == 1_501)
        wire.send(RstStreamFrame(1, CANCEL))
        wire.call(3, b"x" * 400)
        assert wire.read(3).messages == [b"x" * 400]


def test_of_several_words_in_one_frame_of_settings_the_last_counts(served: Served) -> None:
    with Wire(served.port) as wire:
        payload = as_bytes(
            SettingsFrame(0, {INITIAL_WINDOW_SIZE: 7}), SettingsFrame(0, {INITIAL_WINDOW_SIZE: 9})
        )
        sizes = payload[9:15] + payload[24:30]
        wire.send(b"\0\0\x0c\4\0\0\0\0\0" + sizes)
        wire.call(1, b"%d" % MANY, BIG)
        wire.until(lambda: len(wire.answer(1).data) == 9)


def test_settings_are_thanked_for_before_they_are_made_use_of(served: Served) -> None:
    with Wire(served.port, {INITIAL_WINDOW_SIZE: 0}) as wire:
        wire.call(1, b"%d" % MANY, BIG)
        wire.until(lambda: bool(wire.answer(1).headers))
        before = len(wire.frames)
        wire.send(SettingsFrame(0, {INITIAL_WINDOW_SIZE: 9, MAX_FRAME_SIZE: 20_000}))
        wire.until(lambda: len(wire.answer(1).data) == 9)
        kinds = [type(each) for each in wire.frames[before:]]
        assert kinds == [SettingsFrame, DataFrame]


def test_frames_may_become_larger(served: Served) -> None:
    with Wire(served.port, {INITIAL_WINDOW_SIZE: 2**20, MAX_FRAME_SIZE: 2**20}) as wire:
        wire.send(WindowUpdateFrame(0, 2**20))
        wire.call(1, b"%d" % MANY, BIG)
        answer = wire.read(1)
    assert answer.sizes == [MANY // 251 * 251 + 251 + 5]


def test_one_call_without_room_holds_up_no_other(served: Served) -> None:
    with Wire(served.port, {INITIAL_WINDOW_SIZE: 1_000}) as wire:
        wire.call(1, b"%d" % MANY, BIG)
        wire.call(3, b"small")
        assert wire.read(3).messages == [b"small"]
        wire.send(WindowUpdateFrame(0, 2**20), WindowUpdateFrame(1, 2**20))
        assert len(wire.read(1).messages) == 1


def test_windows_that_are_small_are_not_held_against_a_client(served: Served) -> None:
    """It has to say so often that there is room again."""
    pair = as_bytes(WindowUpdateFrame(0, 1_000), WindowUpdateFrame(1, 1_000))
    with Wire(served.port, {INITIAL_WINDOW_SIZE: 1_000}) as wire:
        wire.call(1, b"7000000", BIG)
        for count in range(1, 7_100):
            wire.send(pair)
            if count % 50 == 0:
                wire.until(lambda: len(wire.answer(1).data) >= min(count * 1_000, 7_000_000))  # noqa: B023
        assert wire.read(1).status == 0
        assert wire.goaways == []


# The table of headers


@pytest.mark.parametrize("sizes", [[0], [100], [0, 4_096], [4_096, 30, 500]])
def test_a_table_that_becomes_smaller_is_confirmed(served: Served, sizes: list[int]) -> None:
    payload = b"".join(struct.pack(">HL", 1, size) for size in sizes)
    for first in (0, 3):
        with Wire(served.port) as wire:
            for number in range(1, 2 * first, 2):
                wire.call(number, b"x")
                assert wire.read(number).messages == [b"x"]
            wire.send(raw(4, 0, 0, payload))
            wire.until(lambda: wire.acks == 2)
            # This decoder raises, if it is not told by the next headers that its word is kept.
            wire.decoder.max_allowed_table_size = min(sizes)
            for number, path in ((11, ECHO), (13, "/t/Nothing"), (15, EACH), (17, ECHO)):
                wire.call(number, b"x", path)
                assert wire.read(number).status == (12 if number == 13 else 0)
            blocks = [each.data for each in wire.frames if isinstance(each, HeadersFrame)]
            assert [block[:1] == b"\x20" for block in blocks].count(True) == 1


def test_a_table_that_stays_as_it_is_is_not_spoken_of(served: Served) -> None:
    with Wire(served.port, {1: 4_096}) as wire:
        wire.send(SettingsFrame(0, {1: 65_536}))
        wire.call(1, b"x")
        wire.read(1)
        blocks = [each.data for each in wire.frames if isinstance(each, HeadersFrame)]
        assert [block[:1] for block in blocks] == [b"\x88", b"\x00"]


# Room for messages


def test_the_window_of_the_connection_is_given_back(served: Served) -> None:
    message = bytes(1_000_000)
    with Wire(served.port, {INITIAL_WINDOW_SIZE: 2**24}) as wire:
        wire.send(WindowUpdateFrame(0, 2**30))
        for number in range(1, 25, 2):  # 12 MB, thrice what fits at once
            wire.send(wire.head(number), *in_pieces(number, prefixed(message), 16_384))
            assert wire.read(number).messages == [message]
        assert wire.widened[0] > 10**7


@pytest.mark.parametrize("path", [ECHO, EACH, "/t/Nothing"])
def test_no_end_of_a_call_keeps_what_was_sent_for_it(served: Served, path: str) -> None:
    """A window that leaked would be used up by half of these."""
    piece = prefixed(bytes(100_000))[:16_384]
    with Wire(served.port) as wire:
        for number in range(1, 1_201, 2):
            wire.send(wire.head(number, path), data(number, piece))
            if number % 4 == 1:
                wire.send(RstStreamFrame(number, CANCEL))
            else:
                wire.send(data(number, b"", ends=True))
        wire.call(1_201, b"still there")
        assert wire.read(1_201).messages == [b"still there"]


# Ends


def test_a_call_may_be_cancelled_in_every_state(served: Served) -> None:
    served.call(served.methods.go_on.clear)
    served.methods.seen.clear()
    with Wire(served.port, {INITIAL_WINDOW_SIZE: 100}) as wire:
        cancel = [RstStreamFrame(number, CANCEL) for number in range(1, 20, 2)]
        wire.send(wire.head(1), cancel[0])
        wire.send(wire.head(3), data(3, prefixed(b"half")[:6]), cancel[1])
        wire.call(5, b"waits", WAIT)
        wire.send(cancel[2])
        wire.call(7, b"%d" % MANY, BIG)
        wire.until(lambda: len(wire.answer(7).data) == 100)
        wire.send(cancel[3])
        wire.send(wire.head(9, EACH), cancel[4])
        wire.send(wire.head(11, EACH), data(11, prefixed(b"one")))
        wire.until(lambda: wire.answer(11).messages == [b"one"])
        wire.send(cancel[5])
        wire.call(13, b"done")
        wire.read(13)
        wire.send(cancel[6], cancel[6])
        wire.send(wire.head(15, "/t/Nothing"), cancel[7])
        wire.asks_again()
        assert wire.goaways == []
        served.call(served.methods.go_on.set)
        wire.call(17, b"and goes on")
        assert wire.read(17).messages == [b"and goes on"]
        assert [n for n in (1, 3, 5, 9) if wire.answer(n).headers] == []
    # Whoever was asked has decided, although nobody waits.
    assert b"waits" in served.methods.seen


def test_a_thousand_calls_run_at_once_and_no_more(served: Served) -> None:
    served.call(served.methods.go_on.clear)
    with Wire(served.port, {INITIAL_WINDOW_SIZE: 2**20}) as wire:
        wire.send(WindowUpdateFrame(0, 2**20))
        for number in range(1, 2_003, 2):
            wire.call(number, b"%d" % number, WAIT)
        assert wire.read(2_001).reset == REFUSED_STREAM
        served.call(served.methods.go_on.set)
        for number in range(1, 2_000, 2):
            assert wire.read(number).messages == [b"%d" % number]
        wire.call(2_003, b"again")
        assert wire.read(2_003).messages == [b"again"]


def test_answers_reach_a_client_that_says_it_will_send_no_more(served: Served) -> None:
    served.call(served.methods.go_on.clear)
    with Wire(served.port) as wire:
        wire.call(1, b"x", WAIT)
        wire.send(b"\0\0\x08\x07\0\0\0\0\0" + bytes(8))  # GOAWAY
        wire.asks_again()
        served.call(served.methods.go_on.set)
        assert wire.read(1).messages == [b"x"]


def test_who_has_gone_is_forgotten(served: Served) -> None:
    before = served.count
    served.call(served.methods.go_on.clear)
    wire = Wire(served.port)
    wire.call(1, b"x", WAIT)
    wire.send(wire.head(3, EACH))
    wire.asks_again()
    assert served.count == before + 1
    wire.socket.close()
    wait_until(lambda: served.count == before)
    served.call(served.methods.go_on.set)


# Several messages


def test_messages_are_answered_as_they_come(either: Served) -> None:
    with Wire(either.port) as wire:
        wire.send(wire.head(1, EACH), data(1, prefixed(b"one") + prefixed(b"two")[:3]))
        wire.until(lambda: wire.answer(1).messages == [b"one"])
        wire.send(data(1, prefixed(b"two")[3:]))
        wire.until(lambda: wire.answer(1).messages == [b"one", b"two"])
        wire.send(data(1, b"", ends=True))
        answer = wire.read(1)
    assert (answer.status, answer.reset) == (0, None)


@pytest.mark.parametrize(("message", "status"), [(b"fail", 5), (b"end", 0)])
def test_a_server_that_ends_first_says_so(served: Served, message: bytes, status: int) -> None:
    for before in ([], [b"one"]):
        with Wire(served.port) as wire:
            body = b"".join([prefixed(each) for each in [*before, message]])
            wire.send(wire.head(1, EACH), data(1, body))
            answer = wire.read(1)
            wire.until(lambda: wire.answer(1).reset is not None)
            assert (answer.status, answer.reset) == (status, NO_ERROR)
            assert answer.messages == before


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (prefixed(b"x")[:-1], 3),
        (b"\1\0\0\0\1x", 3),
        (b"\0\xff\xff\xff\xff", 8),
    ],
)
def test_what_is_no_message_ends_several(served: Served, body: bytes, status: int) -> None:
    with Wire(served.port) as wire:
        wire.send(wire.head(1, EACH), data(1, prefixed(b"one") + body, ends=True))
        answer = wire.read(1)
    assert (answer.status, answer.messages) == (status, [b"one"])


def test_the_window_of_a_stream_is_given_back_as_messages_are_taken(served: Served) -> None:
    piece = prefixed(bytes(16_000))
    with Wire(served.port, {INITIAL_WINDOW_SIZE: 2**24}) as wire:
        wire.send(WindowUpdateFrame(0, 2**24), wire.head(1, EACH))
        for count in range(1, 200):  # 3.2 MB, thrice the window
            wire.send(data(1, piece))
            wire.until(lambda: len(wire.answer(1).sizes) >= count)  # noqa: B023
        wire.send(data(1, b"", ends=True))
        assert wire.read(1).status == 0
        assert wire.widened[1] >= 199 * len(piece) - 10


# What is told


def test_a_failure_is_told_with_its_detail(served: Served) -> None:
    with Wire(served.port) as wire:
        wire.call(1, "é % \n \x7f ~ ok".encode(), "/t/Fail")
        answer = wire.read(1)
    assert answer.headers == [
        {
            ":status": "200",
            "content-type": "application/grpc",
            "grpc-status": "5",
            "grpc-message": "%C3%A9 %25 %0A %7F ~ ok",
        }
    ]


def test_a_long_detail_is_cut(served: Served) -> None:
    with Wire(served.port) as wire:
        wire.call(1, b"x" * 10_000, "/t/Fail")
        assert wire.read(1).detail == "x" * 1_000


def test_a_method_is_told_the_patience_and_the_token_of_its_caller(served: Served) -> None:
    with Wire(served.port) as wire:
        body = data(1, prefixed(b""), ends=True)
        wire.send(wire.head(1, "/t/Told", grpc_timeout="250m", authorization="Bearer é"), body)
        assert wire.read(1).messages[0].decode().startswith("0.25 Bearer ")
        wire.call(3, b"", "/t/Told")
        assert wire.read(3).messages == [b"None None"]
