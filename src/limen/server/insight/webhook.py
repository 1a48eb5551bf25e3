"""One POST to one address from the settings, and to nothing else that the address may lead to.

Owns where a message may go and how long that may take. Knows nothing of alerts: a body is bytes. No
path and no query is ever in a text for people, because chat services keep their secret there.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from typing import TypeAlias

import limen
from limen.server.insight.destination import Place, is_permitted

SIGNATURE = "limen-signature"
"""The header of a signed message: `t=<unix seconds>,v1=<HMAC-SHA256 of "<t>.<body>" in hex>`."""

Resolve: TypeAlias = Callable[[str, int], list[str]]
"""Returns all addresses of a name; raises `OSError` when there are none."""
Dial: TypeAlias = Callable[[str, int, float], socket.socket]
"""Connects to an address, which is no name, and a port within seconds."""

_MAX_READ = 65_536
_MAX_TRIED = 4
_GOODBYE_S = 1.0
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: [^\r\n]*)?\r?\n")
_HEAD_END = re.compile(rb"\r?\n\r?\n")


def resolve(name: str, port: int) -> list[str]:
    """Return all addresses of a name."""
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def dial(address: str, port: int, seconds: float) -> socket.socket:
    """Connect to an address, which is not looked up."""
    line = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        line.settimeout(seconds)
        line.connect((address, port))
    except BaseException:
        line.close()
        raise
    return line


class _Failed(Exception):
    """Say in plain words why a message did not arrive."""


class Webhook:
    """Posts JSON to one place. Blocking; may be used from any thread.

    The host is looked up once for each message, every address that it has must be permitted, and
    the connection goes to an address that was looked at: no second look-up can lead elsewhere.
    Follows no redirection and uses no proxy.
    """

    def __init__(
        self,
        place: Place,
        *,
        secret: str = "",
        private: bool = False,
        patience_s: float = 5.0,
        context: ssl.SSLContext | None = None,
        resolve: Resolve = resolve,
        dial: Dial = dial,
    ) -> None:
        self._place = place
        self._secret = secret.encode()
        self._private = private
        self._patience_s = patience_s
        self._context = context or (ssl.create_default_context() if place.is_tls else None)
        self._resolve = resolve
        self._dial = dial
        self._looking: threading.Thread | None = None

    def send(self, body: bytes, now: float) -> str | None:
        """Post a body of JSON; return None when it was taken, or one line that says why not.

        `now` is in unix seconds, for the signature. Takes 5 s at most, whatever the other side
        does. The line names the host, and nothing else of the address.
        """
        ends = time.monotonic() + self._patience_s
        try:
            with closing(self._connected(ends)) as line:
                status = _exchange(line, self._request(body, now), ends)
        except (_Failed, OSError) as error:
            reason = self._in_plain_words(error)
        else:
            if 200 <= status < 300:
                return None
            also = ", and redirections are not followed" if 300 <= status < 400 else ""
            reason = f"it answered {status}{also}"
        return f"webhook at {self._place.authority}: {reason}"

    def __repr__(self) -> str:
        return f"<Webhook at {self._place.authority}>"

    def _request(self, body: bytes, now: float) -> bytes:
        headers = [
            f"POST {self._place.target} HTTP/1.1",
            f"Host: {self._place.authority}",
            f"User-Agent: limen/{limen.__version__}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        if self._secret:
            signed = hmac.new(self._secret, b"%d.%b" % (int(now), body), hashlib.sha256)
            headers.append(f"{SIGNATURE}: t={int(now)},v1={signed.hexdigest()}")
        return "\r\n".join([*headers, "", ""]).encode("ascii") + body

    def _connected(self, ends: float) -> socket.socket:
        line = self._dialled(self._addresses(ends), ends)
        if self._context is None or not self._place.is_tls:
            return line
        try:
            line.settimeout(_left(ends))
            # The certificate must be for the name, whatever its address is.
            return self._context.wrap_socket(line, server_hostname=self._place.host)
        except BaseException:
            line.close()
            raise

    def _addresses(self, ends: float) -> list[str]:
        """Return where the host is; every one of its addresses must be permitted."""
        host = self._place.host
        found = [host] if _is_address(host) else self._looked_up(ends)
        if not found:
            raise _Failed("its name leads to no address")
        for address in found:
            if not _is_address(address) or not is_permitted(address, private=self._private):
                kind = "an address that is never used" if self._private else "no public address"
                raise _Failed(f"it leads to {address[:64]}, which is {kind}")
        return found

    def _looked_up(self, ends: float) -> list[str]:
        """Look up the name, in a thread: a look-up may hang, and cannot be told how long."""
        if self._looking is not None and self._looking.is_alive():
            raise _Failed("to look up its name takes too long")
        answers: SimpleQueue[list[str] | None] = SimpleQueue()

        def look() -> None:
            found = None
            with suppress(OSError, UnicodeError):
                found = self._resolve(self._place.host, self._place.port)
            answers.put(found)

        self._looking = threading.Thread(target=look, name="limen-webhook-name", daemon=True)
        try:
            self._looking.start()
            found = answers.get(timeout=_left(ends))
        except Empty:
            raise _Failed("to look up its name takes too long") from None
        except RuntimeError:
            self._looking = None
            raise _Failed("no thread to look up its name with") from None
        return found or []

    def _dialled(self, addresses: list[str], ends: float) -> socket.socket:
        last: OSError | None = None
        tried = addresses[:_MAX_TRIED]
        for index, address in enumerate(tried):
            # A share of the time for each, so that one that hangs leaves some to the others.
            try:
                seconds = _left(ends) / (len(tried) - index)
                return self._dial(address, self._place.port, seconds)
            except OSError as error:
                last = error
        raise last or _Failed("its name leads to no address")

    def _in_plain_words(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer in {self._patience_s:g} s"
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {error.verify_message}"
        if isinstance(error, ssl.SSLError):
            return f"TLS failed: {(error.reason or 'it was cut').lower().replace('_', ' ')}"
        if isinstance(error, OSError):
            return (error.strerror or type(error).__name__).lower()
        return str(error)


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(host).version)
    except ValueError:
        return False


def _left(ends: float) -> float:
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _exchange(line: socket.socket, request: bytes, ends: float) -> int:
    """Send a request and return the status of the answer; its body is of no interest."""
    # Who refuses a request may do so, and hang up, before all of it is there.
    with suppress(BrokenPipeError, ConnectionResetError):
        rest = memoryview(request)
        while rest:
            line.settimeout(_left(ends))
            rest = rest[line.send(rest) :]
    seen = b""
    while (status := _status(seen)) is None:
        # Each byte that comes gets what is left of the time, not all of it anew.
        line.settimeout(_left(ends))
        data = line.recv(min(4_096, _MAX_READ - len(seen)))
        if not data:
            raise _Failed("it hung up without an answer")
        seen += data
        if len(seen) >= _MAX_READ:
            raise _Failed("it answered at length, and not in HTTP")
    _hear_out(line, _MAX_READ - len(seen), ends)
    return status


def _status(seen: bytes) -> int | None:
    """Return the status in what came so far; None when there is none yet."""
    while True:
        found = _STATUS.match(seen)
        if found is None:
            if b"\n" in seen or not b"HTTP/1.".startswith(seen[:7]):
                raise _Failed("it answered, and not in HTTP")
            return None
        status = int(found[1])
        if status >= 200:
            return status
        # Only a word in between, such as 100 or 103: the answer is still to come.
        end = _HEAD_END.search(seen)
        if end is None:
            return None
        seen = seen[end.end() :]


def _hear_out(line: socket.socket, most: int, ends: float) -> None:
    """Let the other side finish, for a moment: hung up on, it would log an error of its own."""
    ends = min(ends, time.monotonic() + _GOODBYE_S)
    with suppress(OSError):
        while most > 0:
            line.settimeout(_left(ends))
            data = line.recv(min(4_096, most))
            if not data:
                return
            most -= len(data)
