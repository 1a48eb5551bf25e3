"""The answer to a request that passes, prepared: all but the numbers. Pure.

Most requests pass, and come under one limit of each rule. For these, no decision, verdict and
message are made of what the store said: the answer is written down at once, and says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from limen.engine import Asked
from limen.http import MAX_POLICIES
from limen.limiter import Prepared
from limen.model import Check, Limit, Reading
from limen.server.faces import Faces
from limen.server.receipts import Receipts, written_charge

_json = msgspec.json.Encoder().encode
_SAID = b'"key":%b,"mode":"enforce","allowed":true,"cost":%d'
_WHOLE = (
    b'%b,"remaining":%d,"retry_after":0.0,"reset_after":%a,"delay":%a,"source":"store",'
    b'"degraded":false,"version":%b,"id":%b,"receipt":%b,"parts":[%b],"exempt":[],'
    b'"not_applicable":[]}'
)


class Passed(Struct, frozen=True, gc=False):
    """What one question is answered if the store lets it pass."""

    prepared: Prepared
    """Its checks."""
    faces: Faces
    """What is the same for all that come under these limits."""
    said: tuple[bytes, ...]
    """What an answer says of each check besides."""
    charged: tuple[bytes, ...]
    """What a receipt says of each check besides."""
    version: str
    """The rules that decide."""

    def told(self, readings: Sequence[Reading], id_: str, receipt: bytes) -> tuple[bytes, bytes]:
        """Return the value of `RateLimit`, and the message."""
        if len(readings) > 1:
            return self._told_together(readings, id_, receipt)
        # What most requests are, without a loop.
        faces = self.faces
        _, left, _, reset_us, delay_us, _ = readings[0]
        if reset_us > 0 and left <= faces.most[0]:
            standing = faces.standing % (left, -(-reset_us // 1_000_000))
        else:
            standing = faces.spelt(readings)
        binding = faces.each[0].begin, left, reset_us / 1e6, delay_us / 1e6
        parts = faces.parts % (self.said[0], left, reset_us / 1e6)
        return standing, self._message(binding, id_, receipt, parts)

    def _told_together(
        self, readings: Sequence[Reading], id_: str, receipt: bytes
    ) -> tuple[bytes, bytes]:
        faces, is_usual, longest_us = self.faces, True, 0
        _, left, _, binding_us, _, _ = readings[0]
        begin, whole = faces.each[0].begin, faces.wholes[0]
        standings: list[int] = []
        parts: list[bytes | float] = []
        for reading, most, its_whole, said, face in zip(
            readings, faces.most, faces.wholes, self.said, faces.each, strict=True
        ):
            _, remaining, _, reset_us, delay_us, _ = reading
            if reset_us <= 0 or remaining > most:
                is_usual = False
            if delay_us > longest_us:
                longest_us = delay_us
            # The one with the smallest share left speaks for all, as limiter.plan.nearest has it.
            if remaining * whole < left * its_whole:
                begin, left, whole, binding_us = face.begin, remaining, its_whole, reset_us
            standings += remaining, -(-reset_us // 1_000_000)
            parts += said, remaining, reset_us / 1e6
        standing = faces.standing % tuple(standings) if is_usual else faces.spelt(readings)
        binding = begin, left, binding_us / 1e6, longest_us / 1e6
        return standing, self._message(binding, id_, receipt, faces.parts % tuple(parts))

    def _message(
        self, binding: tuple[bytes, int, float, float], id_: str, receipt: bytes, parts: bytes
    ) -> bytes:
        return _WHOLE % (*binding, _json(self.version), _json(id_), receipt, parts)

    def receipt(self, readings: Sequence[Reading], id_: int, receipts: Receipts) -> bytes:
        """Return what can be refunded, in JSON."""
        charges: list[bytes] = []
        for charged, reading in zip(self.charged, readings, strict=True):
            charges += charged, reading[5].to_bytes(8)
        return b'"%b"' % receipts.written(id_, self.faces.charges % tuple(charges))


def passed_of(
    asked: Asked, faces: Faces, prepare: Callable[[tuple[Check, ...]], Prepared]
) -> Passed | None:
    """Return what a question is answered if it passes; None where that takes a closer look."""
    found = asked.found
    is_plain = (
        0 < faces.told <= MAX_POLICIES
        and faces.told == len(found.checks) == len(found.applied)
        and not found.exempt
        and not found.not_applicable
        and all(check.cost for check in found.checks)  # else nothing is charged
    )
    if not is_plain or any(len(of_rule) != 1 for of_rule in faces.by_rule):
        return None
    # Slots are held, and not asked for: they would have neither a time nor a stamp.
    assert all(isinstance(check.limit, Limit) for check in found.checks)
    known: dict[bytes, bytes] = {}  # most count by the same key: once is enough
    return Passed(
        prepare(tuple(found.checks)),
        faces,
        tuple([known.setdefault(text, text) for text in map(_said, found.checks)]),
        tuple([known.setdefault(text, text) for text in map(_charged, found.checks)]),
        asked.rules.version,
    )


def _said(check: Check) -> bytes:
    return _SAID % (_json(check.key), check.cost)


def _charged(check: Check) -> bytes:
    return written_charge(check.key, check.cost, check.subject)
