"""What somebody should be told of: refusals, fallback, one key's share, and a slow store.

Owns when an alert begins, what it says and when it is over. Does no I/O and reads no clock: what
happened comes as a slice, and the time as an argument. Tells nobody itself.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from limen.backends.histogram import TRIP_S
from limen.observe.slices import RuleSlice, Slice, percentile

CALM_S = 5.0
"""For how long a value must be below its threshold before an alert is over."""
MAX_OPEN = 100
MAX_ENDED = 200
MAX_TOP = 5
FEW = 10
"""So many requests are enough to tell of fallback when all of them were decided by it."""

Kind = Literal["refusals", "fallback", "key", "latency"]
Cause = tuple[str, str | None]
"""The cause of an alert: a name and a rule. Each has at most one open alert."""
STORE: Cause = ("store", None)
"""The cause of `fallback` and `latency`: both are symptoms of a store that does not answer well."""

_MAX_NAME = 80
_MAX_NOTICED = 50
_ALIKE_S = 5
"""Alerts of a kind and rule that begin within so many seconds are one, whoever judges."""


class Thresholds(Struct, frozen=True):
    """The values above which there is an alert; 0 for never."""

    refusal_share: float = 0.5
    """Of the decisions of a rule, from 0 to 1: `0.5` tells when more than half are refused."""
    fallback_share: float = 0.05
    """Of all requests, those that were decided without the store: `0.05`."""
    key_share: float = 0.5
    """Of the decisions of a rule, those of one key: `0.5`."""
    store_latency: float = 0.05
    """Seconds that 99 of 100 round trips to the store must not pass: `0.05`, and at most `1.0`.
    Round trips are counted by bounds, and what lies between two of them counts as the upper one;
    above the last, nothing is told apart."""
    least: int = 100
    """Of fewer decisions, or round trips, nothing is told."""


class Alert(Struct, frozen=True):
    """One thing that somebody should know, from when to when."""

    id: str
    """Short, and the same from begin to end: `refusals-5f0c9a1be2`, `store-0a94e1c27d`."""
    kind: Kind
    """`latency` becomes `fallback` when a slow store does not answer any more."""
    rule: str | None
    """The rule that it is about; null when it is about the whole service."""
    started: float
    """In unix seconds."""
    ended: float | None
    """In unix seconds; null while it is open."""
    value: float
    """A share from 0 to 1, or seconds for `latency`: the last one above the threshold."""
    worst: float
    """The largest value since it began."""
    threshold: float
    top: tuple[tuple[str, int], ...]
    """The keys that come most often in it, largest first, with their counts; may be empty."""
    text: str
    """One sentence for people, without keys."""

    @property
    def cause(self) -> Cause:
        """The cause that it shares with other symptoms, if there are any."""
        return _cause(self.kind, self.rule)


class Notice(Struct, frozen=True):
    """Alerts as one process writes them down for the others."""

    open: tuple[Alert, ...] = ()
    ended: tuple[Alert, ...] = ()
    more: int = 0
    untold: tuple[str, ...] = ()
    """The ids of open alerts of which the log and the webhook do not know yet."""


def encode(judge: Judge, untold: Iterable[str] = ()) -> bytes:
    """Write down the open alerts and the last ended ones."""
    ids = sorted({alert.id for alert in judge.open}.intersection(untold))
    ended = judge.ended[:_MAX_NOTICED]
    return msgspec.json.encode(Notice(judge.open, ended, judge.more, tuple(ids)))


def decode(written: bytes | None) -> Notice:
    """Read what somebody wrote down; nothing for what is none of ours."""
    if written is None:
        return Notice()
    try:
        notice = msgspec.json.decode(written, type=Notice)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return Notice()
    is_sound = all(each.threshold > 0 for each in notice.open + notice.ended)
    return notice if is_sound else Notice()


class Judge:
    """Judges, about once a second, whether something is above its threshold. Not for threads.

    An alert begins at the first judgement above its threshold, and ends after `CALM_S` of
    judgements below it: what goes up and down all the time is one alert. A cause has one alert,
    whatever its symptoms are.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._opened: dict[Cause, Alert] = {}
        self._calm_since: dict[Cause, float] = {}
        """By open alert below its threshold: the steady time of the first such judgement."""
        self._ended: deque[Alert] = deque(maxlen=MAX_ENDED)
        self._steady_s = 0.0
        self._last: float | None = None
        self.open: tuple[Alert, ...] = ()
        """Those that have begun and not ended: of the service first, then the worst rules."""
        self.ended: tuple[Alert, ...] = ()
        """The last that are over, newest first."""
        self.more: int = 0
        """How many more are above a threshold than there is room for in `open`."""

    def judge(self, slice_: Slice, now: float, held: Collection[Cause] = ()) -> list[Alert]:
        """Return what began or ended by what happened in the last seconds.

        `now` is in unix seconds; it may stand still or step back, and then no time passes. Open
        alerts of the causes in `held` do not end, whatever the slice says.
        """
        if not math.isfinite(now):
            return []
        if self._last is not None:
            self._steady_s += max(0.0, now - self._last)
        self._last = now
        judged: dict[Cause, Alert] = {}
        for each in _judged(slice_, self._thresholds, now):
            judged.setdefault(each.cause, each)  # fallback comes before latency
        changed = self._go_on(judged, now, held)
        changed += self._begin(judged)
        self._show()
        return changed

    def resume(self, notice: Notice) -> None:
        """Go on where another one left off."""
        self._opened = {each.cause: each for each in notice.open[:MAX_OPEN]}
        self._calm_since = {}
        self._ended = deque(notice.ended, maxlen=MAX_ENDED)
        self.more = notice.more
        self._show()

    def adopt(self, alerts: Iterable[Alert], replaceable: Collection[str] = ()) -> list[str]:
        """Take over alerts that another one opened; return the ids that are open by that.

        An alert whose cause is open here already changes nothing, unless the id of the open one is
        in `replaceable`: then that one goes on under the id of the other.
        """
        adopted = []
        for alert in alerts:
            opened = self._opened.get(alert.cause)
            if opened is None and len(self._opened) < MAX_OPEN:
                self._opened[alert.cause] = alert
                adopted.append(alert.id)
            elif opened and opened.id in replaceable and opened.id != alert.id:
                started = min(opened.started, alert.started)
                self._opened[alert.cause] = replace(opened, id=alert.id, started=started)
                adopted.append(alert.id)
        self._show()
        return adopted

    def forget(self, ids: Collection[str]) -> None:
        """Drop open alerts that another one has taken over."""
        for alert in self.open:
            if alert.id in ids:
                self._close(alert.cause)
        self._show()

    def _show(self) -> None:
        self.open = tuple(sorted(self._opened.values(), key=_order))
        self.ended = tuple(self._ended)

    def _close(self, cause: Cause) -> None:
        del self._opened[cause]
        self._calm_since.pop(cause, None)

    def _go_on(
        self, judged: dict[Cause, Alert], now: float, held: Collection[Cause]
    ) -> list[Alert]:
        """Update the open alerts, take them out of `judged`, and return the alerts that end."""
        over = []
        for cause, alert in list(self._opened.items()):
            latest = judged.pop(cause, None)
            if latest is not None:
                self._opened[cause] = _continued(alert, latest)
            if latest is not None or cause in held:
                self._calm_since.pop(cause, None)
            elif self._steady_s - self._calm_since.setdefault(cause, self._steady_s) >= CALM_S:
                self._close(cause)
                ended = max(alert.started, now)
                over.append(replace(alert, ended=ended, text=_past(alert, ended - alert.started)))
        self._ended.extendleft(over)
        return over

    def _begin(self, judged: dict[Cause, Alert]) -> list[Alert]:
        """Open the new alerts, the worst first, as long as there is room."""
        began = sorted(judged.values(), key=_order)[: MAX_OPEN - len(self._opened)]
        self._opened.update({alert.cause: alert for alert in began})
        self.more = len(judged) - len(began)
        return began


