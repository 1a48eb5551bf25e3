"""Requests that go out: paced by limits of one's own, and by what servers say.

For those who call somebody else's API. `limen.adapters.httpx` and `limen.adapters.httpx2` are thin
above this. What a response says is read in `learn`, how long to wait is decided in `pace`, and the
waiting is done by `sync` and `aio`.
"""

from limen.adapters.outgoing.aio import AsyncGate
from limen.adapters.outgoing.refused import RateLimited
from limen.adapters.outgoing.settings import Settings
from limen.adapters.outgoing.sync import Gate

__all__ = ["AsyncGate", "Gate", "RateLimited", "Settings"]
