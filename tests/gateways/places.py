"""Ports and addresses that are given once: nobody finds another's gateway, or counter, there."""

from __future__ import annotations

import itertools

from tests.servers import free_port

_NUMBERS = itertools.count(1)
_GIVEN: set[int] = set()


def new_address() -> str:
    """Return an address of this host that no client has had before."""
    number = next(_NUMBERS)
    return f"127.77.{number // 250}.{number % 250 + 1}"


def new_port() -> int:
    """Return a port that is free, and not about to be taken by who was given it before."""
    while (port := free_port()) in _GIVEN:
        pass
    _GIVEN.add(port)
    return port
