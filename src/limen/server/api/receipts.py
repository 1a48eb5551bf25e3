"""Receipts and slots as text: opaque to who holds them, signed so that nobody can make them up.

A receipt carries what it takes to correct a charge from any worker and host that has the same
secret, so nothing has to be remembered. It is not encrypted: it tells what the caller knows anyway.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import zlib
from functools import lru_cache

import msgspec
from msgspec import Struct

from limen.engine import Bill, Charge
from limen.errors import InvalidInput, InvalidLimit
from limen.model import Check, Concurrency, Limit, Source

_MAC_BYTES = 16
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_RECEIPT, _SLOT = b"r", b"s"
_LONG = 4_096


Charged = tuple[str, str | None, str, int, str | None, int, str | None, bool]
"""One charge: the limit as text, the name under which it counts, the key, the cost, the subject,
the stamp, the attribute by which the rule charges, and whether it was charged at the cost of the
request. A tuple, because it is written for every decision."""
_Receipt = tuple[str, str, list[Charged]]
"""The id, the process that counted in place of the store (or nothing), and the charges."""
_Place = tuple[int, float, str | None, str, str | None]
"""The slots and the lease of a limit, its name, the key and the subject."""
_Slot = tuple[str, list[_Place]]
"""The id, and the places."""


class Held(Struct, frozen=True):
    """A slot that was handed out before."""

    id: str
    places: tuple[Check, ...]

    @property
    def lease(self) -> float:
        """Within how many seconds it has to be renewed."""
        return min(
            check.limit.lease for check in self.places if isinstance(check.limit, Concurrency)
        )


class Receipts:
    """Writes and reads receipts and slots. `process` names this process among others."""

    def __init__(self, secret: str, process: str) -> None:
        key = hashlib.sha256(b"limen receipts\0" + secret.encode()).digest()
        self._keyed = {
            kind: hashlib.blake2b(digest_size=_MAC_BYTES, key=key, person=kind)
            for kind in (_RECEIPT, _SLOT, _RECEIPT.upper(), _SLOT.upper())
        }
        self._process = process
        self._write = msgspec.msgpack.Encoder().encode
        self._read_receipt = msgspec.msgpack.Decoder(_Receipt).decode
        self._read_slot = msgspec.msgpack.Decoder(_Slot).decode

    def receipt(self, id_: int, source: Source, charges: list[Charged]) -> str:
        """Return what a decision charged as text."""
        counted_by = "" if source == "store" else self._process
        payload = self._write((f"{id_:016x}", counted_by, charges))
        return self._sealed(_RECEIPT, payload).decode()

    def bill(self, receipt: str) -> Bill | None:
        """Return the bill of a receipt; None when another process, which may be gone, counted it.

        Raises `InvalidInput` for what this service did not write.
        """
        opened = self._opened(_RECEIPT, receipt, "receipt")
        id_, counted_by, charged = self._read_receipt(opened)
        if counted_by and counted_by != self._process:
            return None
        charges = [
            Charge(Check(_limit(text, name), key, cost, subject), stamp_us, attribute, is_asked)
            for text, name, key, cost, subject, stamp_us, attribute, is_asked in charged
        ]
        return Bill(id_, tuple(charges), "local" if counted_by else "store")

    def slot(self, held: Held) -> str:
        """Return a slot as text."""
        places: list[_Place] = [
            (limit.slots, limit.lease, limit.name, check.key, check.subject)
            for check in held.places
            for limit in (check.limit,)
            if isinstance(limit, Concurrency)
        ]
        return self._sealed(_SLOT, self._write((held.id, places))).decode()

    def held(self, slot: str) -> Held:
        """Return what a slot is about. Raises `InvalidInput` for what was not written here."""
        id_, places = self._read_slot(self._opened(_SLOT, slot, "slot"))
        checks = [
            Check(Concurrency(slots, lease, name=name), key, 1, subject)
            for slots, lease, name, key, subject in places
        ]
        return Held(id_, tuple(checks))

    def _sealed(self, kind: bytes, payload: bytes) -> bytes:
        if len(payload) > _LONG:
            # A hundred limits on one long key would say it a hundred times.
            kind, payload = kind.upper(), zlib.compress(payload, 1)
        return _text(self._mac(kind, payload) + payload)

    def _opened(self, kind: bytes, text: str, what: str) -> bytes:
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except ValueError:
            raw = b""
        mac, payload = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        # One text for each: base64 leaves bits at the end that mean nothing.
        if _text(raw).decode() == text:
            if hmac.compare_digest(mac, self._mac(kind, payload)):
                return payload
            if hmac.compare_digest(mac, self._mac(kind.upper(), payload)):
                return zlib.decompress(payload)
        raise InvalidInput(
            f"this {what} was not written here; hosts that share limits must share LIMEN_AUTH__"
            "SECRET too"
        )

    def _mac(self, kind: bytes, payload: bytes) -> bytes:
        # A copy of one that has the key already: half the time of a new one.
        mac = self._keyed[kind].copy()
        mac.update(payload)
        return mac.digest()


def _text(raw: bytes) -> bytes:
    # Url-safe: a slot is part of an address.
    return binascii.b2a_base64(raw, newline=False).translate(_URL_SAFE).rstrip(b"=")


@lru_cache(maxsize=4_096)
def _limit(text: str, name: str | None) -> Limit:
    try:
        return Limit.parse(text).named(name)
    except InvalidLimit as error:  # signed by us, and yet of another version of limen
        raise InvalidInput(str(error)) from None
