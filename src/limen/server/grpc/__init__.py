"""gRPC over HTTP/2, as far as a service of small messages needs it, on the loop of a worker.

`frames` and `calls` are pure: bytes to meaning and back. `connection` speaks with one client, and
`connections` looks after all of them. `health` and `reflection` are the services that every gRPC
server has. Knows nothing of limits.
"""

from limen.server.grpc.calls import Call, Code, Failed, Method, Methods, Streamed, Unary
from limen.server.grpc.connections import GrpcConnections, GrpcLimits

__all__ = [
    "Call",
    "Code",
    "Failed",
    "GrpcConnections",
    "GrpcLimits",
    "Method",
    "Methods",
    "Streamed",
    "Unary",
]
