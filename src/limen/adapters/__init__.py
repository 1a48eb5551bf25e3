"""At home in every framework: limits for ASGI, WSGI, FastAPI, Flask, Django, gRPC and httpx.

Each adapter is a module of this package, and needs its framework alone. Here is what they share:
`RateLimit`, the keys, and what stands behind them. Knows no framework.
"""

from limen.adapters.keys import Key, either, everyone, header, ip, route, user
from limen.adapters.limit import RateLimit
from limen.adapters.request import Request, Response
from limen.adapters.visit import Passage, Visit
from limen.http import AddressSettings

__all__ = [
    "AddressSettings",
    "Key",
    "Passage",
    "RateLimit",
    "Request",
    "Response",
    "Visit",
    "either",
    "everyone",
    "header",
    "ip",
    "route",
    "user",
]
