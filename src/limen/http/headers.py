"""`RateLimit-Policy`, `RateLimit`, what older clients read, and `Retry-After`. Pure.

The first two are structured fields (RFC 9651), as draft-ietf-httpapi-ratelimit-headers-11 has
them. Where the draft leaves a choice, the smaller promise is made:

- Seconds are whole and rounded up: who waits as long as any of them says has waited long enough.
- `q` and `w` say what a client may do that sends in bursts: a bucket is `q` what it holds and `w`
  the time in which it fills. So `r` never exceeds `q`.
- A month has no `w`, since no two need be equally long; slots have none, since they know no time.
- A refusal shows in `RateLimit` the policies that refuse and no others, so that no `t` ends after
  `Retry-After`, as the draft asks for.
- What nobody counted, because the store is away, is not in `RateLimit`.

The older styles tell of one limit alone, the one that binds. draft-07 and draft-03 want a reset
with it: where none can be told, they say nothing. Of policies they know a number and a window, and
no two of the same number: of those the longest window is told, which is the strictest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from zlib import crc32

from msgspec import Struct

from limen.errors import InvalidInput
from limen.http.answer import COUNTED, Answer, Quota
from limen.http.styles import RETRY_AFTER, WRITTEN, HeaderStyle, unknown_style
from limen.model import Concurrency, Decision, Limit, binding

MAX_POLICIES = 16
"""How many policies fit into the headers: proxies drop responses whose headers pass 4 or 8 KB."""
_MAX_NAME = 80
_MAX_WHOLE_S = 999_999_999_999_999
_PLAIN = re.compile(r"[ !#$&-\[\]-~]+")
"""Printable ASCII without what has to be escaped: `"`, `\\`, and `%`."""
_RAW_NAMES = {
    name: name.lower().encode() for names in (*WRITTEN.values(), [RETRY_AFTER]) for name in names
}


LimitResult = Decision | Quota


class Outcome(Struct, frozen=True, gc=False):
    """The results of all limits that could have refused a request, in the order of the rules."""

    allowed: bool
    retry_after: float | None
    """Seconds until the request would be allowed; None is never."""
    results: Sequence[LimitResult]
    policies: Policies
    """One for each result."""


def outcome_of(answer: Answer) -> Outcome:
    """Return the results of an answer with their policies."""
    quotas = answer.quotas
    named = policies(
        tuple([quota.name for quota in quotas]), tuple([quota.limit for quota in quotas])
    )
    return Outcome(answer.allowed, answer.retry_after, quotas, named)


def headers(
    answer: Answer | Outcome,
    styles: Iterable[HeaderStyle] = ("draft-11",),
    now: float | None = None,
) -> list[tuple[str, str]]:
    """Return the rate limit headers of a response, in the styles asked for.

    `Retry-After` comes with every refusal, whatever the style, unless no wait would help. `now`, in
    seconds since 1970, is needed by `x-ratelimit` alone. Without limits there are no headers.
    """
    outcome = outcome_of(answer) if isinstance(answer, Answer) else answer
    rendered: list[tuple[str, str]] = []
    for style in styles:
        if style == "draft-11":
            rendered += _draft_11(outcome)
        elif style == "draft-07":
            rendered += _draft_07(outcome)
        elif style == "draft-03":
            rendered += _draft_03(outcome)
        else:
            rendered += _x_ratelimit(outcome, _start(style, now))
    if not outcome.allowed and outcome.retry_after is not None:
        rendered.append((RETRY_AFTER, str(retry_after_s(outcome.retry_after))))
    return rendered


def raw_headers(
    answer: Answer | Outcome,
    styles: Iterable[HeaderStyle] = ("draft-11",),
    now: float | None = None,
) -> list[tuple[bytes, bytes]]:
    """Return `headers` as bytes, with names in lower case."""
    return [(_RAW_NAMES[name], value.encode()) for name, value in headers(answer, styles, now)]


def retry_after_s(seconds: float) -> int:
    """Return a wait as `Retry-After` says it: whole seconds, rounded up, at least 1."""
    return max(1, _whole_s(seconds))


def unique(names: Iterable[str]) -> list[str]:
    """Return what each policy is called, in headers and in problems alike: no two the same."""
    found: list[str] = []
    for each in names:
        name = first = ascii_name(each)
        number = 1
        while name in found:
            number += 1
            name = f"{first}#{number}"
        found.append(name)
    return found


class Policy(Struct, frozen=True, gc=False):
    """What headers say of one limit to everybody, whatever is left of it."""

    name: str
    """As a string of a structured field: `"search-per-user#1"`, quotes included."""
    terms: str
    """The item of `RateLimit-Policy`: `"search-per-user#1";q=100;w=60`."""
    most: int
    """What can be left at most."""
    window_s: int | None
    """In how many seconds all of it comes back; None when that varies, or knows no time."""
    is_timed: bool
    """Whether it knows time: slots do not."""

    def standing(
        self, allowed: bool, remaining: int, retry_after: float | None, reset_after: float
    ) -> str:
        """Return the item of `RateLimit`: `"search-per-user#1";r=42;t=17`."""
        left = remaining if 0 <= remaining <= self.most else self.most if remaining > 0 else 0
        if allowed and self.is_timed and 0 < reset_after <= _MAX_WHOLE_S:
            return f"{self.name};r={left};t={math.ceil(reset_after)}"
        seconds = self.effective_s(allowed, retry_after, reset_after)
        return f"{self.name};r={left}" if seconds is None else f"{self.name};r={left};t={seconds}"

    def effective_s(
        self, allowed: bool, retry_after: float | None, reset_after: float
    ) -> int | None:
        """Return for how many seconds what is left is all there is; None when nobody can tell.

        For who is refused, it is the wait. An untouched quota is good for a whole window.
        """
        if not allowed and retry_after is not None:
            return retry_after_s(retry_after)
        if not self.is_timed:
            # The leases end at some time, but the holders will have let go long before.
            return None
        seconds = math.ceil(reset_after)
        return seconds if 0 < seconds <= _MAX_WHOLE_S else _whole_s(seconds) or self.window_s


@lru_cache(maxsize=4_096)
def policy_of(name: str, limit: Limit | Concurrency) -> Policy:
    """Return what headers say of a limit, under a name in printable ASCII."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    quoted = f'"{escaped}"'
    if isinstance(limit, Concurrency):
        terms = f'{quoted};q={limit.slots};qu="concurrent-requests"'
        return Policy(quoted, terms, limit.slots, None, False)
    window = _window_s(limit)
    terms = f"{quoted};q={limit.capacity}" + ("" if window is None else f";w={window}")
    return Policy(quoted, terms, limit.capacity, window, True)