def _continued(alert: Alert, latest: Alert) -> Alert:
    """Return an open alert with its latest judgement."""
    if (alert.kind, latest.kind) == ("fallback", "latency"):
        return alert  # the store answers again, slowly: a lesser symptom of the same cause
    worst = max(alert.worst, latest.value) if alert.kind == latest.kind else latest.value
    return replace(latest, id=alert.id, started=alert.started, worst=worst)


def _judged(slice_: Slice, thresholds: Thresholds, now: float) -> Iterator[Alert]:
    """Yield an alert for each value above its threshold."""
    # `x > 0` is false of what is off, and of what is no number.
    least = max(1, thresholds.least)
    if thresholds.fallback_share > 0:
        yield from _fallback(slice_, thresholds.fallback_share, least, now)
    if thresholds.store_latency > 0:
        yield from _latency(slice_, thresholds.store_latency, least, now)
    for name in slice_.rules:
        if thresholds.refusal_share > 0:
            yield from _refusals(slice_, name, thresholds.refusal_share, least, now)
        if thresholds.key_share > 0:
            yield from _key(slice_, name, thresholds.key_share, least, now)


def _refusals(
    slice_: Slice, name: str, threshold: float, least: int, now: float
) -> Iterator[Alert]:
    rule = slice_.rules[name]
    part, total = rule.denied, rule.allowed + rule.denied
    if total >= least and part / total > threshold:
        share = part / total
        text = f"{_name(name)} refuses {_percent(share)} of its requests "
        text += _figures(part, total, slice_, threshold)
        yield _alert("refusals", name, share, threshold, text, now, rule.top_denied)


