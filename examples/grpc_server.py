"""A gRPC server whose calls are limited: by address everywhere, by API key where orders are placed.

    python examples/grpc_server.py          # serves on port 50051, or where ADDRESS says
    python examples/grpc_server.py call     # in another terminal: calls it, until it is refused

Messages are plain text here, so that no generated code is needed. With generated code nothing
changes but how servicers are added.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc

from limen import Concurrency, Limiter
from limen.adapters import RateLimit, header
from limen.adapters.grpc import RateLimitInterceptor, visit_of


def place(order: str, context: grpc.ServicerContext) -> str:
    visit_of(context).costs(len(order.split()))  # each item counts
    return f"placed: {order}"


def serve(address: str) -> None:
    limited = RateLimitInterceptor(
        Limiter(),  # Limiter("redis://localhost:6379") counts for all servers together
        "100/minute",
        limits_by_method={
            "/shop.Orders/Place": RateLimit("5/minute", key=header("x-api-key")),
            "/shop.Reports/*": Concurrency(3, lease=60),
        },
    )
    handler = grpc.unary_unary_rpc_method_handler(place, bytes.decode, str.encode)
    orders = grpc.method_handlers_generic_handler("shop.Orders", {"Place": handler})
    server = grpc.server(ThreadPoolExecutor(16), interceptors=[limited])
    server.add_generic_rpc_handlers((orders,))
    server.add_insecure_port(address)
    server.start()
    print(f"serving on {address}", flush=True)
    server.wait_for_termination()


def call(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        order = channel.unary_unary("/shop.Orders/Place", str.encode, bytes.decode)
        for items in ("tea", "tea milk sugar", "coffee", "cocoa"):
            try:
                print(order(items, metadata=(("x-api-key", "an-example"),)))
            except grpc.RpcError as error:
                print(f"{error.code().name}: {error.details()}")


if __name__ == "__main__":
    run = call if "call" in sys.argv else serve
    with suppress(KeyboardInterrupt):
        run(os.environ.get("ADDRESS", "127.0.0.1:50051"))