class Policies(Struct, frozen=True, gc=False):
    """The policies of all limits of a request, in the order of the limits."""

    each: tuple[Policy, ...]
    text: str
    """The value of `RateLimit-Policy`, if there are at most `MAX_POLICIES`."""


@lru_cache(maxsize=4_096)
def policies(names: tuple[str, ...], limits: tuple[Limit | Concurrency, ...]) -> Policies:
    """Return what headers say of some limits: no two under the same name."""
    pairs = zip(unique(names), limits, strict=True)
    each = tuple([policy_of(name, limit) for name, limit in pairs])
    return Policies(each, _policy_text(each[:MAX_POLICIES]))


def _policy_text(each: Iterable[Policy]) -> str:
    return ", ".join([policy.terms for policy in each])


def _draft_11(outcome: Outcome) -> list[tuple[str, str]]:
    allowed, results = outcome.allowed, outcome.results
    if not results:
        return []
    named, text = outcome.policies.each, outcome.policies.text
    if len(results) > MAX_POLICIES:
        chosen = listed(results)
        results, named = [results[at] for at in chosen], tuple([named[at] for at in chosen])
        text = _policy_text(named)
    items: list[str] = []
    for each, policy in zip(results, named, strict=True):
        if each.allowed == allowed and each.source in COUNTED:
            item = policy.standing(allowed, each.remaining, each.retry_after, each.reset_after)
            items.append(item)
    rendered = [("RateLimit-Policy", text)]
    if items:
        rendered.append(("RateLimit", ", ".join(items)))
    return rendered


def _draft_07(outcome: Outcome) -> list[tuple[str, str]]:
    windows, standing = _windows(outcome), _standing(outcome)
    rendered = [("RateLimit-Policy", windows)] if windows else []
    if standing is not None and standing[2] is not None:
        most, left, reset = standing
        rendered.append(("RateLimit", f"limit={most}, remaining={left}, reset={reset}"))
    return rendered


