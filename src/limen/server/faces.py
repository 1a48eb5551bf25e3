"""What is said of the limits of a question whatever is decided: names, texts, policies. Pure.

Worked out when a question is understood, and remembered with it: an answer then only adds numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import msgspec
from msgspec import Struct

from limen import wire
from limen.engine import Asked
from limen.http import Policy, policies
from limen.limiter.plan import whole
from limen.model import Concurrency, Limit, Reading
from limen.rules.rule import Applied
from limen.server.memo import Memo
from limen.server.receipts import written_charges

_ROOM = 16_000_000
"""For what is said of limits, in bytes."""
_PART = (
    b'{"rule":%b,"name":%b,"limit":%b,%%b,"remaining":%%d,"retry_after":0.0,"reset_after":%%a,'
    b'"tier":%b,"variant":%b,"reason":null}'
)
_json = msgspec.json.Encoder().encode


class Face(Struct, frozen=True, gc=False):
    """One limit of one rule."""

    rule: str
    name: str
    """The limit within the rule: `"search-per-user#2"`."""
    limit: str
    """As text: `"100/minute"`."""
    counts_as: str | None
    """The name under which it counts."""
    mode: wire.Mode
    tier: str | None
    variant: str | None
    attribute: str | None
    """The attribute by which the rule charges."""
    is_asked: bool
    """Whether it is charged at the cost that the question itself gives."""
    policy: Policy | None
    """What headers say; None for a shadow, of which nobody is told."""
    begin: bytes
    """How an answer begins that lets pass, when this limit binds."""


class Faces(Struct, frozen=True, gc=False):
    """All limits of one question."""

    by_rule: tuple[tuple[Face, ...], ...]
    """For each rule that applies, in their order; nothing where nothing is counted."""
    policy: bytes
    """The value of `RateLimit-Policy`; empty without a limit that could refuse."""
    told: int
    """How many limits that is."""
    policies: tuple[Policy | None, ...]
    """What headers say of each limit, rule after rule; None for a shadow."""
    lines: bytes
    """The headers that tell where a client stands as they are sent, for `%` with `RateLimit`."""
    standing: bytes
    """The value of `RateLimit`, for `%` with what remains and whole seconds to reset of each limit:
    good for limits that know time."""
    most: tuple[int, ...]
    """What can be left of each limit that headers tell of."""
    each: tuple[Face, ...]
    """All limits, rule after rule."""
    wholes: tuple[int, ...]
    """What each of them hands out at most."""
    rules: tuple[str, ...]
    """The rule of each limit."""
    parts: bytes
    """What an answer says of limits that let pass, for `%` with what is `said` of a check, what
    remains, and seconds to reset; of each."""
    charges: bytes
    """What a receipt says of them, for `%` with what is `charged`, and the stamp; of each."""

    def spelt(self, readings: Sequence[Reading]) -> bytes:
        """Return the value of `RateLimit` for who passes, whatever numbers there are.

        `standing` says the same, where time is left to each reset, and no more remains than `most`.
        """
        standings: list[str] = []
        for policy, reading in zip(self.policies, readings, strict=True):
            assert policy is not None  # all are enforced
            standings.append(policy.standing(True, reading[1], 0.0, reading[3] / 1e6))
        return ", ".join(standings).encode()


class Gallery:
    """Remembers the faces of rules: they say the same to many."""

    def __init__(self) -> None:
        self._known: Memo[Faces] = Memo(_ROOM, least=200)
        self.made: int = 0
        """How many bytes all faces took that were ever made."""

    def faces(self, asked: Asked) -> Faces:
        """Return what is said of the rules that a request meets."""
        applied = asked.found.applied
        signs = tuple([_sign(of) for of in applied])
        found = self._known.get(signs, asked.rules)
        if found is None:
            found = faces_of(applied)
            size = 600 + 700 * len(found.each)
            self.made += size
            self._known.keep(signs, found, size)
        return found


def _sign(applied: Applied) -> Hashable:
    """Return what tells how a rule applies from all else in its rule set.

    Rules and allowances are part of the set: they are there as long as it is, and so are their ids.
    """
    rule = applied.rule
    if rule.is_plain:
        return id(rule)
    return id(rule), id(applied.allowance), applied.enforce, applied.checks, applied.cost_by


def faces_of(applied: Sequence[Applied]) -> Faces:
    """Return what is said of the rules that apply."""
    enforced = [of for of in applied if of.enforce]
    names = [f"{of.rule.name}#{n}" for of in enforced for n in range(1, of.checks + 1)]
    found = policies(names, [limit for of in enforced for limit in limits_of(of)])
    rest = iter(found)
    by_rule = tuple(
        [
            tuple([_face(of, n, limit, rest) for n, limit in enumerate(limits_of(of), 1)])
            for of in applied
        ]
    )
    each = tuple([face for of_rule in by_rule for face in of_rule])
    standing = ", ".join([f"{policy.name};r=%d;t=%d" for policy in found])
    terms = ", ".join([policy.terms for policy in found]).encode()
    lines = b"ratelimit-policy: %b\r\nratelimit: %%b\r\n" % terms.replace(b"%", b"%%")
    return Faces(
        by_rule,
        terms,
        len(found),
        tuple([face.policy for face in each]),
        lines,
        standing.encode(),
        tuple([policy.most for policy in found]),
        each,
        tuple([whole(limit) for of in applied for limit in limits_of(of)]),
        tuple([face.rule for face in each]),
        b",".join([_part(face) for face in each]),
        written_charges([(f.limit, f.counts_as, f.attribute, f.is_asked) for f in each]),
    )


def limits_of(applied: Applied) -> Sequence[Limit | Concurrency]:
    """Return what a rule checks, in the order of its checks."""
    rule, limits = applied.rule, applied.allowance.limits
    if len(limits) < applied.checks and rule.concurrency is not None:
        return (rule.concurrency, *limits)
    return limits[: applied.checks]


def _face(
    applied: Applied, number: int, limit: Limit | Concurrency, policies: Iterator[Policy]
) -> Face:
    rule, allowance = applied.rule, applied.allowance
    text = str(limit)
    return Face(
        rule.name,
        f"{rule.name}#{number}",
        text,
        limit.name,
        "enforce" if applied.enforce else "shadow",
        allowance.tier,
        allowance.variant,
        rule.cost if isinstance(rule.cost, str) else None,
        applied.cost_by is None,
        next(policies) if applied.enforce else None,
        b'{"allowed":true,"rule":%b,"limit":%b' % (_json(rule.name), _json(text)),
    )


def _part(face: Face) -> bytes:
    texts = (face.rule, face.name, face.limit, face.tier, face.variant)
    return _PART % tuple([_json(text).replace(b"%", b"%%") for text in texts])
