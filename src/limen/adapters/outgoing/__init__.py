"""Requests that go out: paced by limits of one's own, and by what servers say.

For those who call somebody else's API. `limen.adapters.httpx` and `limen.adapters.httpx2` are thin
above this. `learn` reads the headers of responses, `pace` decides how long to wait, `gate` is the
flow of a request for threads and asyncio, and `transport` is the interface of the two libraries.
"""

from limen.adapters.outgoing.pace import RateLimited
from limen.adapters.outgoing.transport import AsyncTransport, Transport

__all__ = ["AsyncTransport", "RateLimited", "Transport"]
