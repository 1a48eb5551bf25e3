"""From an address, or a ready redis-py client, to an open connection. Knows no limits."""

from limen.connect.address import Address, Target, is_shared, parse, show_address
from limen.connect.client import target_of
from limen.connect.opening import Opened, UnreadableFile, open_socket, open_stream

__all__ = [
    "Address",
    "Opened",
    "Target",
    "UnreadableFile",
    "is_shared",
    "open_socket",
    "open_stream",
    "parse",
    "show_address",
    "target_of",
]
