"""Fields as protobuf writes them. Pure."""

from __future__ import annotations


def sized(content: bytes) -> bytes:
    """Return a text, bytes or a message with its length before it."""
    return varint(len(content)) + content


def varint(number: int) -> bytes:
    """Return a whole number: seven bits a byte, the low ones first."""
    return _SMALL[number] if 0 <= number < len(_SMALL) else _long(number)


def _long(number: int) -> bytes:
    number = max(number, 0)
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


_SMALL = tuple([_long(number) for number in range(16_384)])
