"""What Envoy asks, understood: each descriptor as attributes, and what the rules ask for them.

Everything that can be wrong with a request is found here, before anybody is charged.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from msgspec import structs

from limen.backends.sampled import SampledLog
from limen.engine import Asked, Together, together
from limen.engine.asked import ask
from limen.errors import InvalidInput
from limen.model import MAX_COST, Check
from limen.rules import RuleSet, parse
from limen.rules.envoy import DOMAIN, attributes_of, value_of
from limen.rules.ruleset import MAX_CHECKS, Resolution
from limen.server.api.response_templates import (
    ResponseTemplate,
    TemplateCache,
    limits_of,
    template_of,
)
from limen.server.envoy.fields import current_limit
from limen.server.envoy.schema import RequestAsSent

MAX_DESCRIPTORS = 100
MAX_ENTRIES = 64
_MOST_REQUESTS = 10**9
_log = SampledLog(60.0)
_PERIODS = ("", "/second", "/minute", "/hour", "/day", " per 30 days", " per 365 days")
"""Of the units of an override, by their numbers; a month and a year are as that service has them.
"""


class Described(NamedTuple):
    """One descriptor, by what the rules have to do with it."""

    parts: range
    """Which of all limits are its own."""
    refused: bool
    """Whether a rule refuses it without asking the store."""
    is_unlimited: bool
    """Whether rules let it pass uncounted: it is exempt, or its tier is unlimited."""


class Question(NamedTuple):
    """One request of Envoy."""

    together: Together
    descriptors: tuple[Described, ...]
    template: ResponseTemplate
    limits: tuple[bytes, ...]
    """The field of a status that names each limit."""
    beside: tuple[Check, ...]
    """Checks of the other descriptors when the rules refuse one without counting. They are read
    and not charged, so that their statuses have a limit and what remains of it."""


def decoded(raw: bytes) -> Any:
    """Return a `RateLimitRequest`, or raise `InvalidInput`."""
    try:
        return RequestAsSent.FromString(raw)
    except DecodeError:
        raise InvalidInput("the message is not a RateLimitRequest") from None


def understood(request: Any, rules: RuleSet, templates: TemplateCache) -> Question:
    """Return what a `RateLimitRequest` asks, or raise `InvalidInput`."""
    if not request.domain:
        raise InvalidInput("the domain is empty")
    if not 0 < len(request.descriptors) <= MAX_DESCRIPTORS:
        raise InvalidInput(
            f"expected 1 to {MAX_DESCRIPTORS} descriptors, got {len(request.descriptors):,}"
        )
    several: list[Asked] = []
    for number, descriptor in enumerate(request.descriptors):
        try:
            asked = _asked(request.domain, descriptor, request.hits_addend or 1, rules)
        except InvalidInput as error:
            raise InvalidInput(f"descriptors[{number}]: {error}") from None
        several.append(asked)
    try:
        whole = together(several)
    except InvalidInput as error:
        # A client may add to the descriptors by its headers; so this is no error, as below.
        _log.warn("limits", f"a request of Envoy is refused: {error}")
        several = [_of(_UNCOUNTABLE, "", 1) for _ in several]
        whole = together(several)
    described: list[Described] = []
    first = 0
    for asked in several:
        end = first + len(asked.found.checks)
        described.append(_described(asked.found, range(first, end)))
        first = end
    found = whole.whole.found
    # Limits that the request brought along do not live as long as the rules.
    is_of_rules = all(asked.rules is rules for asked in several)
    template = templates.get(whole.whole) if is_of_rules else template_of(whole.whole.applied)
    limits = [current_limit(of, limit) for of in found.applied for limit in limits_of(of)]
    beside = _beside(found, described)
    return Question(whole, tuple(described), template, tuple(limits), beside)


def _beside(found: Resolution, described: Sequence[Described]) -> tuple[Check, ...]:
    is_useful = any(each.parts and not each.refused for each in described)
    if not found.refused or not is_useful or len(found.checks) > MAX_CHECKS:
        return ()
    return tuple(found.checks)


def _described(found: Resolution, parts: range) -> Described:
    is_unlimited = bool(found.exempt) or any(
        of.enforce and not of.checks and of.refusal is None for of in found.applied
    )
    return Described(parts, found.refused, is_unlimited)


def _asked(domain: str, descriptor: Any, hits: int, rules: RuleSet) -> Asked:
    if not 0 < len(descriptor.entries) <= MAX_ENTRIES:
        raise InvalidInput(f"expected 1 to {MAX_ENTRIES} entries, got {len(descriptor.entries):,}")
    entries = [(_text(entry.key), _text(entry.value)) for entry in descriptor.entries]
    if not all(key for key, _ in entries):
        raise InvalidInput("an entry has an empty key")
    if descriptor.is_negative_hits:
        raise InvalidInput("is_negative_hits is not known here: nothing can be given back")
    if descriptor.HasField("hits_addend"):
        hits = descriptor.hits_addend.value
    # What is more than any limit holds is refused as well as what is much more.
    hits = min(hits, MAX_COST)
    if descriptor.HasField("limit"):
        asked = _overridden(domain, entries, descriptor.limit, hits, rules)
    else:
        try:
            asked = ask(rules, attributes_of(domain, entries), hits, time.time_ns(), slots=False)
        except InvalidInput:
            # A client chose what a rule takes for a cost. An error would let it pass, where Envoy
            # lets pass what nobody answers for.
            return _of(_UNCOUNTABLE, "", hits)
    if not hits:
        _only_look(asked.found)
    return asked


def _only_look(found: Resolution) -> None:
    """Take the costs and blocks out of a resolution, for a descriptor with `hits_addend` 0.

    The descriptor pays nothing, whatever a rule takes for a request. A block is a limit of 0,
    which 0 hits do not exceed.
    """
    found.checks[:] = [structs.replace(check, cost=0) for check in found.checks]
    found.applied[:] = [of for of in found.applied if of.refusal != "blocked"]
    found.refused = any(of.enforce and of.refusal is not None for of in found.applied)


def _overridden(
    domain: str, entries: list[tuple[str, str]], limit: Any, hits: int, rules: RuleSet
) -> Asked:
    """Return what a limit asks for that the request brings along: instead of all rules.

    Nothing in a domain that no rule is about, as in envoyproxy/ratelimit.
    """
    if not rules.is_about(DOMAIN, domain):
        return _of(_NONE, "", hits)
    if not 0 < limit.unit < len(_PERIODS):
        raise InvalidInput(f"limit: there is no unit with the number {limit.unit}")
    rules = _rules_of(min(limit.requests_per_unit, _MOST_REQUESTS), limit.unit)
    # One text for each list of entries.
    return _of(rules, repr((domain, *[(key, value_of(value)) for key, value in entries])), hits)


def _of(rules: RuleSet, descriptor: str, hits: int) -> Asked:
    now = time.time()
    return Asked(rules, rules.resolve({"descriptor": descriptor}, hits, now), now)


def _text(value: bytes) -> str:
    """Return a value as text, also when it is none: a client may send any bytes in a header."""
    return value.decode("utf-8", "surrogateescape")


@lru_cache(maxsize=1_024)
def _rules_of(requests: int, unit: int) -> RuleSet:
    rule: dict[str, Any] = {"name": "descriptor-limit", "key": ["descriptor"]}
    if requests:
        rule |= {"limits": f"{requests}{_PERIODS[unit]}", "algorithm": "fixed_window"}
    else:
        rule |= {"mode": "block"}
    return parse({"rules": [rule]})


_UNCOUNTABLE = parse({"rules": [{"name": "uncountable", "mode": "block"}]})
"""What refuses a request whose cost is no number, or that comes under too many limits."""
_NONE = parse({"rules": []})
"""For a limit that is ignored."""
