"""`Request` and `Response`: what every adapter tells of a request and its answer, in one form.

An adapter derives a `Request` that reads its framework's own; nothing is read before it is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec import Struct

from limen.adapters.manner import Manner
from limen.http import Client, normal_path

# Servers that read proxies' headers themselves take any text there for an address. Whoever sends
# one that is none is counted with those who do the same: he has no choice of buckets.
_UNREADABLE = Client("unreadable", "unreadable")
UNMATCHED = "(none)"
"""The endpoint of all paths that match no route."""


class Request(ABC):
    """A request, as limits see it."""

    __slots__ = ("_native", "manner")

    address_setting: ClassVar[str] = (
        "trusted_proxies of addresses=AddressSettings(trusted_proxies=..., header=...)"
    )
    """The setting that lists trusted proxies, for messages."""

    def __init__(self, manner: Manner, native: Any = None) -> None:
        self.manner: Manner = manner
        """How clients are told apart, and how they are told."""
        self._native = native

    @property
    def native(self) -> Any:
        """The framework's own request: what key functions and the like are called with.

        Where it has none, this one.
        """
        return self if self._native is None else self._native

    @property
    @abstractmethod
    def method(self) -> str:
        """The method: `"GET"`."""

    @property
    @abstractmethod
    def path(self) -> str:
        """The path, decoded, as the framework has it."""

    @property
    @abstractmethod
    def peer(self) -> str | None:
        """The address of who connected; None for a socket in the file system."""

    @abstractmethod
    def header(self, name: str) -> Sequence[str]:
        """Return the values of a header, one for each time it was sent. `name` is in lower case.

        Spaces and tabs around a value are not part of it (RFC 9110, section 5.5).
        """

    @property
    def route(self) -> str | None:
        """The template of the path: `"/users/{id}"`. None where it is not known, or not yet.

        Here, the one of the templates that were given.
        """
        routes = self.manner.routes
        return None if routes is None else routes.template_of(self.path, decoded=True)

    @property
    def endpoint(self) -> str | None:
        """What tells endpoints apart: the methods and the template, `"GET /users/{id}"`.

        Of templates that were given, all paths that match none are one endpoint.
        """
        return self.route if self.manner.routes is None else self.route or UNMATCHED

    @property
    def user(self) -> str | None:
        """Who is logged in, as the framework knows it; None for nobody."""
        return None

    @property
    def client(self) -> Client | None:
        """Who asks, by address, through proxies that are trusted; None without an address."""
        addresses, peer = self.manner.addresses, self.peer
        header = addresses.header
        found = addresses.of(peer, self.header(header) if header else ())
        if not addresses.is_warned:
            addresses.warn_of_ignored(peer, self.header, self.address_setting)
        return found or (_UNREADABLE if peer and not self.is_socket(peer) else None)

    def is_socket(self, peer: str) -> bool:
        """Return whether what the server has for an address is a socket in the file system."""
        return peer.startswith(("/", "unix:")) or peer in ("localhost", "<local>")

    def passes(self, error: Exception) -> bool:
        """Return whether the framework turns an error of a key function into a response itself.

        Such an error, as `abort(401)` raises it, is raised unchanged.
        """
        return False

    def check_delay(self, delay: float) -> None:  # noqa: B027  # most requests can be delayed
        """Raise an exception if the request cannot be delayed by so many seconds."""

    def attributes(self) -> dict[str, str]:
        """Return what rules may match and count by. What is not known is left out."""
        found = {"method": self.method, "path": normal_path(self.path, decoded=True)}
        client, route, user = self.client, self.route, self.user
        if client is not None:
            found["ip"] = client.key
        if route is not None:
            found["route"] = route
        if user is not None:
            found["user"] = user
        return found


class Response(Struct):
    """An answer, where the framework has no object for it. `deduct_when` and `settle` get it."""

    status: int
    """The status: 200."""
    headers: Mapping[str, str] = {}
    """The headers, names in lower case; of several of one name, the last."""
    bytes_sent: int = 0
    """How much of the body is sent. All of it, when `settle` is asked."""

    @property
    def status_code(self) -> int:
        """The same as `status`, under the name that frameworks have for it."""
        return self.status
