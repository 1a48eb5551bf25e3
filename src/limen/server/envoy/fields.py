"""Fields as protobuf writes them. Pure."""

from __future__ import annotations


def sized(content: bytes) -> bytes:
    """Return a text, bytes or a message with its length before it."""
    return varint(len(content)) + content


def varint(number: int) -> bytes:
    """Return a whole number, and 0 for less: seven bits a byte, the low ones first."""
    if 0 <= number < _TWO_BYTES:
        return _SHORT[number]
    if 0 <= number < _FOUR_BYTES:
        return _LOW[number % _TWO_BYTES] + _SHORT[number >> 14]
    return _long(number)


def _long(number: int) -> bytes:
    number = max(number, 0)
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


# Most numbers are small, and looked up.
_TWO_BYTES, _FOUR_BYTES = 1 << 14, 1 << 28
_SHORT = tuple([_long(number) for number in range(_TWO_BYTES)])
_LOW = tuple([bytes((low & 0x7F | 0x80, low >> 7 | 0x80)) for low in range(_TWO_BYTES)])
