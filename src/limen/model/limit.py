"""`Limit` and `Concurrency`: what is allowed, validated once, and the same in whole numbers.

The derived integers (`period_us`, `interval_us`, ...) are what the algorithms calculate with, in
Python and in Lua alike. Numbers in Lua are doubles: what is kept and compared stays below 2**53,
and where a product would not, the Lua form works in steps that do.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from zlib import crc32

from limen.errors import InvalidLimit, did_you_mean, shown
from limen.model import grammar
from limen.model.algorithm import ALGORITHMS, MAX_QUOTA, AlgorithmName
from limen.model.text import DIGEST_LENGTH, escaped

_CALENDAR_CODES = {"month": "month", "calendar day": "day"}

_DOUBLE = 2**53
_MAX_PERIOD_US = 3_650 * 86_400_000_000
_NO_MAX_US = 2**52
_MAX_BUCKET_QUOTA = 90_000_000
_MAX_UNASKED = 10_000


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Limit:
    """How much is allowed in which time, and by which algorithm. Immutable and hashable.

    ```python
    Limit(100, 60)                                   # 100 a minute, exact in any minute
    Limit(10, 1, burst=20)                           # a token bucket that holds 20
    Limit.parse("100/minute min_interval 50ms")
    ```

    `str(limit)` is the text it was read from, or the shortest that says the same.
    """

    quota: int
    """How many units fit into one period. `100` in `"100/minute"`."""
    period: float | str
    """Seconds, kept to the microsecond; or `"month"` or `"calendar day"` (UTC)."""
    algorithm: AlgorithmName
    """Who counts. `packed_window`, unless burst or a calendar period say otherwise."""
    burst: int | None
    """How much a bucket holds: `20` in `"10/s burst 20"`. None is the quota."""
    min_interval: float | None
    """Seconds that must lie between two requests: `0.05` in `"min_interval 50ms"`."""
    count_denied: bool
    """Whether a refused request counts too, so that hammering keeps the door shut."""
    max_delay: float | None
    """The longest wait in seconds that a leaky bucket may impose before it refuses instead."""
    from_first: bool
    """Whether a fixed window begins at the first request, and not by the clock."""
    name: str | None
    """Keeps the state apart from that of an equal limit: `"uploads"`."""

    period_us: int = field(init=False)
    """The period in microseconds; 0 for a calendar period."""
    capacity: int = field(init=False)
    """The most that can be asked for at once: the burst of a bucket, the quota of a window."""
    interval_us: int = field(init=False)
    """One unit drains from a bucket in `interval_us + interval_rem / quota` microseconds."""
    interval_rem: int = field(init=False)
    fill_us: int = field(init=False)
    """A full bucket drains in `fill_us + fill_rem / quota` microseconds."""
    fill_rem: int = field(init=False)
    tick_us: int = field(init=False)
    """What `sliding_counter` measures time in: 1, or the power of ten that keeps it exact."""
    min_interval_us: int = field(init=False)
    max_delay_us: int = field(init=False)
    """The longest a request may be told to wait; -1 where none waits: in all but leaky buckets."""
    identity: str = field(init=False)
    """What of this limit is part of the state's key: algorithm, period and name; no number."""
    _text: str = field(init=False)
    _hash: int = field(init=False)

    def __init__(  # noqa: PLR0913  # each is a word of the grammar
        self,
        quota: int,
        period: float | str,
        *,
        algorithm: str | None = None,
        burst: int | None = None,
        min_interval: float | None = None,
        count_denied: bool = False,
        max_delay: float | None = None,
        from_first: bool = False,
        name: str | None = None,
    ) -> None:
        """Validate, or raise `InvalidLimit`; see the fields for what each argument means."""
        set_ = object.__setattr__
        set_(self, "quota", _whole_number("quota", quota, most=MAX_QUOTA))
        period_us = _period_us(period)
        set_(self, "period", period_us / 1e6 if period_us else period)
        set_(self, "period_us", period_us)
        if burst is not None:
            _whole_number("burst", burst, most=MAX_QUOTA)
        set_(self, "burst", burst)
        set_(self, "algorithm", _algorithm(algorithm, calendar=not period_us, burst=burst))
        set_(self, "min_interval", min_interval)
        set_(self, "min_interval_us", _optional_us("min_interval", min_interval, absent=0))
        set_(self, "count_denied", count_denied)
        set_(self, "max_delay", max_delay)
        no_delay = _NO_MAX_US if self.algorithm == "leaky_bucket" else -1
        set_(self, "max_delay_us", _optional_us("max_delay", max_delay, absent=no_delay, least=0))
        set_(self, "from_first", from_first)
        set_(self, "name", _name(name))
        set_(self, "capacity", quota if burst is None else burst)
        _check_options(self)
        _check_size(self, asked_for=algorithm is not None)

        # quota * interval_us + interval_rem == period_us, exactly; likewise for the fill time.
        interval_us, interval_rem = divmod(period_us, quota)
        set_(self, "interval_us", interval_us)
        set_(self, "interval_rem", interval_rem)
        carry, fill_rem = divmod(self.capacity * interval_rem, quota)
        set_(self, "fill_us", self.capacity * interval_us + carry)
        set_(self, "fill_rem", fill_rem)
        _check_fill(self)
        tick_us = 1
        while quota * -(-period_us // tick_us) >= _DOUBLE // 2:
            tick_us *= 10
        set_(self, "tick_us", tick_us)
        span = period_us or _CALENDAR_CODES[str(period)]
        code = "ff" if from_first else ALGORITHMS[self.algorithm].code
        set_(self, "identity", _identity(code, str(span), self.name))
        set_(self, "_text", "")
        # Of numbers alone: unlike that of text, their hash is the same in every process.
        _, *numbers = _values(self)
        set_(self, "_hash", hash((crc32(self.identity.encode()), *numbers)))

    def share(self, instances: int) -> Limit:
        """Return what one of several instances may admit alone, rounded up."""
        burst = None if self.burst is None else -(-self.burst // instances)
        try:
            return replace(self, quota=-(-self.quota // instances), burst=burst)
        except InvalidLimit:
            # Rounded up, a bucket that takes years to drain would take longer than can be counted.
            return self

    def named(self, name: str | None) -> Limit:
        """Return the same under another name, which keeps its state apart; None is no name."""
        return replace(self, name=name)

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Read one limit, such as `"100/minute"` or `"10/s burst 20"`."""
        limits = cls.parse_all(text)
        if len(limits) > 1:
            raise InvalidLimit(f"expected one limit, got {len(limits)} in {shown(text)}")
        return limits[0]

    @classmethod
    def parse_all(cls, text: str) -> tuple[Limit, ...]:
        """Read one or several limits joined by `;`, such as `"10/second; 1000/hour"`."""
        return tuple(_from_terms(terms) for terms in grammar.parse(text))

    def __str__(self) -> str:
        if not self._text:
            # Kept, since every answer of a service shows it.
            object.__setattr__(self, "_text", _canonical_text(self))
        return self._text

    def __repr__(self) -> str:
        name = "" if self.name is None else f", name={self.name!r}"
        return f"Limit({str(self)!r}{name})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Limit):
            return NotImplemented
        return _values(self) == _values(other)

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True, repr=False)
class Concurrency:
    """How many may hold a slot at the same time, and how long a holder lives without a sign.

    ```python
    with limiter.slot("user:42", Concurrency(10, lease=30)):
        ...
    ```
    """

    slots: int
    """How many holders at once: 10."""
    lease: float
    """Seconds until the slot of a holder that neither renewed nor released is free: 30."""
    _: KW_ONLY
    name: str | None = None
    """Keeps the slots apart from those of another `Concurrency` on the same key."""

    lease_us: int = field(init=False, compare=False)
    identity: str = field(init=False, compare=False)
    """What is part of the state's key: neither the number of slots nor the lease."""

    def __post_init__(self) -> None:
        _whole_number("slots", self.slots, most=_MAX_UNASKED)
        _name(self.name)
        lease_us = _seconds_us("lease", self.lease)
        object.__setattr__(self, "lease_us", lease_us)
        object.__setattr__(self, "lease", lease_us / 1e6)
        object.__setattr__(self, "identity", _identity("co", "", self.name))

    @property
    def quota(self) -> int:
        """The number of slots, under the name that a limit has for it."""
        return self.slots

    @property
    def capacity(self) -> int:
        """The most that can be left, as for a limit: the number of slots."""
        return self.slots

    def share(self, instances: int) -> Concurrency:
        """Return what one of several instances may hand out alone, rounded up."""
        return Concurrency(-(-self.slots // instances), self.lease, name=self.name)

    def __str__(self) -> str:
        return f"{self.slots} at once, lease {grammar.duration(self.lease_us)}"

    def __repr__(self) -> str:
        name = "" if self.name is None else f", name={self.name!r}"
        return f"Concurrency({self.slots}, lease={self.lease:g}{name})"


def _from_terms(terms: grammar.Terms) -> Limit:
    try:
        limit = Limit(
            terms.quota,
            terms.period if isinstance(terms.period, str) else terms.period / 1e6,
            algorithm=terms.algorithm,
            burst=terms.burst,
            min_interval=None if terms.min_interval_us is None else terms.min_interval_us / 1e6,
            count_denied=terms.count_denied,
            max_delay=None if terms.max_delay_us is None else terms.max_delay_us / 1e6,
            from_first=terms.from_first,
        )
    except InvalidLimit as error:
        raise InvalidLimit(f"limit {shown(terms.text)}: {error}") from None
    object.__setattr__(limit, "_text", terms.text)
    return limit


def _values(limit: Limit) -> tuple[object, ...]:
    """Return what makes two limits equal: not the text, nor a burst that says the default."""
    return (
        limit.identity,
        limit.quota,
        limit.capacity,
        limit.min_interval_us,
        limit.count_denied,
        limit.max_delay_us,
    )


def _canonical_text(limit: Limit) -> str:
    text = f"{limit.quota}{grammar.period(limit.period_us or str(limit.period))}"
    implied = _algorithm(None, calendar=not limit.period_us, burst=limit.burst)
    asked_for = limit.algorithm == "packed_window" and limit.quota > _MAX_UNASKED
    if limit.algorithm != implied or asked_for:
        text += f" {limit.algorithm}"
    if limit.burst is not None:
        text += f" burst {limit.burst}"
    if limit.min_interval is not None:
        text += f" min_interval {grammar.duration(limit.min_interval_us)}"
    if limit.count_denied:
        text += " count_denied"
    if limit.from_first:
        text += " from_first"
    if limit.max_delay is not None:
        text += f" max_delay {grammar.duration(limit.max_delay_us)}"
    return text


def _algorithm(asked: str | None, *, calendar: bool, burst: int | None) -> AlgorithmName:
    if asked is None:
        if calendar:
            return "fixed_window"
        return "packed_window" if burst is None else "token_bucket"
    if not isinstance(asked, str) or asked not in ALGORITHMS:
        hint, known = did_you_mean(asked, ALGORITHMS), ", ".join(ALGORITHMS)
        raise InvalidLimit(f"unknown algorithm {shown(asked)}{hint}; there are: {known}")
    return asked


def _check_options(limit: Limit) -> None:
    """Refuse an option that its algorithm could only ignore."""
    algorithm = limit.algorithm
    if not limit.period_us and algorithm != "fixed_window":
        raise InvalidLimit(
            f"a period of {limit.period!r} needs fixed_window, got {algorithm}; "
            "for another algorithm give the period in seconds or days"
        )
    if limit.burst is not None and not ALGORITHMS[algorithm].is_bucket:
        raise InvalidLimit(
            f"burst belongs to token_bucket and leaky_bucket, got burst {limit.burst} "
            f"with {algorithm}"
        )
    if not isinstance(limit.count_denied, bool):
        raise InvalidLimit(f"count_denied must be True or False, got {shown(limit.count_denied)}")
    for option, said in (
        ("min_interval", limit.min_interval is not None),
        ("count_denied", limit.count_denied),
    ):
        if said and not ALGORITHMS[algorithm].is_exact:
            raise InvalidLimit(
                f"{option} belongs to packed_window and rolling_window, got {algorithm}"
            )
    if limit.min_interval_us > limit.period_us:
        raise InvalidLimit(
            f"min_interval must be at most the period of {grammar.duration(limit.period_us)}, "
            f"got {grammar.duration(limit.min_interval_us)}"
        )
    if not isinstance(limit.from_first, bool):
        raise InvalidLimit(f"from_first must be True or False, got {shown(limit.from_first)}")
    if limit.from_first and (algorithm != "fixed_window" or not limit.period_us):
        raise InvalidLimit(
            f"from_first belongs to fixed_window with a period of seconds, got {algorithm} "
            f"of {limit.period!r}"
        )
    if limit.max_delay is not None and algorithm != "leaky_bucket":
        raise InvalidLimit(f"max_delay belongs to leaky_bucket, got {algorithm}")


def _check_size(limit: Limit, *, asked_for: bool) -> None:
    """Refuse what would cost too much memory, or more digits than a double has."""
    quota, algorithm = limit.quota, limit.algorithm
    most, is_bucket = ALGORITHMS[algorithm].max_quota, ALGORITHMS[algorithm].is_bucket
    if quota > most:
        raise InvalidLimit(
            f"{algorithm} holds at most {most:,} units, got {quota:,}; use "
            f"{'packed_window, ' if algorithm == 'rolling_window' else ''}sliding_counter or "
            "token_bucket for more"
        )
    if algorithm == "packed_window" and quota > _MAX_UNASKED and not asked_for:
        raise InvalidLimit(
            f"an exact window of {quota:,} units remembers each of them; "
            f"above {_MAX_UNASKED:,} add 'packed_window' to say that this is meant, "
            "or use sliding_counter or token_bucket"
        )
    if is_bucket and quota > _MAX_BUCKET_QUOTA:
        raise InvalidLimit(
            f"{algorithm} takes at most {_MAX_BUCKET_QUOTA:,} units a period, got {quota:,}; "
            "give the same rate over a shorter period"
        )
    if is_bucket and quota * limit.capacity >= _DOUBLE:
        raise InvalidLimit(
            f"quota times burst must stay below 2**53 to be exact, "
            f"got {quota:,} times {limit.capacity:,}; give a smaller burst or a shorter period"
        )


def _check_fill(limit: Limit) -> None:
    if ALGORITHMS[limit.algorithm].is_bucket and limit.fill_us > _MAX_PERIOD_US:
        raise InvalidLimit(
            f"a bucket must drain within {_MAX_PERIOD_US // 86_400_000_000:,} days; burst "
            f"{limit.capacity:,} at {limit.quota:,}{grammar.period(limit.period_us)} takes longer"
        )


def _period_us(period: float | str) -> int:
    if isinstance(period, str):
        if period in grammar.CALENDAR_PERIODS:
            return 0
        raise InvalidLimit(
            f"period must be seconds, 'month' or 'calendar day', got {shown(period)}; "
            "Limit.parse reads text such as '100/minute'"
        )
    return _seconds_us("period", period)


def _optional_us(what: str, seconds: float | None, *, absent: int, least: int = 1) -> int:
    return absent if seconds is None else _seconds_us(what, seconds, least=least)


def _seconds_us(what: str, seconds: float, *, least: int = 1) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidLimit(f"{what} must be a number of seconds, got {shown(seconds)}")
    # Compared before it is multiplied: a huge integer is too large for a float.
    if not 0 <= seconds <= _MAX_PERIOD_US / 1e6 or round(seconds * 1e6) < least:
        raise InvalidLimit(
            f"{what} must be between a microsecond and {_MAX_PERIOD_US // 86_400_000_000:,} "
            f"days in seconds, got {shown(seconds)}"
        )
    return round(seconds * 1e6)


def _whole_number(what: str, value: int, *, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidLimit(f"{what} must be a whole number from 1 to {most:,}, got {shown(value)}")
    return value


def _name(name: str | None) -> str | None:
    if name is None or (isinstance(name, str) and 0 < len(name) <= 200):
        return name
    raise InvalidLimit(f"name must be text of 1 to 200 characters, got {shown(name)}")


def _identity(code: str, span: str, name: str | None) -> str:
    """Join what tells states of one key apart. The bar at the end is in none of the parts."""
    return f"{code}:{span}:{escaped(name or '', DIGEST_LENGTH)}|"
