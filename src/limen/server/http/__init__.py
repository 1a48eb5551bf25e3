"""HTTP/1.1 for the data plane: a parser, deadlines and size limits. Knows nothing of limits."""

from limen.server.http.connections import HttpConnections, HttpLimits
from limen.server.http.message import (
    NO_STORE,
    Handler,
    Headers,
    InvalidValue,
    ProblemDocument,
    Rejected,
    Request,
    Response,
    problem_response,
)

__all__ = [
    "NO_STORE",
    "Handler",
    "Headers",
    "HttpConnections",
    "HttpLimits",
    "InvalidValue",
    "ProblemDocument",
    "Rejected",
    "Request",
    "Response",
    "problem_response",
]
