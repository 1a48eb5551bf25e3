"""gRPC over HTTP/2, as far as a service of small messages needs it, on the loop of a worker.

`frames`, `calls` and `bounds` are pure: bytes to meaning and back, and how much of them. A
`connection` hears one client, has its calls in `streams`, and answers by `sending`; `connections`
looks after all of them. `health` and `reflection` are the services that every gRPC server has.
Knows nothing of limits on requests.
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
