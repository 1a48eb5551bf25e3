"""What is valid in a rule set and surely not meant: said when a person checks it. Pure.

Nothing here is wrong: a set with advice holds as it is written. What is refused is in `compile`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from ipaddress import ip_network

from limen.errors import Problem
from limen.rules.findings import Lines, path_text
from limen.rules.match import ADDRESS
from limen.rules.rule import Allowance, Rule, values_of
from limen.rules.ruleset import RuleSet
from limen.rules.spec import ExemptionSpec, Match, OverrideSpec, RuleSpec, TiersSpec
from limen.rules.text import Path

_PATH = "path"
_REGULAR = re.compile(r"^\^|\$$|\\[dDwWsSbB]|\[[^\]]+\][+*?{]")
_ANY_CHARACTERS = re.compile(r"\.\*")
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

Remark = tuple[Path, str]


def advice(rules: RuleSet, lines: Lines | None = None) -> list[Problem]:
    """Return what the author of a rule set should look at again, in the order of the file.

    `lines` tells the line of a path, as `limen.rules.text.Text.line` does.
    """
    found = [
        Problem(path_text(path), message, lines(path) if lines else None)
        for path, message in _remarks(rules)
    ]
    return sorted(found, key=lambda problem: problem.line or 0)


def _remarks(rules: RuleSet) -> Iterator[Remark]:
    written = rules.document.get("rules") or []
    for number, (raw, rule) in enumerate(zip(written, rules.rules, strict=True)):
        path: Path = ("rules", number)
        of = RuleSpec.model_validate(raw)
        yield from _of_match(of.match, (*path, "match"))
        yield from _of_cost(rule, (*path, "cost"))
        for tiers, at in _tiers(of, path):
            yield from _of_tiers(tiers, at)
        yield from _of_overrides(of, (*path, "overrides"))
    for number, raw in enumerate(rules.document.get("exemptions") or []):
        match = ExemptionSpec.model_validate(raw).match
        yield from _of_match(match, ("exemptions", number, "match"))


def _of_match(match: Match, path: Path) -> Iterator[Remark]:
    for name, condition in match.items():
        for text in (*(condition.is_ or ()), *(condition.not_ or ())):
            if name != ADDRESS and _is_network(text):
                yield (
                    (*path, name),
                    f"'{text}' is compared as text: networks are for the attribute '{ADDRESS}'",
                )
            if _REGULAR.search(text) or (name == _PATH and _ANY_CHARACTERS.search(text)):
                yield (
                    (*path, name),
                    f"'{text}' looks like a regular expression, and there are none: "
                    "only * is special, for any characters",
                )


def _of_cost(rule: Rule, path: Path) -> Iterator[Remark]:
    if not isinstance(rule.cost, int) or rule.mode in ("off", "block"):
        return
    several = {str(limit): limit for of in _allowances(rule) for limit in of.limits}
    for text, limit in several.items():
        if rule.cost > limit.capacity:
            yield path, f"{rule.cost} never fits: '{text}' holds {limit.capacity} at most"


def _allowances(rule: Rule) -> Iterator[Allowance]:
    for several in (rule.allowances, *(variant for _, variant in rule.variants)):
        yield several.own
        yield from several.tiers.values()
        if several.default is not None:
            yield several.default
    for _, table in rule.overrides:
        for same in table.values():
            for override in same:
                yield override.allowance


def _tiers(of: RuleSpec, path: Path) -> Iterator[tuple[TiersSpec, Path]]:
    if of.tiers is not None:
        yield of.tiers, (*path, "tiers")
    for number, variant in enumerate(of.variants):
        if variant.tiers is not None:
            yield variant.tiers, (*path, "variants", number, "tiers")


def _of_tiers(tiers: TiersSpec, path: Path) -> Iterator[Remark]:
    for name in tiers.limits:
        if "*" in name:
            yield (
                (*path, "limits", name),
                f"'{name}' is compared as text: for the other tiers there is 'default'",
            )


def _of_overrides(of: RuleSpec, path: Path) -> Iterator[Remark]:
    by_key: dict[tuple[str, ...], list[int]] = {}
    for number, override in enumerate(of.overrides):
        for name, value in override.key.items():
            if "*" in value:
                yield (
                    (*path, number, "key", name),
                    f"'{value}' is compared as text: an override is for one key",
                )
        names = tuple(sorted(override.key))
        by_key.setdefault((*names, *values_of(names, override.key)), []).append(number)
    for same in by_key.values():
        for first, second in _overlaps(of.overrides, same):
            yield (
                (*path, second),
                f"this is for the same key as overrides[{first}], at the same time: "
                "the first of them wins",
            )


def _overlaps(overrides: list[OverrideSpec], same: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield pairs of overrides that hold at one time, each with the one that lasts the longest."""
    last: int | None = None
    for number in sorted(same, key=lambda each: overrides[each].starts or _FIRST):
        end = _FIRST if last is None else overrides[last].ends or _LAST
        if last is not None and (overrides[number].starts or _FIRST) < end:
            yield min(last, number), max(last, number)
        if last is None or (overrides[number].ends or _LAST) > end:
            last = number


def _is_network(text: str) -> bool:
    if "/" not in text:
        return False
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True
