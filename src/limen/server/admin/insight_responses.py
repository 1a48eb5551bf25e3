"""The responses about decisions, and their calculation from slices of time. Pure.

Keys are redacted if the settings say so. Messages that `limen.observe` has, such as `Alert`, are
part of the responses as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, structs

from limen.backends.histogram import TRIP_S
from limen.observe.alerts import Alert, Thresholds
from limen.observe.recent import DecisionRecord
from limen.observe.slices import RuleSlice, Slice, Utilisation, Word, percentile, utilisation
from limen.observe.view import Picture

_FEW_TOP, _MOST_TOP = 3, 10
_SAID: dict[Word, str] = {
    "refuses many": "{refused} of the keys (about {keys:,}) were refused at least once: the limit "
    "is low for what is asked of it, or some ask for too much.",
    "tight": "{close} of the keys (about {keys:,}) came above 90 % of the limit: a little more, "
    "and they are refused.",
    "fitting": "Most of the keys (about {keys:,}) stay well within the limit, and a few come to it "
    "or near it.",
    "loose": "None of the keys (about {keys:,}) came above 75 % of the limit.",
    "never reached": "None of the keys (about {keys:,}) came above 25 % of the limit: it could be "
    "lower, or is not needed.",
    "unknown": "How close keys came is not known, only how often they did: the rule counts "
    "nothing, or no keys are kept.",
}
_NOBODY = "Nobody came under this rule in this time."


class Counts(Struct, frozen=True, kw_only=True):
    """Requests by their decision."""

    allowed: int
    denied: int
    degraded: int
    """Decided without the store; they are also among the allowed or the denied."""


class Requests(Counts, frozen=True, kw_only=True):
    """Requests by their decision, and their rate."""

    a_second: float
    """Allowed and denied requests a second, on average."""


class Latency(Struct, frozen=True):
    """Durations in seconds. They are counted by bounds: a value is the upper bound."""

    count: int
    p50: float | None
    """The median. Null: there were none, or it is more than `above`."""
    p99: float | None
    """The 99th percentile. Null: there were none, or it is more than `above`."""
    above: float
    """The largest bound. If there were any, and a value is null, it is more than this."""


class Latencies(Struct, frozen=True):
    """The durations of responses."""

    requests: Latency
    """The service's own responses."""
    store: Latency
    """Round trips to the store; none for a store in memory."""


class InsightPoint(Counts, frozen=True, kw_only=True):
    """Requests in a stretch of time."""

    at: int
    """The beginning, in seconds since 1970."""
    seconds: int


class RuleCounts(Struct, frozen=True, kw_only=True):
    """The decisions of one rule. Each decision is in one of the counts."""

    allowed: int
    denied: int
    shadow_denied: int
    """Those that it would have denied if it were not in shadow mode."""
    degraded: int
    """Decided without the store, allowed or denied."""


class RulePoint(RuleCounts, frozen=True, kw_only=True):
    """The decisions of one rule in a stretch of time."""

    at: int
    """The beginning, in seconds since 1970."""
    seconds: int


class UtilisationView(Utilisation, frozen=True, kw_only=True):
    """The peak utilisation of the limit of a rule by its keys."""

    says: str
    """The same in a sentence."""


class TopKey(Struct, frozen=True, kw_only=True):
    """A frequent key."""

    key: str
    count: int
    at_most_too_high: int
    """The count is never too low, and too high by at most this number."""


class TopKeyOfRule(TopKey, frozen=True, kw_only=True):
    """A frequent key, and its rule."""

    rule: str


class NearLimitKey(Struct, frozen=True):
    """A key that is near its limit."""

    key: str
    percent: int
    """Of the limit, when it was last seen."""


class RuleInsight(RuleCounts, frozen=True, kw_only=True):
    """The decisions of one rule, and its keys."""

    rule: str
    keys: int
    """The number of different keys, approximately."""
    refused_share: float
    """Denied, of the allowed and the denied together: the value for alerts."""
    utilisation: UtilisationView
    top_denied: list[TopKey]
    """The keys that were refused most often, or would have been in shadow mode; in a list of
    rules, the first three of each."""


