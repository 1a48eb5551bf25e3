"""A client that knows HTTP/2 by heart: `h2` raises for what a server may not do."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Self

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from limen.server.process.listen import Tls
from tests.server.grpc.serving import HOST, PATIENT, Served
from tests.server.grpc.wire import BIG, EACH, ECHO, Answer, headers, prefixed

PAIRS = Path(__file__).parent.parent / "tls"


class Talk:
    """One connection."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self.socket: socket.socket = socket.create_connection((HOST, port), 10)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.answers: dict[int, Answer] = {}
        self.events: list[h2.events.Event] = []
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def call(self, message: bytes, path: str = ECHO, *, ends: bool = True) -> int:
        """Call once, within the windows there are."""
        number = self.h2.get_next_available_stream_id()
        self.h2.send_headers(number, list(headers(path).items()))
        self.send(number, prefixed(message), ends=ends)
        return number

    def send(self, number: int, body: bytes, *, ends: bool = False) -> None:
        while body:
            size = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size)
            if not size:
                self.receive()
                continue
            self.h2.send_data(number, body[:size])
            body = body[size:]
            self.flush()
        if ends:
            self.h2.end_stream(number)
        self.flush()

    def read(self, number: int) -> Answer:
        answer = self.answers.setdefault(number, Answer())
        while not answer.is_over:
            self.receive()
        return answer

    def receive(self) -> None:
        data = self.socket.recv(65_536)
        assert data, "closed"
        for event in self.h2.receive_data(data):
            self.events.append(event)
            self._take(event)
        self.flush()

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            found = {str(name): str(value) for name, value in event.headers or ()}
            self._answer(event.stream_id).headers.append(found)
        elif isinstance(event, h2.events.DataReceived):
            self._answer(event.stream_id).data += event.data or b""
            size = event.flow_controlled_length or 0
            self.h2.acknowledge_received_data(size, event.stream_id or 0)
        elif isinstance(event, h2.events.StreamEnded):
            self._answer(event.stream_id).is_ended = True
        elif isinstance(event, h2.events.StreamReset):
            self._answer(event.stream_id).reset = int(event.error_code or 0)

    def _answer(self, number: int | None) -> Answer:
        return self.answers.setdefault(number or 0, Answer())


def test_calls_of_every_size(either: Served) -> None:
    with Talk(either.port) as talk:
        for size in (0, 1, 16_379, 16_380, 65_530, 65_531, 300_000, 1_048_576):
            message = bytes(range(256)) * (size // 256) + bytes(size % 256)
            number = talk.call(message)
            answer = talk.read(number)
            assert answer.messages == [message]
            assert answer.status == 0


def test_many_at_once(either: Served) -> None:
    with Talk(either.port) as talk:
        numbers = [talk.call(b"%d" % n, BIG) for n in range(0, 100_000, 1_000)]
        for number, size in zip(numbers, range(0, 100_000, 1_000), strict=True):
            assert len(talk.read(number).messages[0]) == size // 251 * 251 + 251


def test_messages_in_both_directions(either: Served) -> None:
    with Talk(either.port) as talk:
        number = talk.call(b"0", EACH, ends=False)
        for count in range(1, 20):
            talk.send(number, prefixed(b"%d" % count))
            while len(talk._answer(number).messages) < count:
                talk.receive()
        talk.send(number, b"", ends=True)
        assert talk.read(number).messages == [b"%d" % count for count in range(20)]


def test_refusals_and_ends(served: Served) -> None:
    with Talk(served.port) as talk:
        assert talk.read(talk.call(b"x", "/t/Nothing", ends=False)).status == 12
        assert talk.read(talk.call(b"x", "/t/Fail")).status == 5
        assert talk.read(talk.call(b"fail", EACH, ends=False)).status == 5
        assert talk.read(talk.call(b"one", EACH)).messages == [b"one"]
        number = talk.call(b"x", EACH, ends=False)
        talk.h2.reset_stream(number, 8)
        talk.flush()
        assert talk.read(talk.call(b"goes on")).messages == [b"goes on"]


def test_settings_that_change_in_the_middle(served: Served) -> None:
    with Talk(served.port) as talk:
        for size in (0, 2**20, 100, 70_000):
            settings = h2.settings.SettingCodes
            talk.h2.update_settings(
                {settings.INITIAL_WINDOW_SIZE: size, settings.MAX_FRAME_SIZE: 16_384 + size}
            )
            talk.flush()
            talk.events.clear()
            while not any(isinstance(each, h2.events.SettingsAcknowledged) for each in talk.events):
                talk.receive()
            number = talk.call(b"200000", BIG)
            if size == 0:
                talk.h2.update_settings({settings.INITIAL_WINDOW_SIZE: 50_000})
                talk.flush()
            assert len(talk.read(number).messages[0]) > 200_000


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_over_tls(loop: str) -> None:
    tls = Tls(PAIRS / "one.crt", PAIRS / "one.key", "h2")
    context = ssl.create_default_context(cafile=str(PAIRS / "one.crt"))
    context.set_alpn_protocols(["h2"])
    with Served(PATIENT, loop, tls.context) as served, Talk(served.port, context) as talk:
        assert isinstance(talk.socket, ssl.SSLSocket)
        assert talk.socket.selected_alpn_protocol() == "h2"
        assert talk.read(talk.call(b"x" * 100_000)).messages == [b"x" * 100_000]
        served.call(served.connections.drain)
        while not any(isinstance(each, h2.events.ConnectionTerminated) for each in talk.events):
            talk.receive()
