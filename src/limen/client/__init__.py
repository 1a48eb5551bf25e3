"""Asks a limen elsewhere: `Client` for threads, `AsyncClient` for asyncio.

Knows the messages of `limen.wire` and how to do without an answer. Knows no rules: those are the
service's.
"""

from limen.client.aio import AsyncClient
from limen.client.slot import AsyncServiceSlot, ServiceRefused, ServiceSlot
from limen.client.sync import Client
from limen.wire import Part, Verdict

__all__ = [
    "AsyncClient",
    "AsyncServiceSlot",
    "Client",
    "Part",
    "ServiceRefused",
    "ServiceSlot",
    "Verdict",
]
