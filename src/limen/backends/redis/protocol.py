"""What goes over the wire, and what a server's error means. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis
from redis.exceptions import (
    BusyLoadingError,
    InvalidResponse,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from limen.backends import Fault, FaultKind
from limen.connect import UnreadableFile

Reader = hiredis.Reader
NO_REPLY = object()
"""What a reader gives while a reply is not complete."""

_KINDS: dict[str, FaultKind] = {
    "NOAUTH": "rights",
    "WRONGPASS": "rights",
    "NOPERM": "rights",
    "LOADING": "loading",
    "MASTERDOWN": "loading",
    "READONLY": "readonly",
    "NOREPLICAS": "readonly",
    "MISCONF": "readonly",
    "OOM": "memory",
    "BUSY": "busy",
    "UNKILLABLE": "busy",
    "CLUSTERDOWN": "cluster",
    "CROSSSLOT": "cluster",
    "TRYAGAIN": "cluster",
    "MOVED": "cluster",
    "ASK": "cluster",
    "WRONGTYPE": "poisoned",
    "BADSTATE": "poisoned",  # of our own script: the right type, but not a state
    # What servers say without a code: the last two, of a command that a script may not run.
    "cluster support disabled": "cluster",
    "max number of clients": "connection",
    "ACL failure": "rights",
    "The user executing the script can't": "rights",
}
_RIGHTS = {
    "AuthenticationError",
    "AuthenticationWrongNumberOfArgsError",
    "AuthorizationError",
    "ExternalAuthProviderError",
    "NoPermissionError",
}
"""Classes of redis-py for a login that failed. By name: not every version has all of these."""
_ADVICE: dict[FaultKind, str] = {
    "rights": "check user, password and ACL; `limen doctor URL` prints the line that is needed",
    "loading": "the server is reading its data; it comes back by itself",
    "readonly": "this is a replica, or the server refuses writes; look at its role and its disk",
    "memory": "the server is out of memory; raise maxmemory",
    "busy": "another script holds the server up; SCRIPT KILL ends it",
    "cluster": "the cluster does not serve this slot now; look at CLUSTER INFO",
    "connection": "is it running, and are host and port right?",
    "protocol": "is this Redis?",
    "poisoned": "a key of ours holds something else; it was left as it is; `reset` deletes it",
    "tls": "check certificates and host name; nothing was sent in the clear",
}
_OTHER_SCHEMES = {"redis": "rediss", "rediss": "redis", "valkey": "valkeys", "valkeys": "valkey"}


class Unfound(Exception):
    """Says that nobody who was asked knows where to go. `last` is what the last one said."""

    def __init__(self, text: str, last: object, advice: str = "") -> None:
        super().__init__(text)
        self.last = last
        self.advice = advice


class ServerError(Exception):
    """An error that a server replied with. A value here, not raised."""


def new_reader() -> Reader:
    """Return what turns bytes into replies, errors among them."""
    return Reader(protocolError=InvalidResponse, replyError=ServerError, notEnoughData=NO_REPLY)


def pack_command(words: Sequence[str | bytes]) -> bytes:
    """Return a command as it is sent."""
    packed: bytes = hiredis.pack_command(tuple(words))  # type: ignore[arg-type]  # says: one word
    return packed


def fault_of(error: BaseException | str, where: str) -> Fault:
    """Say in one word and one line what went wrong, and what to do about it.

    `where` begins with the address of the store, whose scheme says whether it has TLS.
    """
    cause, advice = error, ""
    if isinstance(error, Unfound):
        cause = error.last if isinstance(error.last, Exception) else ConnectionError()
        advice = error.advice
    kind = _kind(cause)
    if isinstance(cause, UnreadableFile):
        advice = advice or UnreadableFile.advice
    known = (tls_advice(kind, str(cause), where), _ADVICE.get(kind, ""))
    advice = advice or "; ".join(filter(None, known))
    text = str(error).strip().partition("\n")[0]
    # What follows is what was sent, and of AUTH that is the password.
    text = text.partition(", with args")[0][:160]
    text = text or ("no answer in time" if kind == "timeout" else type(error).__name__)
    if kind == "poisoned":
        # A script's error quotes where in the script it was; the code is what matters.
        text = "BADSTATE" if "BADSTATE" in text else "WRONGTYPE"
    return Fault(kind, f"{where}: {text}", advice)


def late(where: str, *, unsent: bool) -> Fault:
    """Return the fault of a request that got no answer in time."""
    # What has been sent went over a connection whose handshake was done.
    advice = tls_advice("timeout", "", where) if unsent else ""
    return Fault("timeout", f"{where}: no answer in time", advice, unsent)


def tls_advice(kind: str, text: str, where: str) -> str:
    """Return which scheme to write if the server and the address do not agree about TLS.

    Empty for what a disagreement does not look like. A server without TLS does not answer a
    handshake, or says what is none; one with TLS closes the connection at the first command.
    """
    scheme, separator, _ = where.partition("://")
    name, plus, form = scheme.partition("+")
    other = f"{_OTHER_SCHEMES[name]}{plus}{form}://" if name in _OTHER_SCHEMES else "rediss://"
    if separator and name in ("rediss", "valkeys"):
        return f"if the server has no TLS, write {other}" if kind in ("timeout", "tls") else ""
    is_closed = kind == "connection" and ("reset" in text or "closed" in text)
    if (is_closed or kind == "protocol") and name != "unix" and form != "unix":
        return f"if the server has TLS, write {other}"
    return ""


def _kind(error: BaseException | str) -> FaultKind:
    if isinstance(error, UnreadableFile):
        return "tls"
    if isinstance(error, str | ServerError):
        text = str(error)
        word = text.partition(" ")[0]
        if word in _KINDS:
            return _KINDS[word]
        # Inside a script Redis puts its own words before the code, or behind it.
        return next((kind for code, kind in _KINDS.items() if code in text), "script")
    if isinstance(error, RedisError):
        names = {each.__name__ for each in type(error).__mro__}
        if names & _RIGHTS:
            return "rights"
    if isinstance(error, ResponseError):
        return _kind(str(error))  # as the server said it
    if isinstance(error, BusyLoadingError):
        return "loading"
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return "timeout"
    if isinstance(error, InvalidResponse):
        return "protocol"
    if isinstance(error, RedisConnectionError | OSError | EOFError):
        return "tls" if _is_tls(error) else "connection"
    return "script" if isinstance(error, RedisError) else "internal"


def _is_tls(error: BaseException) -> bool:
    import ssl

    seen: Any = error
    while seen is not None:
        if isinstance(seen, ssl.SSLError) or "SSL" in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
