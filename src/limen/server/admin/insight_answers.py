"""What the administration tells of decisions, field by field. Keys are as the settings show them.

What takes these from the slices of time is here too: it knows no paths and asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from limen.backends.histogram import TRIP_S
from limen.observe.slices import BANDS, RuleSlice, Slice, Utilisation, Word, utilisation
from limen.observe.view import Picture, percentile
from limen.server.admin.kinds import Model

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


class Requests(Model):
    """Requests, by what became of them."""

    allowed: int
    denied: int
    degraded: int
    """Decided without the store; they are among the allowed or the denied too."""
    a_second: float
    """Both together, on average."""


class Latency(Model):
    """How long something took, in seconds. Measured by bounds: a value is the upper one."""

    count: int
    p50: float | None
    """What half of them stayed within. Null: there were none, or it is more than `above`."""
    p99: float | None
    """What 99 of 100 stayed within. Null: there were none, or it is more than `above`."""
    above: float
    """The largest bound. If there were any, and a value is null, it is more than this."""


class Latencies(Model):
    """How long answers took."""

    requests: Latency
    """The service's own answers."""
    store: Latency
    """Round trips to the store; none for a store in memory."""


class InsightAt(Model):
    """Requests in a stretch of time."""

    at: int
    """When it began, in seconds since 1970."""
    seconds: int
    allowed: int
    denied: int
    degraded: int


class RuleAt(InsightAt):
    """What one rule decided in a stretch of time: here, each decision is one of the four."""

    shadow_denied: int


class Band(Model):
    """How many keys came so far."""

    up_to: int
    """Percent of the limit; above that of the band before."""
    share: float
    """Of all keys, from 0 to 1."""


class UtilisationOf(Model):
    """How close the keys of a rule came to its limit, each at its peak."""

    word: Word
    says: str
    """The same in a sentence."""
    keys: int
    """About how many different keys came."""
    sampled: int
    """How many of them the shares are of."""
    refused: float
    """The share of keys that were refused at least once."""
    histogram: list[Band]
    """With `refused`, all of them."""


class TopKey(Model):
    """A key that comes often."""

    key: str
    count: int
    at_most_too_high: int
    """The count is never too low for what was seen, and too high by no more than this."""


class TopOfAll(TopKey):
    """A key that comes often, and the rule under which it does."""

    rule: str


class Near(Model):
    """A key that is near its limit."""

    key: str
    percent: int
    """Of the limit, when it was last seen."""


class RuleInsight(Model):
    """What one rule decided. Each decision is one of the first four."""

    rule: str
    allowed: int
    denied: int
    shadow_denied: int
    """Those that it would have denied, were it not a shadow."""
    degraded: int
    """Decided without the store, whichever way."""
    keys: int
    """About how many different keys came."""
    refused_share: float
    """Denied, of the allowed and the denied together: what alerts look at."""
    utilisation: UtilisationOf
    top_denied: list[TopKey]
    """The keys that were refused most often, or would have been by a shadow; of many rules, the
    first three of each."""


class _Window(Model):
    model_config: ClassVar[ConfigDict] = ConfigDict(serialize_by_alias=True)

    from_: Annotated[float, Field(serialization_alias="from")]
    """In seconds since 1970, as `to` is."""
    to: float
    window: int
    """The seconds that were asked for; what is told is of whole slices of 5 or 60 seconds."""
    shared: bool
    """Whether all processes that share the store are in it; else it is the one that answers."""
    instances: list[str]
    """Who saw something in this time, also those that have ended since."""


class InsightOf(_Window):
    """What was decided lately, by all processes."""

    requests: Requests
    latency: Latencies
    series: list[InsightAt]
    """The oldest first. The last one is not over."""
    rules: list[RuleInsight]
    """The rules that decided something; those with the most refusals first."""
    more: int
    """How many more rules there are."""
    top_denied: list[TopOfAll]
    """The keys that were refused most often, under whichever rule: the first ten."""


class RuleInsightOf(RuleInsight, _Window):
    """What one rule decided lately, and for whom."""

    series: list[RuleAt]
    """The oldest first. The last one is not over."""
    top_allowed: list[TopKey]
    nearest: list[Near]
    """The keys that are nearest their limit."""


class Kept(Model):
    """Which decisions are kept: one that is not listed was not made, or not kept."""

    refused: str
    """Of those that were refused, in each process."""
    allowed_share: float
    """Of those that were allowed, by chance; from 0 to 1."""


class DecisionOf(Model):
    """One decision."""

    at: float
    """In seconds since 1970."""
    id: str
    """Of the request, as in `x-request-id`."""
    allowed: bool
    rule: str | None
    """The rule that decided; null when none applies, or the caller brought limits along."""
    limit: str | None
    key: str | None
    remaining: int | None
    retry_after: float | None
    """After how many seconds it would have been allowed; null for never, and for an allowed one."""
    cost: int
    reason: str
    """Why, in a few words: `over 100/minute`."""
    version: str
    """Of the rules that were asked."""
    source: str
    """Who counted: `store`, or `local`, `open`, `closed` while the store was away."""
    fault: str
    """What was wrong with the store; empty when nothing was."""
    instance: str
    surface: str
    """How it was asked: `check`, `slots`, `auth` or `envoy`."""
    shadow: bool
    """Whether a shadow would have refused it."""


class Decisions(Model):
    """Decisions of late, the newest first."""

    shared: bool
    """Whether all processes that share the store are in it; else it is the one that answers."""
    kept: Kept
    decisions: list[DecisionOf]