class InsightWindow(Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """The recent decisions of all processes."""

    from_: float
    """In seconds since 1970, as is `to`."""
    to: float
    window: int
    """The requested number of seconds; the data are of whole slices of 5 or 60 seconds."""
    shared: bool
    """Whether the data are of all processes that share the store, or only of this one."""
    instances: list[str]
    """The processes that saw requests in this time, also those that have ended."""
    requests: Requests
    latency: Latencies
    series: list[InsightPoint]
    """The oldest first. The last one is not over."""
    rules: list[RuleInsight]
    """The rules that decided something; those with the most refusals first."""
    more: int
    """The number of further rules."""
    top_denied: list[TopKeyOfRule]
    """The keys that were refused most often under any rule: the first ten."""


class RuleWindow(RuleInsight, frozen=True, kw_only=True, rename={"from_": "from"}):
    """The recent decisions of one rule, by all processes."""

    from_: float
    """In seconds since 1970, as is `to`."""
    to: float
    window: int
    """The requested number of seconds; the data are of whole slices of 5 or 60 seconds."""
    shared: bool
    """Whether the data are of all processes that share the store, or only of this one."""
    instances: list[str]
    """The processes that saw requests in this time, also those that have ended."""
    series: list[RulePoint]
    """The oldest first. The last one is not over."""
    top_allowed: list[TopKey]
    nearest: list[NearLimitKey]
    """The keys that are nearest their limit."""


class RetentionPolicy(Struct, frozen=True):
    """The decisions that are kept: one that is not listed was not made, or not kept."""

    refused: str
    """Of the refused ones, in each process."""
    allowed_share: float
    """Of the allowed ones, by chance; from 0 to 1."""


class Decisions(Struct, frozen=True):
    """Recent decisions, the newest first."""

    shared: bool
    """Whether the data are of all processes that share the store, or only of this one."""
    kept: RetentionPolicy
    decisions: list[DecisionRecord]


class Alerts(Struct, frozen=True, kw_only=True):
    """Present and past alerts."""

    shared: bool
    """Whether the data are of all processes that share the store, or only of this one."""
    open: tuple[Alert, ...]
    ended: tuple[Alert, ...]
    """The last that are over, the newest first."""
    more: int
    """The number of further values above a threshold, which have no alert of their own."""
    thresholds: Thresholds


def counts_of(part: Slice | RuleSlice) -> dict[str, Any]:
    """Return the counts of a slice, by the names of the fields in responses."""
    counts = {"allowed": part.allowed, "denied": part.denied, "degraded": part.degraded}
    if isinstance(part, RuleSlice):
        counts["shadow_denied"] = part.shadow_denied
    return counts


def rates_of(part: Slice | RuleSlice, seconds: float) -> dict[str, Any]:
    """Return the counts of a slice for each second."""
    return {name: round(count / seconds, 3) for name, count in counts_of(part).items()}


def lasted(whole: Slice, now: float) -> float:
    """Return how many seconds of a slice are over, at least one."""
    return max(1.0, min(now - whole.start, whole.seconds))


def latencies_of(whole: Slice) -> Latencies:
    """Return the durations of responses and round trips."""
    return Latencies(_latency(whole.durations), _latency(whole.trips))


def _latency(counts: Sequence[int]) -> Latency:
    return Latency(
        count=sum(counts),
        p50=_within(percentile(counts, 50)),
        p99=_within(percentile(counts, 99)),
        above=TRIP_S[-1],
    )


def _within(seconds: float | None) -> float | None:
    return None if seconds is None or seconds > TRIP_S[-1] else seconds


def busiest(rules: Iterable[tuple[str, RuleSlice]]) -> list[tuple[str, RuleSlice]]:
    """Return rules with what they decided, those with the most refusals first."""
    return sorted(rules, key=_weight)


def _weight(named: tuple[str, RuleSlice]) -> tuple[int, int, str]:
    name, rule = named
    return -(rule.denied + rule.shadow_denied), -(rule.allowed + rule.degraded), name


def insight_of(picture: Picture, window: int, limit: int, now: float) -> InsightWindow:
    """Return the insight into all rules, or into the first `limit`."""
    whole = picture.whole
    rules = busiest(whole.rules.items())
    a_second = round((whole.allowed + whole.denied) / lasted(whole, now), 3)
    return InsightWindow(
        **_window(picture, window, now),
        requests=Requests(**counts_of(whole), a_second=a_second),
        latency=latencies_of(whole),
        series=[
            InsightPoint(at=each.start, seconds=each.seconds, **counts_of(each))
            for each in picture.each
        ],
        rules=[_rule(name, rule, _FEW_TOP) for name, rule in rules[:limit]],
        more=max(0, len(rules) - limit),
        top_denied=_top_of_all(whole),
    )


def rule_window_of(picture: Picture, name: str, window: int, now: float) -> RuleWindow:
    """Return the insight into one rule."""
    rule = picture.whole.rules.get(name, RuleSlice())
    parts = [(each, each.rules.get(name, RuleSlice())) for each in picture.each]
    return RuleWindow(
        **_window(picture, window, now),
        **structs.asdict(_rule(name, rule, len(rule.top_denied))),
        series=[
            RulePoint(at=each.start, seconds=each.seconds, **counts_of(part))
            for each, part in parts
        ],
        top_allowed=_top(rule.top_allowed, rule.error[0]),
        nearest=[NearLimitKey(key, percent) for key, percent in rule.nearest],
    )


def _window(picture: Picture, window: int, now: float) -> dict[str, Any]:
    return {
        "from_": picture.whole.start,
        "to": round(now, 3),
        "window": window,
        "shared": picture.is_shared,
        "instances": list(picture.instances),
    }


def _rule(name: str, rule: RuleSlice, most_top: int) -> RuleInsight:
    used = utilisation(rule)
    return RuleInsight(
        rule=name,
        **counts_of(rule),
        keys=used.keys,
        refused_share=round(rule.denied / max(1, rule.allowed + rule.denied), 4),
        utilisation=UtilisationView(**structs.asdict(used), says=_said(used)),
        top_denied=_top(rule.top_denied[:most_top], rule.error[1]),
    )


def _said(used: Utilisation) -> str:
    if not used.sampled and used.word == "never reached":
        return _NOBODY
    close = sum(band.share for band in used.histogram if band.up_to > 90)
    return _SAID[used.word].format(
        refused=_percent(used.refused), close=_percent(close + used.refused), keys=used.keys
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _top(entries: Iterable[tuple[str, int]], error: int) -> list[TopKey]:
    return [TopKey(key=key, count=count, at_most_too_high=error) for key, count in entries]


def _top_of_all(whole: Slice) -> list[TopKeyOfRule]:
    entries = [
        (-count, name, key, rule.error[1])
        for name, rule in whole.rules.items()
        for key, count in rule.top_denied[:_MOST_TOP]
    ]
    entries.sort()
    return [
        TopKeyOfRule(rule=name, key=key, count=-count, at_most_too_high=error)
        for count, name, key, error in entries[:_MOST_TOP]
    ]
