"""From what a rule says to what a request meets: limits read, tiers laid out, shares worked out.

What no single field can know is checked here, and noted with its path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from decimal import Decimal

from limen.errors import InvalidInput, InvalidLimit, did_you_mean
from limen.model import ALGORITHMS, Concurrency, Limit, grammar
from limen.model.network import read_address
from limen.rules import slices, spec
from limen.rules.findings import Findings
from limen.rules.match import ADDRESS, Condition, Values
from limen.rules.rule import (
    Allowance,
    Allowances,
    Exemption,
    Override,
    Overrides,
    Rule,
    Span,
    values_of,
)
from limen.rules.text import Path

_MAX_LIMITS = 100
_MAX_ROLLING = ALGORITHMS["rolling_window"].max_quota
_MAX_ATTRIBUTES = 32
_MAX_HINTS = 10


class Compiler:
    """Makes rules and exemptions of their specifications, and notes what is wrong with them."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._hints = 0

    def rule(self, of: spec.RuleSpec, path: Path, *, is_whole: bool = True) -> Rule:
        """Return the rule. It is good for nothing if a problem was noted.

        Of a rule that is not whole, because some of its fields are wrong, the others are looked at.
        """
        if is_whole:
            self._check(of, path)
        return Rule(
            name=of.name,
            description=of.description,
            conditions=self._conditions(of.match, (*path, "match")),
            key=tuple(of.key),
            missing=of.missing,
            mode=of.mode,
            on_error=of.on_error,
            cost=of.cost,
            concurrency=self._concurrency(of, path),
            allowances=self._allowances(of, of, path),
            variants=self._variants(of, path),
            overrides=self._overrides(of, path),
            enforced=None if of.enforce_percent == 100 else slices.share(of.enforce_percent),
            span=self._span(of.starts, of.ends, path),
            circles=(slices.purpose("enforce", of.name), slices.purpose("variant", of.name)),
        )

    def exemption(self, of: spec.ExemptionSpec, rules: Collection[str], path: Path) -> Exemption:
        """Return the exemption. It is good for nothing if a problem was noted."""
        if of.rules == []:
            self._findings.add((*path, "rules"), "expected at least one rule; without it: all")
        for number, name in enumerate(of.rules or ()):
            if name not in rules:
                # To look for near names among thousands takes a while, each time.
                self._hints += 1
                hint = did_you_mean(name, rules) if self._hints <= _MAX_HINTS else ""
                self._findings.add((*path, "rules", number), f"there is no rule {name!r}{hint}")
        return Exemption(
            name=of.name,
            description=of.description,
            conditions=self._conditions(of.match, (*path, "match")),
            rules=None if of.rules is None else frozenset(of.rules),
            span=self._span(of.starts, of.ends, path),
        )

    def _check(self, of: spec.RuleSpec, path: Path) -> None:
        """Note fields that do not go together."""
        add = self._findings.add
        has_limits = of.limits is not None or of.tiers is not None
        if not has_limits and of.concurrency is None and of.mode not in ("block", "off"):
            add(path, "a rule needs limits, tiers or concurrency, or mode: block")
        if of.tiers is not None and of.limits is None and of.tiers.default is None:
            add(
                (*path, "tiers"),
                "tiers need a default, or the rule its own limits, for who is in none of them",
            )
        for field in ("algorithm", "cost", "overrides", "variants"):
            if not has_limits and getattr(of, field) and of.mode not in ("block", "off"):
                add((*path, field), f"{field} belongs to limits, and this rule has none")
        if of.missing == "deny" and not of.key and not isinstance(of.cost, str):
            add((*path, "missing"), "there is no attribute that can be missing: the key is empty")
        for name, times in Counter(of.key).items():
            if times > 1:
                add((*path, "key"), f"the attribute {name!r} stands {times} times")
        if not of.key:
            for field in ("variants", "overrides"):
                if getattr(of, field):
                    add((*path, field), f"{field} are for single keys, and this rule has no key")
            if of.enforce_percent not in (0, 100):
                add(
                    (*path, "enforce_percent"),
                    "this is a share of the keys, and this rule has no key; expected 0 or 100",
                )

    def _allowances(
        self,
        of: spec.RuleSpec | spec.VariantSpec,
        rule: spec.RuleSpec,
        path: Path,
        variant: str | None = None,
    ) -> Allowances:
        """Lay out what a rule, or a variant of it, allows to whom. What it leaves out is the
        rule's.
        """
        home = path if of is rule else path[:-2]
        limits, where = of.limits, path
        if limits is None:
            limits, where = rule.limits, home
        tiers, tiers_path = of.tiers, path
        if tiers is None and of.limits is None:
            tiers, tiers_path = rule.tiers, home
        forced = None if of is rule else of.algorithm

        def allow(texts: list[str] | None, at: Path, tier: str | None) -> Allowance:
            # For limits that the rule itself can hold, the algorithm of the variant is to blame.
            is_inherited = at[: len(path)] != path
            blamed = (*path, "algorithm") if forced and is_inherited else None
            return Allowance(self._limits(texts or [], rule, forced, at, blamed), tier, variant)

        own = allow(limits, (*where, "limits"), None)
        if tiers is None:
            return Allowances(own)
        at = (*tiers_path, "tiers")
        default = None
        if tiers.default is not None:
            default = allow(tiers.default, (*at, "default"), None)
        return Allowances(
            default if limits is None and default is not None else own,
            tiers.by,
            {name: allow(of, (*at, "limits", name), name) for name, of in tiers.limits.items()},
            default,
        )

    def _limits(
        self,
        texts: Sequence[str],
        rule: spec.RuleSpec,
        forced: str | None,
        path: Path,
        blamed: Path | None = None,
    ) -> tuple[Limit, ...]:
        """Read limits. Each counts under the rule's name; those that would share, by a number too.

        By that number and not by their place, so that a limit added before others leaves their
        counters as they are.
        """
        found: list[Limit] = []
        most = _MAX_LIMITS - (rule.concurrency is not None)
        for number, text in enumerate(texts):
            try:
                for terms in grammar.parse(text):
                    if len(found) <= most:
                        found.append(_limit(terms, rule, forced, found))
            except InvalidLimit as error:
                if blamed is None:
                    self._findings.add((*path, number), str(error))
                elif not self._findings.has((*path, number)):
                    self._findings.add(blamed, str(error))
        if len(found) > most and blamed is None:
            self._findings.add(path, f"at most {most} limits fit on one request, got more")
        return tuple(found)

    def _concurrency(self, of: spec.RuleSpec, path: Path) -> Concurrency | None:
        if of.concurrency is None:
            return None
        try:
            return Concurrency(of.concurrency.slots, of.concurrency.lease / 1e6, name=of.name)
        except InvalidLimit as error:
            self._findings.add((*path, "concurrency"), str(error))
            return None

    def _variants(self, of: spec.RuleSpec, path: Path) -> tuple[tuple[int, Allowances], ...]:
        found, names, percent = [], set(), Decimal(0)
        for number, variant in enumerate(of.variants):
            at = (*path, "variants", number)
            name = variant.name or f"v{number + 1}"
            if name in names:
                self._findings.add((*at, "name"), f"there are two variants {name!r}")
            names.add(name)
            if variant.algorithm is None and variant.limits is None and variant.tiers is None:
                self._findings.add(at, "a variant needs an algorithm, limits or tiers of its own")
            if variant.limits is not None and variant.tiers is None and of.tiers is not None:
                self._findings.add(
                    (*at, "limits"),
                    "the rule has tiers: give the variant its own tiers instead",
                )
            percent += Decimal(str(variant.percent))
            found.append((slices.share(float(percent)), self._allowances(variant, of, at, name)))
        if percent > 100:
            self._findings.add(
                (*path, "variants"),
                f"expected shares of at most 100 percent together, got {percent:g}",
            )
        return tuple(found)

    def _overrides(self, of: spec.RuleSpec, path: Path) -> Overrides:
        tables: dict[tuple[str, ...], dict[tuple[str, ...], tuple[Override, ...]]] = {}
        for number, override in enumerate(of.overrides):
            at = (*path, "overrides", number)
            if not override.key:
                self._findings.add((*at, "key"), "expected at least one attribute of the key")
            for name in override.key:
                if of.key and name not in of.key:
                    self._findings.add(
                        (*at, "key", name),
                        f"the rule's key has no {name!r}{did_you_mean(name, of.key)}; "
                        f"it has: {', '.join(of.key)}",
                    )
            if ADDRESS in override.key and read_address(override.key[ADDRESS]) is None:
                self._findings.add(
                    (*at, "key", ADDRESS),
                    f"expected a single address, got {override.key[ADDRESS]!r}",
                )
            names = tuple(name for name in of.key if name in override.key)
            limits = self._limits(override.limits, of, None, (*at, "limits"))
            span = self._span(override.starts, override.ends, at)
            values = values_of(names, override.key)
            table = tables.setdefault(names, {})
            allowance = Allowance(limits, is_override=True)
            table[values] = (*table.get(values, ()), Override(allowance, span))
        return tuple(sorted(tables.items(), key=lambda item: -len(item[0])))

    def _conditions(self, match: spec.Match, path: Path) -> dict[str, Condition]:
        found = {}
        if len(match) > _MAX_ATTRIBUTES:
            self._findings.add(path, f"at most {_MAX_ATTRIBUTES} attributes fit, got {len(match)}")
        for name, of in match.items():
            try:
                is_, not_ = _values(of.is_, name), _values(of.not_, name)
                found[name] = Condition(is_, not_, of.present)
            except InvalidInput as error:
                self._findings.add((*path, name), str(error))
            if of.is_ is None and of.not_ is None and of.present is None:
                self._findings.add(
                    (*path, name),
                    "expected a value, a list, or a mapping with is, not or present; got nothing",
                )
            if of.present is False and (of.is_ is not None or of.not_ is not None):
                self._findings.add(
                    (*path, name, "present"),
                    "what is absent has no value to compare: drop 'present', or 'is' and 'not'",
                )
        return found

    def _span(self, starts: datetime | None, ends: datetime | None, path: Path) -> Span:
        if starts is not None and ends is not None and starts >= ends:
            began, ended = starts.isoformat(), ends.isoformat()
            self._findings.add(
                (*path, "ends"), f"expected a time after it starts ({began}), got {ended}"
            )
        return Span(
            None if starts is None else starts.timestamp(),
            None if ends is None else ends.timestamp(),
        )


