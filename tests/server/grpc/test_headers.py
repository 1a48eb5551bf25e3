"""Headers that are remembered mean what they would if they were read anew."""

from __future__ import annotations

from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from limen.server.grpc.calls import Call, Headers, Methods, Unary
from tests.server.grpc.wire import headers


async def _never(raw: bytes, call: Call) -> bytes:
    raise AssertionError


METHODS: Methods = {b"/a": Unary(_never), b"/b": Unary(_never), b"/c": Unary(_never)}

asked = st.builds(
    lambda path, token, timeout, more: {
        **headers(path),
        **({"authorization": token} if token else {}),
        **({"grpc-timeout": timeout} if timeout else {}),
        **more,
    },
    st.sampled_from(["/a", "/b", "/c", "/d"]),
    st.sampled_from(["", "Bearer 1", "Bearer 2"]),
    st.sampled_from(["", "15m", "20m", "?"]),
    st.dictionaries(st.sampled_from(["x-a", "x-b"]), st.sampled_from(["1", "2", "3" * 900])),
)
sizes = st.sampled_from([None, None, None, 0, 100, 1_000, 4_096])
steps = st.lists(st.tuples(asked, sizes), max_size=8)


@given(steps)
def test_what_is_remembered_is_what_is_read(steps: list[tuple[dict[str, str], int | None]]) -> None:
    encoder, remembering = Encoder(), Headers(METHODS, 16_384)
    for wanted, size in [each for each in steps for _ in range(3)]:
        if size is not None and encoder.header_table_size != size:
            encoder.header_table_size = size
        found = remembering.read(encoder.encode(list(wanted.items())))
        fresh = Headers(METHODS, 16_384).read(Encoder().encode(list(wanted.items())))
        assert found == fresh


def test_the_same_headers_are_read_once() -> None:
    encoder, remembering = Encoder(), Headers(METHODS, 16_384)
    block = list(headers("/a").items())
    remembering.read(encoder.encode(block))
    second = remembering.read(encoder.encode(block))
    assert remembering.read(encoder.encode(block)) is second


def test_only_so_many_are_remembered() -> None:
    remembering = Headers(METHODS, 16_384)
    for number in range(1_000):
        # A literal that goes into no table.
        name, value = b"x", b"%d" % number
        remembering.read(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value)
    assert len(remembering._known) == 256