class AlertOf(Model):
    """Something that somebody should know."""

    id: str
    """The same from begin to end: `store-0a94e1c27d`."""
    kind: Literal["refusals", "fallback", "key", "latency"]
    """`latency` becomes `fallback` when a slow store stops to answer: it is the same alert."""
    rule: str | None
    """The rule that it is about; null when it is about the whole service."""
    started: float
    """In seconds since 1970."""
    ended: float | None
    """Null while it is open."""
    value: float
    """A share, or seconds for `latency`: the last one above the threshold."""
    worst: float
    """The largest value since it began."""
    threshold: float
    top: list[tuple[str, int]]
    """The keys that come most often in it, with their counts."""
    text: str
    """One sentence, without keys."""


class ThresholdsOf(Model):
    """From when on something is an alert; 0 is never."""

    refusal_share: float
    fallback_share: float
    key_share: float
    store_latency: float
    """In seconds."""
    least: int
    """Of fewer decisions nothing is told."""


class Alerts(Model):
    """What is wrong, and what was."""

    shared: bool
    """Whether all processes that share the store are judged; else it is the one that answers."""
    open: list[AlertOf]
    ended: list[AlertOf]
    """The last that are over, the newest first."""
    more: int
    """How many more are above a threshold than are told one by one."""
    thresholds: ThresholdsOf


def requests_of(picture: Picture, now: float) -> Requests:
    """Return the requests of a picture."""
    whole = picture.whole
    return Requests(
        allowed=whole.allowed,
        denied=whole.denied,
        degraded=whole.degraded,
        a_second=round((whole.allowed + whole.denied) / lasted(whole, now), 3),
    )


def lasted(whole: Slice, now: float) -> float:
    """Return how many seconds of a slice are over, at least one."""
    return max(1.0, min(now - whole.start, whole.seconds))


def latencies_of(whole: Slice) -> Latencies:
    """Return how long answers took."""
    return Latencies(requests=_latency(whole.durations), store=_latency(whole.trips))


def _latency(counts: Sequence[int]) -> Latency:
    return Latency(
        count=sum(counts),
        p50=_within(percentile(counts, TRIP_S, 0.5)),
        p99=_within(percentile(counts, TRIP_S, 0.99)),
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


def insight_of(picture: Picture, window: int, limit: int, now: float) -> InsightOf:
    """Tell of all rules, or of so many."""
    whole = picture.whole
    rules = busiest(whole.rules.items())
    return InsightOf(
        from_=whole.start,
        to=round(now, 3),
        window=window,
        shared=picture.is_shared,
        instances=list(picture.instances),
        requests=requests_of(picture, now),
        latency=latencies_of(whole),
        series=[
            InsightAt(
                at=each.start,
                seconds=each.seconds,
                allowed=each.allowed,
                denied=each.denied,
                degraded=each.degraded,
            )
            for each in picture.each
        ],
        rules=[_rule(name, rule, _FEW_TOP) for name, rule in rules[:limit]],
        more=max(0, len(rules) - limit),
        top_denied=_top_of_all(whole),
    )


def rule_insight_of(picture: Picture, name: str, window: int, now: float) -> RuleInsightOf:
    """Tell of one rule."""
    whole = picture.whole
    rule = whole.rules.get(name, RuleSlice())
    told = _rule(name, rule, len(rule.top_denied))
    return RuleInsightOf(
        **{name: getattr(told, name) for name in RuleInsight.model_fields},
        from_=whole.start,
        to=round(now, 3),
        window=window,
        shared=picture.is_shared,
        instances=list(picture.instances),
        series=[_rule_at(each, each.rules.get(name, RuleSlice())) for each in picture.each],
        top_allowed=_top(rule.top_allowed, rule.error[0]),
        nearest=[Near(key=key, percent=percent) for key, percent in rule.nearest],
    )


def _rule_at(each: Slice, rule: RuleSlice) -> RuleAt:
    return RuleAt(
        at=each.start,
        seconds=each.seconds,
        allowed=rule.allowed,
        denied=rule.denied,
        shadow_denied=rule.shadow_denied,
        degraded=rule.degraded,
    )


def _rule(name: str, rule: RuleSlice, most_top: int) -> RuleInsight:
    used = utilisation(rule)
    return RuleInsight(
        rule=name,
        allowed=rule.allowed,
        denied=rule.denied,
        shadow_denied=rule.shadow_denied,
        degraded=rule.degraded,
        keys=used.keys,
        refused_share=round(rule.denied / max(1, rule.allowed + rule.denied), 4),
        utilisation=UtilisationOf(
            word=used.word,
            says=_said(used),
            keys=used.keys,
            sampled=used.sampled,
            refused=round(used.refused, 4),
            histogram=[
                Band(up_to=up_to, share=round(share, 4))
                for up_to, share in zip(BANDS, used.shares, strict=False)
            ],
        ),
        top_denied=_top(rule.top_denied[:most_top], rule.error[1]),
    )


def _said(used: Utilisation) -> str:
    if not used.sampled and used.word == "never reached":
        return _NOBODY
    close = sum(share for up_to, share in zip(BANDS, used.shares, strict=False) if up_to > 90)
    return _SAID[used.word].format(
        refused=_percent(used.refused), close=_percent(close + used.refused), keys=used.keys
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _top(entries: Iterable[tuple[str, int]], error: int) -> list[TopKey]:
    return [TopKey(key=key, count=count, at_most_too_high=error) for key, count in entries]


def _top_of_all(whole: Slice) -> list[TopOfAll]:
    entries = [
        (-count, name, key, rule.error[1])
        for name, rule in whole.rules.items()
        for key, count in rule.top_denied[:_MOST_TOP]
    ]
    entries.sort()
    return [
        TopOfAll(rule=name, key=key, count=-count, at_most_too_high=error)
        for count, name, key, error in entries[:_MOST_TOP]
    ]
