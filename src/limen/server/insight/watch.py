"""`Watch`: told of every decision of this worker, as it is made. Does no I/O.

Counts for `/metrics`, sees who uses which rule, and keeps some decisions to explain them later.
What it has seen is fetched once a second by the tick.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal

from limen.backends.histogram import TRIP_S, Histogram
from limen.engine import Verdict
from limen.model import Concurrency, Decision, Limit, binding
from limen.observe.cells import MOST_NAMES, OTHERS, Cells
from limen.observe.hiding import Hider, plain
from limen.observe.recent import DecisionRecord, Recent
from limen.observe.slices import RuleSlice
from limen.observe.usage import AT_ONCE, Usage
from limen.rules.rule import Applied
from limen.rules.ruleset import RuleSet

Surface = Literal["check", "slots", "auth", "envoy"]
SURFACES: tuple[Surface, ...] = ("check", "slots", "auth", "envoy")
OWN = "(own limits)"
"""Under which name is counted what callers bring along instead of coming under rules."""
_ALL_AT_ONCE, _LEAST_AT_ONCE = 4_096, 4
"""How many keys may wait in all to be taken note of, and how many of a rule at least."""
_ALL_ROOM, _MOST_ROOM, _LEAST_ROOM = 65_536, 512, 32
"""How many keys all rules share, and how many one of them may have at most, and has at least."""


class Watch:
    """What one worker has decided."""

    def __init__(
        self,
        instance: str = "",
        *,
        hide: Hider = plain,
        recent: Recent | None = None,
        keeps_keys: bool = True,
    ) -> None:
        self.since: float = time.time()
        """When counting began, in seconds since 1970."""
        self.allowed: int = 0
        self.refused: int = 0
        self.degraded: int = 0
        """Decisions that somebody else than the store made."""
        self.fallback: dict[str, list[int]] = {}
        """By who made them instead: how many passed, how many did not."""
        self.undelivered: dict[str, list[int]] = {}
        """Verdicts whose gateway had closed the connection or the call: by surface, how many would
        have let pass, how many not."""
        self.recent: Recent = recent or Recent()
        self.durations: dict[str, Histogram] = {name: Histogram(TRIP_S) for name in SURFACES}
        """How long it took to answer, in seconds, by what was asked."""
        self._instance = instance
        self._version = ""
        self._hide = hide
        self._keeps_keys = keeps_keys
        self._cells = Cells()
        self._usages: dict[str, Usage] = {}
        self._room, self._at_once = _MOST_ROOM, AT_ONCE

    @property
    def refused_by(self) -> dict[str, int]:
        """How many requests each rule refused."""
        return {rule: counts[1] for rule, counts in self._cells.counts.items() if counts[1]}

    @property
    def decisions(self) -> dict[str, list[int]]:
        """How often each rule allowed, denied, would have denied as a shadow, and was degraded."""
        return self._cells.counts

    def see(self, verdict: Verdict, surface: Surface, id_: str) -> None:
        """Record a verdict that was charged for."""
        allowed, decision = verdict.allowed, verdict.decision
        if allowed:
            self.allowed += 1
        else:
            self.refused += 1
        parts: Sequence[Decision] = ()
        if decision is not None:
            parts = decision.several or (decision,)
            if decision.source != "store":
                self.degraded += 1
                self.fallback.setdefault(decision.source, [0, 0])[not allowed] += 1
        if not verdict.applied and parts:
            self._see_rule(OWN, True, parts, allowed)
        first = 0
        for applied in verdict.applied:
            if applied.checks:
                end = first + applied.checks
                self._see_rule(applied.rule.name, applied.enforce, parts[first:end], allowed)
                first = end
            else:
                self._see_uncounted(applied, allowed)
        if self.recent.wants_passed() if allowed else self._wants_refused(verdict):
            self.recent.add(self._seen(verdict, surface, id_))

    def see_undelivered(self, surface: Surface, *, allowed: bool) -> None:
        """Take note of a verdict that its gateway did not wait for. It is counted by `see` too."""
        self.undelivered.setdefault(surface, [0, 0])[not allowed] += 1

    def _wants_refused(self, verdict: Verdict) -> bool:
        binding = verdict.binding
        return self.recent.wants_refused(verdict.rule, None if binding is None else binding.key)

    def _admit(self, rule: str, key: str, limit: Limit | Concurrency, remaining: int) -> None:
        usage = self._usages.get(rule) or self._meet(rule)
        usage.cell.allowed += 1
        if self._keeps_keys:
            waiting = usage.waiting
            waiting.append((key, limit, remaining))
            if len(waiting) >= self._at_once:
                usage.settle()

    def _see_rule(self, rule: str, enforce: bool, parts: Sequence[Decision], passed: bool) -> None:
        """Record the results of one rule: some limits on one key."""
        part = parts[0] if len(parts) == 1 else parts[binding(parts)]
        is_refused = not part.allowed  # if any refuses, the binding one does
        is_degraded = part.source != "store"
        if not is_refused:
            if passed and not is_degraded:
                self._admit(rule, part.key, part.limit, part.remaining)
                return
            if not passed:
                return  # another rule refused, and this one counted nothing
        usage = self._usages.get(rule) or self._meet(rule)
        if is_degraded:
            usage.cell.degraded += 1
        elif enforce:
            usage.cell.denied += 1
        else:
            usage.cell.shadow_denied += 1
        if self._keeps_keys:
            if is_refused:
                usage.refuse(part.key)
            else:
                usage.waiting.append((part.key, part.limit, part.remaining))
                usage.settle()

    def _see_uncounted(self, applied: Applied, passed: bool) -> None:
        """Take note of a rule that counts nothing: unlimited, or refusing by itself."""
        rule = applied.rule.name
        cell = (self._usages.get(rule) or self._meet(rule)).cell
        if applied.refusal is not None:
            if applied.enforce:
                cell.denied += 1
            else:
                cell.shadow_denied += 1
        elif passed:
            cell.allowed += 1

    def _meet(self, rule: str) -> Usage:
        cell = self._cells.named(rule)
        if cell is self._cells.others:
            rule = OTHERS
        usage = self._usages.get(rule)
        if usage is None:
            usage = self._usages[rule] = Usage(cell, self._room)
        return usage

    def use(self, rules: RuleSet) -> None:
        """Have a series for each rule, from nothing on; forget rules that are gone for that."""
        self._version = rules.version
        names = [rule.name for rule in rules.rules]
        self._cells.forget({*names, OWN})
        for name in names[:MOST_NAMES]:
            self._cells.named(name)
        self._share_out(len(names))

    def _share_out(self, rules: int) -> None:
        """Share the room for keys among so many rules, and let fewer keys of each wait."""
        self._room = max(_LEAST_ROOM, min(_MOST_ROOM, _ALL_ROOM // max(1, rules)))
        self._at_once = max(_LEAST_AT_ONCE, min(AT_ONCE, _ALL_AT_ONCE // max(1, rules)))

    @property
    def usages(self) -> dict[str, Usage]:
        """What was seen of each rule since the slice began."""
        for usage in self._usages.values():
            usage.settle()
        return self._usages.copy()

    def begin(self) -> dict[str, Usage]:
        """Begin another slice; return what was seen in the one that is over.

        The room for keys is shared by as many rules as were used in it.
        """
        over, self._usages = self._usages, {}
        for usage in over.values():
            usage.end()
        self._share_out(len(over))
        return over

    def taken(self, usages: Mapping[str, Usage]) -> dict[str, RuleSlice]:
        """Return what was seen of each rule, as it is kept and shared. For any thread.

        Of slices that are over, or of `usages`.
        """
        return {rule: usage.taken(self._hide) for rule, usage in usages.items()}

    def _seen(self, verdict: Verdict, surface: Surface, id_: str) -> DecisionRecord:
        binding, decision = verdict.binding, verdict.decision
        parts = decision.parts if decision is not None else ()
        return DecisionRecord(
            at=time.time(),
            id=id_,
            allowed=verdict.allowed,
            rule=verdict.rule,
            limit=None if binding is None else str(binding.limit),
            key=None if binding is None else self._hide(binding.key),
            remaining=None if binding is None else binding.remaining,
            retry_after=verdict.retry_after,
            cost=1 if binding is None else binding.cost,
            reason=_reason(verdict, binding),
            version=verdict.version if verdict.applied or decision is None else "",
            source=verdict.source,
            fault="" if decision is None else decision.fault,
            instance=self._instance,
            surface=surface,
            shadow=any(not part.enforce and not part.allowed for part in parts),
        )


def _reason(said: Verdict, binding: Decision | None) -> str:
    """Return the reason of a verdict, in a few words."""
    if said.source == "open":
        return "passes unseen: the store is away"
    if said.source == "closed":
        return "closed while the store is away"
    stand_in = ", counted here while the store is away" if said.source == "local" else ""
    if not said.allowed:
        if binding is None:
            refusing = [of.refusal for of in said.applied if of.enforce and of.refusal]
            missing = refusing and all(each == "missing" for each in refusing)
            return "an attribute of its key is missing" if missing else "blocked by the rule"
        return f"over {_shown(binding.limit)}{stand_in}"
    if binding is None:
        return "no limit applies"
    return f"within {_shown(binding.limit)}{stand_in}"


def _shown(limit: Limit | Concurrency) -> str:
    return f"{limit.slots} at once" if isinstance(limit, Concurrency) else str(limit)
