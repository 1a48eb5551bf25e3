"""One POST to one address from the settings, and to nothing else that the address may lead to.

Owns where a message may go and how long that may take. Knows nothing of alerts: a body is bytes. No
path and no query is ever in a text for people, because chat services keep their secret there.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import closing, suppress
from http.client import BadStatusLine, HTTPConnection, HTTPException
from ipaddress import ip_address
from typing import TypeAlias

import limen
from limen.server.settings.webhook_url import WebhookAddress, is_permitted

SIGNATURE = "limen-signature"
"""The header of a signed message: `t=<unix seconds>,v1=<HMAC-SHA256 of "<t>.<body>" in hex>`."""

Resolve: TypeAlias = Callable[[str, int], list[str]]
"""Returns all addresses of a name; raises `OSError` when there are none."""
Dial: TypeAlias = Callable[[tuple[str, int], float], socket.socket]
"""Connects to an address, which is no name, and a port within seconds."""

_MAX_READ = 65_536
_MAX_TRIED = 4
_GOODBYE_S = 1.0
"""How long a server may take to finish its response. Cut off, it would log an error of its own."""


def resolve(name: str, port: int) -> list[str]:
    """Return all addresses of a name."""
    entries = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in entries))


class _Failed(Exception):
    """Say in plain words why a message did not arrive."""


class Webhook:
    """Posts JSON to one place. Blocking; may be used from any thread, one message at a time.

    The host is looked up once for each message, every address that it has must be permitted, and
    the connection goes to an address that was looked at: no second look-up can lead elsewhere.
    Follows no redirection and uses no proxy.
    """

    def __init__(
        self,
        place: WebhookAddress,
        *,
        secret: str = "",
        private: bool = False,
        patience_s: float = 5.0,
        context: ssl.SSLContext | None = None,
        resolve: Resolve = resolve,
        dial: Dial = socket.create_connection,
    ) -> None:
        self._place = place
        self._secret = secret.encode()
        self._private = private
        self._patience_s = patience_s
        self._context = context or (ssl.create_default_context() if place.is_tls else None)
        self._resolve = resolve
        self._dial = dial
        self._thread: threading.Thread | None = None
        self._line: socket.socket | None = None
        self._late = ""
        """The reason of a failure when the time is over."""

    def send(self, body: bytes, now: float) -> str | None:
        """Post a body of JSON; return None when it was taken, or one line that says why not.

        `now` is in unix seconds, for the signature. Takes 6 s at most, whatever the other side
        does. The line names the host, and nothing else of the address.
        """
        try:
            status = self._status(body, now)
        except (_Failed, OSError, HTTPException) as error:
            reason = self._in_plain_words(error)
        else:
            if 200 <= status < 300:
                return None
            also = ", and redirections are not followed" if 300 <= status < 400 else ""
            reason = f"it answered {status}{also}"
        return f"webhook at {self._place.authority}: {reason}"

    def __repr__(self) -> str:
        return f"<Webhook at {self._place.authority}>"

    def _status(self, body: bytes, now: float) -> int:
        """Post in a thread, and return the status.

        The thread has the time limit: a look-up has none, and that of a socket starts anew with
        each byte.
        """
        if self._thread is not None and self._thread.is_alive():
            raise TimeoutError
        status: Future[int] = Future()
        self._thread = threading.Thread(
            target=self._post, args=(body, now, status), name="limen-webhook", daemon=True
        )
        self._thread.start()
        try:
            return status.result(self._patience_s)
        finally:
            if not status.cancel() and status.running() and self._line is not None:
                with suppress(OSError):
                    # That of an `SSLSocket` would go on without TLS.
                    socket.socket.shutdown(self._line, socket.SHUT_RDWR)
            self._thread.join(_GOODBYE_S)

    def _post(self, body: bytes, now: float, status: Future[int]) -> None:
        try:
            self._late = "to look up its name takes too long"
            addresses = self._addresses()
            self._late = f"no answer in {self._patience_s:g} s"
            with closing(self._connected(addresses)) as self._line:
                # False when the time is over: the caller was told that it failed.
                if status.set_running_or_notify_cancel():
                    self._exchange(self._line, body, now, status)
        except Exception as error:
            with suppress(InvalidStateError):  # the time is over
                status.set_exception(error)

    def _exchange(self, line: socket.socket, body: bytes, now: float, status: Future[int]) -> None:
        connection = HTTPConnection(self._place.host, self._place.port)
        connection.auto_open = 0  # it would look up the name again
        connection.sock = line
        # A server that refuses a request may close the connection before it has read all of it.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", self._place.target, body, self._headers(body, now))
        response = connection.getresponse()
        status.set_result(response.status)
        with closing(response), suppress(OSError, HTTPException):
            line.settimeout(_GOODBYE_S)
            response.read1(_MAX_READ)

    def _headers(self, body: bytes, now: float) -> dict[str, str]:
        headers = {
            "Host": self._place.authority,
            "User-Agent": f"limen/{limen.__version__}",
            "Content-Type": "application/json",
            "Connection": "close",
        }
        if self._secret:
            signed = hmac.new(self._secret, b"%d.%b" % (int(now), body), hashlib.sha256)
            headers[SIGNATURE] = f"t={int(now)},v1={signed.hexdigest()}"
        return headers

    def _addresses(self) -> list[str]:
        """Return where the host is; every one of its addresses must be permitted."""
        host = self._place.host
        try:
            addresses = [host] if _is_address(host) else self._resolve(host, self._place.port)
        except (OSError, UnicodeError):
            addresses = []
        if not addresses:
            raise _Failed("its name leads to no address")
        for address in addresses:
            if not _is_address(address) or not is_permitted(address, private=self._private):
                kind = "an address that is never used" if self._private else "no public address"
                raise _Failed(f"it leads to {address[:64]}, which is {kind}")
        return addresses

    def _connected(self, addresses: list[str]) -> socket.socket:
        line = self._dialled(addresses[:_MAX_TRIED])
        line.settimeout(self._patience_s)
        if self._context is None or not self._place.is_tls:
            return line
        try:
            # The certificate must be for the name, whatever its address is.
            return self._context.wrap_socket(line, server_hostname=self._place.host)
        except BaseException:
            line.close()
            raise

    def _dialled(self, addresses: list[str]) -> socket.socket:
        """Connect to the first address that answers in its share of the time."""
        seconds = self._patience_s / len(addresses)
        for address in addresses[:-1]:
            with suppress(OSError):
                return self._dial((address, self._place.port), seconds)
        return self._dial((addresses[-1], self._place.port), seconds)

    def _in_plain_words(self, error: Exception) -> str:
        if isinstance(error, BadStatusLine) and not str(error).endswith("\n"):
            return "it hung up without an answer"
        if isinstance(error, HTTPException):
            return "it answered, and not in HTTP"
        if isinstance(error, TimeoutError):
            return self._late
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