def _fallback(slice_: Slice, threshold: float, least: int, now: float) -> Iterator[Alert]:
    part, total = slice_.degraded, slice_.allowed + slice_.denied
    enough = min(FEW, least) if part >= total else least
    if total >= enough and part / total > threshold:
        share = min(1.0, part / total)
        text = f"{_percent(share)} of all requests are decided without the store "
        text += _figures(part, total, slice_, threshold)
        yield _alert("fallback", None, share, threshold, text, now)


def _latency(slice_: Slice, threshold: float, least: int, now: float) -> Iterator[Alert]:
    total, slowest = sum(slice_.trips), percentile(slice_.trips, 99)
    if slowest is None or total < least or slowest <= threshold:
        return
    value = min(slowest, TRIP_S[-1])
    if value >= threshold:
        slow = f"99 of 100 round trips to the store take up to {_seconds(value)}"
        if slowest > value:
            slow = f"1 of 100 round trips to the store takes more than {_seconds(value)}"
        text = f"{slow} ({total:,} in {slice_.seconds} s); more than {_seconds(threshold)} is told"
        yield _alert("latency", None, value, threshold, text, now)


def _key(slice_: Slice, name: str, threshold: float, least: int, now: float) -> Iterator[Alert]:
    rule = slice_.rules[name]
    total = rule.allowed + rule.denied + rule.shadow_denied + rule.degraded
    tops = [each for each in (rule.top_allowed, rule.top_denied) if each]
    # No key has more than the first of both lists together; most rules need no closer look.
    if total < least or sum(each[0][1] for each in tops) <= threshold * total or _is_for_one(rule):
        return
    count, top = max((_surely(rule, each[0][0]), each) for each in tops)
    # A rule without a key is everybody's: there is nobody to name.
    if count / total > threshold and top[0][0]:
        share = min(1.0, count / total)
        text = f"one key makes {_percent(share)} of the requests of {_name(name)} "
        text += _figures(count, total, slice_, threshold)
        yield _alert("key", name, share, threshold, text, now, top)


def _figures(part: int, total: int, slice_: Slice, threshold: float) -> str:
    seconds = slice_.seconds
    return f"({part:,} of {total:,} in {seconds} s); more than {_percent(threshold)} is told"


def _surely(rule: RuleSlice, key: str) -> int:
    """Return how often a key came at least, whatever was decided."""
    return sum(
        max(0, count - error)
        for top, error in zip((rule.top_allowed, rule.top_denied), rule.error, strict=True)
        for each, count in top
        if each == key
    )


def _is_for_one(rule: RuleSlice) -> bool:
    """Return whether a rule has only one key, which then has all of it, and is not refused."""
    if rule.denied or any(rule.error):
        return False
    return len({key for key, _ in (*rule.top_allowed, *rule.top_denied)}) < 2


def _alert(
    kind: Kind,
    rule: str | None,
    value: float,
    threshold: float,
    text: str,
    now: float,
    top: tuple[tuple[str, int], ...] = (),
) -> Alert:
    id_ = _id(_cause(kind, rule), now)
    return Alert(id_, kind, rule, now, None, value, value, threshold, top[:MAX_TOP], text)


def _order(alert: Alert) -> tuple[bool, float, str]:
    """Return what sorts the worst first, and what is about the whole service before that."""
    return (alert.rule is not None, -alert.value / alert.threshold, alert.rule or alert.kind)


def _cause(kind: str, rule: str | None) -> Cause:
    return STORE if kind in ("fallback", "latency") else (kind, rule)


def _id(cause: Cause, now: float) -> str:
    # Not to the second: several processes judge the same, each at its own moment.
    begun = int(now // _ALIKE_S)
    name, rule = cause
    made_of = f"{name}\n{rule}\n{begun}".encode("utf-8", "surrogatepass")
    return f"{name}-{hashlib.sha256(made_of).hexdigest()[:10]}"


def _past(alert: Alert, lasted: float) -> str:
    share, slowest = _percent(alert.worst), _seconds(alert.worst)
    if alert.worst >= TRIP_S[-1]:
        slowest += " or more"
    return {
        "refusals": f"{_name(alert.rule)} refused up to {share} of its requests",
        "fallback": f"up to {share} of all requests were decided without the store",
        "key": f"one key made up to {share} of the requests of {_name(alert.rule)}",
        "latency": f"99 of 100 round trips to the store took up to {slowest}",
    }[alert.kind] + f"; over after {lasted:,.0f} s"


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


def _name(rule: str | None) -> str:
    """Return a rule's name as a line can hold it: Redis may tell of rules with any name."""
    name = "".join(each if each.isprintable() else "?" for each in (rule or "")[:_MAX_NAME])
    return name if len(rule or "") <= _MAX_NAME else f"{name}..."
