"""A rule set as a table, with a line for each rule."""

from __future__ import annotations

from collections.abc import Sequence

from limen.cli import output
from limen.model import Limit
from limen.rules import RuleSet
from limen.rules.explain import conditions, moment_text
from limen.rules.rule import Allowance, Exemption, Rule, Span

_RULE = ("NAME", "MATCH", "KEY", "LIMITS", "MODE", "TIME (UTC)")
_EXEMPTION = ("EXEMPT", "MATCH", "FROM", "TIME (UTC)")


def print_rules(rules: RuleSet) -> None:
    """Print the rules and the exemptions."""
    if rules.rules:
        output.print_table(_RULE, [_rule_row(rule) for rule in rules.rules])
    if rules.exemptions:
        output.print_line()
        output.print_table(
            _EXEMPTION, [_exemption_row(exemption) for exemption in rules.exemptions]
        )


def _mode(rule: Rule) -> str:
    """Return the mode of a rule: `enforce`, `enforce 25 %`, `shadow`."""
    if rule.enforced is None or rule.mode not in ("enforce", "block"):
        return rule.mode
    return f"{rule.mode} {rule.enforced_percent:g} %"


def _rule_row(rule: Rule) -> list[output.Cell]:
    return [
        rule.name,
        conditions(rule.conditions) or "everything",
        ", ".join(rule.key) or "-",
        _limits_of(rule) or "-",
        _mode(rule),
        _span_text(rule.span),
    ]


def _exemption_row(exemption: Exemption) -> list[output.Cell]:
    rules = "all rules" if exemption.rules is None else ", ".join(sorted(exemption.rules))
    match = conditions(exemption.conditions)
    return [exemption.name, match, rules, _span_text(exemption.span)]


def _limits_of(rule: Rule) -> list[str]:
    """Return the limits of a rule: `100/minute`, `pro: 600/minute`, `2 overrides`."""
    allowances = rule.allowances
    words = [] if rule.concurrency is None else [str(rule.concurrency)]
    if allowances.own.limits and allowances.own is not allowances.default:
        words.append(_limits(allowances.own.limits))
    words += [f"{tier}: {_allowed(of)}" for tier, of in allowances.tiers.items()]
    if allowances.default is not None:
        words.append(f"other: {_allowed(allowances.default)}")
    if rule.variants:
        words.append(output.pluralize(len(rule.variants), "variant"))
    overrides = sum(len(same) for _, table in rule.overrides for same in table.values())
    if overrides:
        words.append(output.pluralize(overrides, "override"))
    return words


def _allowed(allowance: Allowance) -> str:
    return _limits(allowance.limits) or "unlimited"


def _limits(limits: Sequence[Limit]) -> str:
    return ", ".join(map(str, limits))


def _span_text(span: Span) -> str:
    starts = "" if span.starts is None else f"from {moment_text(span.starts)}"
    ends = "" if span.ends is None else f"until {moment_text(span.ends)}"
    return f"{starts} {ends}".strip()