def _draft_03(outcome: Outcome) -> list[tuple[str, str]]:
    standing = _standing(outcome)
    if standing is None or standing[2] is None:
        return []
    most, left, reset = standing
    windows = _windows(outcome)
    return [
        ("RateLimit-Limit", f"{most}, {windows}" if windows else str(most)),
        ("RateLimit-Remaining", str(left)),
        ("RateLimit-Reset", str(reset)),
    ]


def _x_ratelimit(outcome: Outcome, start: float) -> list[tuple[str, str]]:
    standing = _standing(outcome)
    if standing is None:
        return []
    most, left, reset = standing
    rendered = [("X-RateLimit-Limit", str(most)), ("X-RateLimit-Remaining", str(left))]
    if reset is not None:
        rendered.append(("X-RateLimit-Reset", str(_whole_s(start + reset))))
    return rendered


def _start(style: HeaderStyle, now: float | None) -> float:
    if style == "x-ratelimit-delta":
        return 0.0
    if style != "x-ratelimit":
        raise unknown_style(style)
    if now is None:
        raise InvalidInput("the style 'x-ratelimit' tells the time of the reset, and needs now=")
    return now


def _standing(outcome: Outcome) -> tuple[int, int, int | None] | None:
    """Return the capacity of the binding limit, what is left of it, and for how many seconds.

    None when no limit counted.
    """
    counted = [at for at, each in enumerate(outcome.results) if each.source in COUNTED]
    if not outcome.allowed:
        counted = [at for at in counted if not outcome.results[at].allowed]
    if not counted:
        return None
    at = counted[binding([outcome.results[at] for at in counted])]
    result, policy = outcome.results[at], outcome.policies.each[at]
    seconds = policy.effective_s(result.allowed, result.retry_after, result.reset_after)
    return policy.most, min(max(result.remaining, 0), policy.most), seconds


def _windows(outcome: Outcome) -> str:
    """Return policies as the older drafts list them: `10;w=1, 100;w=60`. Empty when there are none.

    A month and slots have no window, which those drafts require.
    """
    longest: dict[int, int] = {}
    for at in listed(outcome.results):
        policy = outcome.policies.each[at]
        if policy.window_s is not None:
            longest[policy.most] = max(policy.window_s, longest.get(policy.most, 0))
    return ", ".join([f"{most};w={window_s}" for most, window_s in longest.items()])


def listed(results: Sequence[LimitResult]) -> Sequence[int]:
    """Return the positions of the results that a response names, in order: at most `MAX_POLICIES`.

    Refusing limits come first, the longest wait before others; then those nearest their limit.
    """
    if len(results) <= MAX_POLICIES:
        return range(len(results))

    def urgency(at: int) -> tuple[bool, float]:
        result = results[at]
        if not result.allowed:
            return False, -math.inf if result.retry_after is None else -result.retry_after
        return True, result.remaining / result.limit.capacity

    return sorted(sorted(range(len(results)), key=urgency)[:MAX_POLICIES])


def _window_s(limit: Limit) -> int | None:
    """Return in how many seconds the whole of a limit comes back; None when that varies."""
    if limit.period == "calendar day":
        return 86_400
    if limit.period == "month":
        return None
    # The period of a window, and what a bucket takes to fill: the same where no burst is given.
    full_us = limit.fill_us + (limit.fill_rem > 0)
    return -(-full_us // 1_000_000)


@lru_cache(maxsize=4_096)
def ascii_name(name: str) -> str:
    """Return a name in printable ASCII: all else, and `%`, is percent-encoded; never long."""
    if not _PLAIN.fullmatch(name):
        name = "".join(
            char if _PLAIN.match(char) or char in '"\\' else _percent(char) for char in name
        )
    if len(name) > _MAX_NAME:
        name = f"{name[: _MAX_NAME - 9]}~{crc32(name.encode()):08x}"
    return name


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def _whole_s(seconds: float) -> int:
    """Return seconds rounded up, as many digits as a structured field may have."""
    return min(max(0, math.ceil(seconds)), _MAX_WHOLE_S)
