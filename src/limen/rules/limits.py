"""From the text of a limit to the limit that a rule counts by: its algorithm, and its name."""

from __future__ import annotations

from collections.abc import Sequence

from limen.errors import InvalidLimit
from limen.model import ALGORITHMS, Limit, grammar
from limen.rules import spec

_MAX_ROLLING = ALGORITHMS["rolling_window"].max_quota


def _implies(terms: grammar.Terms, rule: spec.RuleSpec) -> bool:
    """Return whether the options of a limit belong to another algorithm than the rule's."""
    algorithm = ALGORITHMS.get(rule.algorithm or "")
    if terms.burst is not None:
        return algorithm is None or not algorithm.is_bucket
    if terms.min_interval_us is not None or terms.count_denied:
        return algorithm is None or not algorithm.is_exact
    return False


def limit_of(
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
    number, name = 1, rule.name
    while True:
        limit = Limit(
            terms.quota,
            terms.period if isinstance(terms.period, str) else terms.period / 1e6,
            algorithm=algorithm,
            burst=terms.burst,
            min_interval=None if terms.min_interval_us is None else terms.min_interval_us / 1e6,
            count_denied=terms.count_denied,
            from_first=terms.from_first,
            max_delay=None if terms.max_delay_us is None else terms.max_delay_us / 1e6,
            name=name,
        )
        if str(limit) in map(str, before):
            raise InvalidLimit(f"the limit {limit} stands twice")
        if all(other.identity != limit.identity for other in before):
            return limit
        number += 1
        name = f"{rule.name}#{number}"
