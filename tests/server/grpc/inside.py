"""A connection without a socket: bytes in, bytes out, on a loop that is turned by hand."""

from __future__ import annotations

import asyncio
from typing import Any

from limen.server.grpc.calls import Methods
from limen.server.grpc.connection import GrpcConnections, GrpcLimits
from tests.server.grpc.wire import Transcript


class _Socket:
    def setsockopt(self, *_: object) -> None:
        pass


class Pipe(asyncio.Transport):
    """Where a connection writes to."""

    def __init__(self, transcript: Transcript | None = None) -> None:
        super().__init__()
        self.written = b""
        self.transcript = transcript
        self._is_closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _Socket()

    def write(self, data: Any) -> None:
        assert not self._is_closing
        if self.transcript is not None:
            self.transcript.feed(data)
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Inside:
    """Connections by one owner; to be made on a loop."""

    def __init__(self, methods: Methods, limits: GrpcLimits | None = None) -> None:
        self.connections = GrpcConnections(methods, limits or GrpcLimits())

    async def say(self, *pieces: bytes, turns: int = 30) -> Transcript:
        """Say something piece by piece on a new connection; return what it said."""
        connection, transcript = self.connections.make(), Transcript()
        pipe = Pipe(transcript)
        connection.connection_made(pipe)
        for piece in pieces:
            connection.data_received(piece)
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        return transcript

    def close(self) -> None:
        self.connections.close()
