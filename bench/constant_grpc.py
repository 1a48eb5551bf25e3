"""gRPC by grpcio, for asyncio and uvloop, that answers every call with the same bytes.

`python -m bench.constant_grpc PORT`: what any service of Python on grpcio begins with, whatever it
decides.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import uvloop


class Constant(grpc.GenericRpcHandler):
    """Answers whatever is called."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return who answers."""
        handler: Any = grpc.unary_unary_rpc_method_handler(self._answer)
        return handler

    async def _answer(self, request: bytes, context: Any) -> bytes:
        return b"\x08\x01"


async def main(port: int) -> None:
    """Serve until somebody ends it."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Constant(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1])))
