"""However what is sent is cut into packets, the answers are the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hpack import Encoder
from hyperframe.frame import (
    DataFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.server.grpc.inside import Inside
from tests.server.grpc.serving import Methods
from tests.server.grpc.wire import (
    EACH,
    PREFACE,
    Transcript,
    as_bytes,
    continuation,
    data,
    head,
    headers,
    prefixed,
    raw,
)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def conversation(end: bytes = b"") -> bytes:
    """Return a talk that has something of everything."""
    encoder = Encoder()

    def block(path: str = "/t/Echo") -> bytes:
        return encoder.encode(list(headers(path).items()))

    one, two, three = block(), block(EACH), block("/t/Nothing")
    return as_bytes(
        PREFACE,
        SettingsFrame(0, {4: 70_000, 5: 20_000}),
        HeadersFrame(1, one[:7]),
        continuation(1, one[7:], ends=True),
        head(3, two),
        PingFrame(0, b"12345678"),
        data(3, prefixed(b"a") + prefixed(b"b")[:2]),
        data(1, prefixed(b"first")[:4]),
        head(5, three, ends=True),
        DataFrame(1, prefixed(b"first")[4:], flags=["PADDED", "END_STREAM"], pad_length=9),
        data(3, prefixed(b"b")[2:] + prefixed(b"c"), ends=True),
        WindowUpdateFrame(0, 99),
        head(7, block()),
        RstStreamFrame(7, 8),
        head(9, block(), ends=True),
        raw(0xAB, 1, 2, b"unknown"),
        end,
    )


def outcome(said: Transcript) -> Any:
    return (
        said.settings,
        said.acks,
        said.pings,
        [(each.error_code, each.last_stream_id) for each in said.goaways],
        {
            number: (each.headers, each.messages, each.reset)
            for number, each in sorted(said.answers.items())
        },
    )


def say(runner: asyncio.Runner, *pieces: bytes) -> Any:
    async def talk() -> Any:
        inside = Inside(Methods().by_path)
        try:
            return outcome(await inside.say(*pieces))
        finally:
            inside.close()

    return runner.run(talk())


@pytest.mark.parametrize("end", [b"", raw(6, 0, 0, b"broken")])
def test_one_cut_anywhere_changes_nothing(runner: asyncio.Runner, end: bytes) -> None:
    whole = conversation(end)
    expected = say(runner, whole)
    answers = expected[-1]
    assert expected[3] == ([(6, 9)] if end else [])
    if not end:
        assert answers[1][1] == [b"first"]
        assert answers[3][1] == [b"a", b"b", b"c"]
        assert answers[5][0][0]["grpc-status"] == "12"
        assert answers[9][0][0]["grpc-status"] == "3"
        for at in range(len(whole)):
            assert say(runner, whole[:at], whole[at:]) == expected, at
    else:
        assert say(runner, whole[:-3], whole[-3:])[3] == expected[3]


def test_bytes_one_by_one_change_nothing(runner: asyncio.Runner) -> None:
    whole = conversation()
    assert say(runner, *[bytes([byte]) for byte in whole]) == say(runner, whole)


@given(cuts=st.sets(st.integers(0, len(conversation())), max_size=20))
def test_any_cuts_change_nothing(runner: asyncio.Runner, cuts: set[int]) -> None:
    whole = conversation()
    places = [0, *sorted(cuts), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(places)]
    assert say(runner, *pieces) == say(runner, whole)


@given(data_=st.data())
def test_any_order_of_interleaved_calls_gives_each_its_answer(
    runner: asyncio.Runner, data_: st.DataObject
) -> None:
    numbers = [1, 3, 5, 7, 9]
    bodies = {number: prefixed(b"%d" % number * number) for number in numbers}
    frames = {
        number: [data(number, body[:2]), data(number, body[2:7]), data(number, body[7:], ends=True)]
        for number, body in bodies.items()
    }
    encoder = Encoder()
    sent = [head(number, encoder.encode(list(headers().items()))) for number in numbers]
    order = data_.draw(st.permutations([number for number in numbers for _ in range(3)]))
    sent += [frames[number].pop(0) for number in order]
    answers = say(runner, PREFACE + raw(4), as_bytes(*sent))[-1]
    assert {n: answers[n][1] for n in numbers} == {n: [b"%d" % n * n] for n in numbers}
