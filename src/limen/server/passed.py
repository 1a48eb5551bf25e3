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
from limen.limiter.plan import nearest
from limen.model import UNCHARGED, Check, Reading
from limen.server.faces import Face, Faces
from limen.server.receipts import Receipts, WrittenCharge, written_charge

_json = msgspec.json.Encoder().encode
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
    of_checks: tuple[Face, ...]
    """The same, of each check."""
    rules: tuple[str, ...]
    """The rule of each check."""
    keys: tuple[bytes, ...]
    """The key of each check, in JSON."""
    charges: tuple[WrittenCharge, ...]
    """What a receipt says of each check."""
    version: str
    """The rules that decide."""

    def body(self, readings: Sequence[Reading], id_: str, receipt: bytes) -> bytes:
        """Return the message."""
        binding, checks = self.of_checks[0], self.prepared.checks
        _, remaining, _, reset_us, delay_us, _ = readings[0]
        if len(readings) == 1:
            parts = binding.part % (self.keys[0], checks[0].cost, remaining, reset_us / 1e6)
        else:
            limits = [check.limit for check in checks]
            at = nearest(limits, [reading[1] for reading in readings])
            binding = self.of_checks[at]
            _, remaining, _, reset_us, _, _ = readings[at]
            delay_us = max([reading[4] for reading in readings])
            each = zip(self.of_checks, self.keys, checks, readings, strict=True)
            parts = b",".join(
                [
                    face.part % (key, check.cost, reading[1], reading[3] / 1e6)
                    for face, key, check, reading in each
                ]
            )
        return _WHOLE % (
            binding.begin,
            remaining,
            reset_us / 1e6,
            delay_us / 1e6,
            _json(self.version),
            _json(id_),
            receipt,
            parts,
        )

    def receipt(self, readings: Sequence[Reading], id_: int, receipts: Receipts) -> bytes:
        """Return what can be refunded, in JSON; null when nothing was charged."""
        if len(readings) == 1:
            stamp_us, [charge] = readings[0][5], self.charges
            charged = [] if stamp_us == UNCHARGED else [charge.at(stamp_us)]
        else:
            charged = [
                charge.at(reading[5])
                for charge, reading in zip(self.charges, readings, strict=True)
                if reading[5] != UNCHARGED
            ]
        return b'"%b"' % receipts.written(id_, charged) if charged else b"null"

    def standing(self, readings: Sequence[Reading]) -> bytes:
        """Return the value of `RateLimit`."""
        standings: list[str] = []
        for policy, reading in zip(self.faces.policies, readings, strict=True):
            assert policy is not None  # all are enforced
            standings.append(policy.standing(True, reading[1], 0.0, reading[3] / 1e6))
        return ", ".join(standings).encode()


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
    )
    if not is_plain or any(len(of_rule) != 1 for of_rule in faces.by_rule):
        return None
    of_checks = tuple([face for [face] in faces.by_rule])
    return Passed(
        prepare(tuple(found.checks)),
        faces,
        of_checks,
        tuple([face.rule for face in of_checks]),
        tuple([_json(check.key) for check in found.checks]),
        tuple([_charge(*each) for each in zip(of_checks, found.checks, strict=True)]),
        asked.rules.version,
    )


def _charge(face: Face, check: Check) -> WrittenCharge:
    return written_charge(
        face.limit,
        face.counts_as,
        check.key,
        check.cost,
        check.subject,
        face.attribute,
        face.is_asked,
    )