def _values(texts: list[str] | None, attribute: str) -> Values | None:
    """Return what a condition on this attribute is matched by."""
    return None if texts is None else Values(texts, are_addresses=attribute == ADDRESS)


def _limit(
    terms: grammar.Terms, rule: spec.RuleSpec, forced: str | None, before: Sequence[Limit]
) -> Limit:
    """Build a limit under the rule's name."""
    algorithm = terms.algorithm
    # What a text implies, by its period or its options, the rule's algorithm leaves alone. A
    # variant's takes the place of any; only a calendar period has no choice.
    if not isinstance(terms.period, str) and (forced or not (algorithm or _implies(terms, rule))):
        algorithm = forced or rule.algorithm
        if algorithm == "rolling_window" and terms.quota > _MAX_ROLLING:
            # Said for the whole rule; and packed, the same window decides the same.
            algorithm = "packed_window"
    limit = Limit(
        terms.quota,
        terms.period if isinstance(terms.period, str) else terms.period / 1e6,
        algorithm=algorithm,
        burst=terms.burst,
        min_interval=None if terms.min_interval_us is None else terms.min_interval_us / 1e6,
        count_denied=terms.count_denied,
        from_first=terms.from_first,
        max_delay=None if terms.max_delay_us is None else terms.max_delay_us / 1e6,
        name=rule.name,
    )
    if str(limit) in map(str, before):
        raise InvalidLimit(f"the limit {limit} stands twice")
    number = 1
    while any(other.identity == limit.identity for other in before):
        number += 1
        limit = limit.named(f"{rule.name}#{number}")
    return limit


def _implies(terms: grammar.Terms, rule: spec.RuleSpec) -> bool:
    """Return whether the options of a limit belong to another algorithm than the rule's."""
    algorithm = ALGORITHMS.get(rule.algorithm or "")
    if terms.burst is not None:
        return algorithm is None or not algorithm.is_bucket
    if terms.min_interval_us is not None or terms.count_denied:
        return algorithm is None or not algorithm.is_exact
    return False
