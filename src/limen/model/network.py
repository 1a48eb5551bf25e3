"""IP addresses as numbers, and sets of networks. IPv4 that is written as IPv6 is IPv4. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from limen.errors import InvalidInput, shown

Number = tuple[int, int]
"""An address: its version, and its bits."""
Network = IPv4Network | IPv6Network
_MAX_ADDRESS = 64


class Networks:
    """A set of networks, in which an address is found by one look for each length of prefix."""

    __slots__ = ("tables",)

    def __init__(self, networks: Iterable[Network]) -> None:
        self.tables: dict[tuple[int, int], set[int]] = {}
        """By version and by the bits that are cut off: what is left of each network's address."""
        for network in map(unmapped, networks):
            cut = network.max_prefixlen - network.prefixlen
            start = int(network.network_address) >> cut
            self.tables.setdefault((network.version, cut), set()).add(start)

    def holds(self, address: Number | None) -> bool:
        """Return whether an address is in one of the networks; None is in none."""
        if address is None:
            return False
        version, bits = address
        for (of_version, cut), starts in self.tables.items():
            if of_version == version and bits >> cut in starts:
                return True
        return False


def read_address(text: str) -> Number | None:
    """Return an address as a number; None for any other text."""
    # A long text is not cached: a client that sends many must not fill the memory.
    return None if len(text) > _MAX_ADDRESS else _read_address(text)


@lru_cache(maxsize=8_192)
def _read_address(text: str) -> Number | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return 4, int(address.ipv4_mapped)
    return address.version, int(address)


@lru_cache(maxsize=8_192)
def address_text(address: Number) -> str:
    """Return the one spelling of an address."""
    version, bits = address
    return str(IPv4Address(bits) if version == 4 else IPv6Address(bits))


def read_network(text: str) -> Network:
    """Read `10.0.0.0/8`, or a single address. Raises `InvalidInput` that says what to write."""
    try:
        return ip_network(text)
    except ValueError:
        pass
    try:
        loose = ip_network(text, strict=False)
    except ValueError:
        raise InvalidInput(
            f"expected an address or a network such as '10.0.0.0/8', got {shown(text)}"
        ) from None
    raise InvalidInput(f"{shown(text)} is an address within a network; did you mean '{loose}'?")


def unmapped(network: Network) -> Network:
    """Return the IPv4 network that an IPv6 network stands for, or the network itself."""
    if isinstance(network, IPv4Network) or network.prefixlen < 96:
        return network
    first = network.network_address.ipv4_mapped
    return network if first is None else IPv4Network((int(first), network.prefixlen - 96))
