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
from limen.http.answer import COUNTED, Answer, Quota, share_of, wait_of, whole
from limen.http.styles import RETRY_AFTER, WRITTEN, HeaderStyle, unknown_style
from limen.model import Concurrency, Limit

MAX_POLICIES = 16
"""How many policies fit into the headers: proxies drop responses whose headers pass 4 or 8 KB."""
_MAX_NAME = 80
_MAX_WHOLE_S = 999_999_999_999_999
_PLAIN = re.compile(r"[ !#$&-\[\]-~]+")
"""Printable ASCII without what has to be escaped: `"`, `\\`, and `%`."""
_RAW_NAMES = {
    name: name.lower().encode() for names in (*WRITTEN.values(), [RETRY_AFTER]) for name in names
}


def headers(
    answer: Answer,
    styles: Iterable[HeaderStyle] = ("draft-11",),
    now: float | None = None,
) -> list[tuple[str, str]]:
    """Return the headers of an answer, in the styles asked for.

    `Retry-After` comes with every refusal, whatever the style, unless no wait would help. `now`, in
    seconds since 1970, is needed by `x-ratelimit` alone. No limits, no headers.
    """
    found: list[tuple[str, str]] = []
    for style in styles:
        if style == "draft-11":
            found += _draft_11(answer)
        elif style == "draft-07":
            found += _draft_07(answer)
        elif style == "draft-03":
            found += _draft_03(answer)
        else:
            found += _x_ratelimit(answer, _start(style, now))
    if not answer.allowed and answer.retry_after is not None:
        found.append((RETRY_AFTER, str(retry_after_s(answer.retry_after))))
    return found


def raw_headers(
    answer: Answer,
    styles: Iterable[HeaderStyle] = ("draft-11",),
    now: float | None = None,
) -> list[tuple[bytes, bytes]]:
    """Return the same as ASGI wants them: bytes, and names in lower case."""
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


def policies(names: Iterable[str], limits: Iterable[Limit | Concurrency]) -> list[Policy]:
    """Return what headers say of some limits: no two under the same name."""
    return [policy_of(name, limit) for name, limit in zip(unique(names), limits, strict=True)]


def _draft_11(answer: Answer) -> list[tuple[str, str]]:
    quotas = answer.quotas
    if not quotas:
        return []
    found = policies([quota.name for quota in quotas], [quota.limit for quota in quotas])
    pairs = [(quotas[at], found[at]) for at in listed(quotas)]
    standings = [
        policy.standing(quota.allowed, quota.remaining, quota.retry_after, quota.reset_after)
        for quota, policy in pairs
        if quota.allowed == answer.allowed and quota.source in COUNTED
    ]
    headers = [("RateLimit-Policy", ", ".join([policy.terms for _, policy in pairs]))]
    if standings:
        headers.append(("RateLimit", ", ".join(standings)))
    return headers


def _draft_07(answer: Answer) -> list[tuple[str, str]]:
    windows, standing = _windows(answer.quotas), _standing(answer)
    found = [("RateLimit-Policy", windows)] if windows else []
    if standing is not None and standing[2] is not None:
        most, left, reset = standing
        found.append(("RateLimit", f"limit={most}, remaining={left}, reset={reset}"))
    return found


def _draft_03(answer: Answer) -> list[tuple[str, str]]:
    standing = _standing(answer)
    if standing is None or standing[2] is None:
        return []
    most, left, reset = standing
    windows = _windows(answer.quotas)
    return [
        ("RateLimit-Limit", f"{most}, {windows}" if windows else str(most)),
        ("RateLimit-Remaining", str(left)),
        ("RateLimit-Reset", str(reset)),
    ]


def _x_ratelimit(answer: Answer, start: float) -> list[tuple[str, str]]:
    standing = _standing(answer)
    if standing is None:
        return []
    most, left, reset = standing
    found = [("X-RateLimit-Limit", str(most)), ("X-RateLimit-Remaining", str(left))]
    if reset is not None:
        found.append(("X-RateLimit-Reset", str(_whole_s(start + reset))))
    return found


def _start(style: HeaderStyle, now: float | None) -> float:
    if style == "x-ratelimit-delta":
        return 0.0
    if style != "x-ratelimit":
        raise unknown_style(style)
    if now is None:
        raise InvalidInput("the style 'x-ratelimit' tells the time of the reset, and needs now=")
    return now


def _standing(answer: Answer) -> tuple[int, int, int | None] | None:
    """Return the whole of the limit that binds, what is left of it, and for how many seconds.

    Never more than the whole is left, and never less than nothing. None when nobody counted.
    """
    quota = answer.binding
    if quota is None:
        return None
    most = whole(quota.limit)
    policy = policy_of(quota.name, quota.limit)
    seconds = policy.effective_s(quota.allowed, quota.retry_after, quota.reset_after)
    return most, min(max(quota.remaining, 0), most), seconds


def _windows(quotas: tuple[Quota, ...]) -> str:
    """Return policies as the older drafts list them: `10;w=1, 100;w=60`. Empty when there are none.

    A month and slots have no window, which those drafts cannot do without.
    """
    longest: dict[int, int] = {}
    for at in listed(quotas):
        policy = policy_of(quotas[at].name, quotas[at].limit)
        if policy.window_s is not None:
            longest[policy.most] = max(policy.window_s, longest.get(policy.most, 0))
    return ", ".join([f"{most};w={window_s}" for most, window_s in longest.items()])


def listed(quotas: tuple[Quota, ...]) -> Sequence[int]:
    """Return the positions of the quotas that a response names, in order: at most `MAX_POLICIES`.

    Refusing quotas come first, the longest wait before others; then those nearest their limit.
    """
    if len(quotas) <= MAX_POLICIES:
        return range(len(quotas))

    def nearness(at: int) -> tuple[bool, float]:
        quota = quotas[at]
        return quota.allowed, share_of(quota) if quota.allowed else -wait_of(quota)

    return sorted(sorted(range(len(quotas)), key=nearness)[:MAX_POLICIES])


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
