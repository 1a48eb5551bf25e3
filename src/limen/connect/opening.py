"""Opens connections with redis-py: TCP, TLS or a socket file, then login and database.

What travels over a connection afterwards is for the drivers to write and to read. This is the one
file that reaches below redis-py's public surface: for the socket, or the stream, that it opened.
"""

from __future__ import annotations

import asyncio
import socket
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

from limen.connect.address import Address, Target

Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_OURS: dict[str, Any] = {
    "decode_responses": False,
    "health_check_interval": 0,
    # Replies come in the order of the commands, and nothing else comes.
    "protocol": 2,
}


_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


class UnreadableFile(OSError):
    """Says that a file for TLS, which the address names, cannot be read."""

    advice = "correct the path in the address of the store, or let this user read the file"

    def __init__(self, path: str, option: str, reason: str) -> None:
        super().__init__(f"cannot read {path} ({option}): {reason}")


def open_socket(
    target: Target, address: Address, patience_s: float, *, sentinel: bool = False
) -> socket.socket:
    """Return a connection that is logged in; raise what redis-py raises.

    Each step of it may take `patience_s` seconds.
    """
    import redis.connection as sync

    made: Any = _class_of(sync, target, address)(**_settings(target, address, patience_s, sentinel))
    made.connect()
    opened: socket.socket = made._sock
    # Else it would close the socket when it is forgotten.
    made._sock = None
    return opened


async def open_stream(
    target: Target, address: Address, patience_s: float, *, sentinel: bool = False
) -> Opened:
    """Do the same for asyncio."""
    import redis.asyncio.connection as aio

    made: Any = _class_of(aio, target, address)(**_settings(target, address, patience_s, sentinel))
    await made.connect()
    opened = made._reader, made._writer
    made._reader = made._writer = None
    return opened


@cache
def _nameless() -> dict[str, Any]:
    """Return what keeps redis-py from telling the server its name: two round trips less."""
    import redis.connection as sync

    if "driver_info" in signature(sync.AbstractConnection.__init__).parameters:
        return {"driver_info": None}
    return {"lib_name": None, "lib_version": None}


def _class_of(module: Any, target: Target, address: Address) -> Any:
    if not address[1]:
        return module.UnixDomainSocketConnection
    return module.SSLConnection if target.tls else module.Connection


def _settings(
    target: Target, address: Address, patience_s: float, sentinel: bool
) -> dict[str, Any]:
    options = dict(target.options)
    if target.tls:
        _expect_files(options)
    if sentinel:
        # The rules of encryption are one; the login is the sentinels' own.
        kept = {name: value for name, value in options.items() if name.startswith("ssl_")}
        options = {**kept, **target.sentinel_options}
    host, port = address
    where: dict[str, Any] = {"path": host}
    if port:
        where = {"host": host, "port": port, "socket_keepalive": True}
    return {
        **options,
        **where,
        **_OURS,
        **_nameless(),
        "socket_timeout": patience_s,
        "socket_connect_timeout": patience_s,
    }


def _expect_files(options: dict[str, Any]) -> None:
    """Raise `UnreadableFile`: OpenSSL says that there is no such file, and not which."""
    for option in _FILES:
        path = options.get(option)
        if path is None:
            continue
        try:
            with Path(path).open("rb"):
                pass
        except OSError as error:
            raise UnreadableFile(str(path), option, error.strerror or str(error)) from None
