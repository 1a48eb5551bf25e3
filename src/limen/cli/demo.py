"""`limen demo`: the same traffic through every algorithm, side by side.

`trace` plays the traffic on virtual time and `outcome` counts what came of it: both are pure. The
rest draws them. What an algorithm decides is never worked out here, only asked of a limiter.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from limen import Concurrency, Decision, Limit, Limiter
from limen.limiter.slot import Slot
from limen.model import ALGORITHMS
from limen.testing import ManualClock

SECOND_US = 1_000_000
WINDOW_US = 10 * SECOND_US
HOLD_US = 6 * SECOND_US
"""How long a request that got a slot keeps it."""
QUOTA = 10
LIMITS: dict[str, Limit] = {name: Limit.parse(f"{QUOTA}/10s {name}") for name in ALGORITHMS}
SLOTS = Concurrency(QUOTA, lease=30)

_ANIMATION_S = 8.0
_NAME_WIDTH = 17
_WHY_ABOVE = {
    "fixed_window": "across a boundary",
    "sliding_counter": "being an estimate",
    "token_bucket": "burst plus refill",
}
# The characters tell the answers apart without colour too.
_LEGEND = "[green]■[/] passed   [yellow]□[/] passed, delayed   [red]·[/] refused   │ window ends"
_ASCII = str.maketrans("■□·│└─┘", "#o.|\\_/")


class Phase(NamedTuple):
    """A stretch of even traffic."""

    name: str
    note: str
    start_us: int
    requests: int
    interval_us: int


# Fixed windows end at 10, 20, 30 s and so on. Nothing comes from 10 to 29 s, so that every
# algorithm meets the bursts with nothing counted.
TRAFFIC = (
    Phase("quiet", "a request every two seconds", 0, 5, 2 * SECOND_US),
    Phase("burst", "ten requests in the last second of a window", 29 * SECOND_US, 10, 100_000),
    Phase("burst", "ten more in the first second of the next", 30 * SECOND_US, 10, 100_000),
    Phase("steady, at twice the rate", "two requests a second", 34 * SECOND_US, 32, 500_000),
)


class Tick(NamedTuple):
    """One request, and what each algorithm said to it."""

    at_us: int
    phase: Phase
    decisions: dict[str, Decision]


def trace() -> list[Tick]:
    """Play the traffic through every algorithm, and return each request with the answers to it."""
    clock = ManualClock()
    limiter = Limiter(clock=clock)
    held: list[tuple[int, Slot]] = []
    ticks: list[Tick] = []
    for phase in TRAFFIC:
        for number in range(phase.requests):
            at_us = phase.start_us + number * phase.interval_us
            clock.advance((at_us - ticks[-1].at_us if ticks else at_us) / SECOND_US)
            # Nobody asks between two requests, so a slot given back in between may as well go now.
            while held and held[0][0] <= at_us:
                held.pop(0)[1].release()
            decisions = {name: limiter.check("client", limit) for name, limit in LIMITS.items()}
            slot = limiter.slot("client", SLOTS)
            decisions["concurrency"] = slot.acquire()
            if slot.decision:
                held.append((at_us + HOLD_US, slot))
            ticks.append(Tick(at_us, phase, decisions))
    return ticks


class Outcome(NamedTuple):
    """What one algorithm made of the traffic."""

    algorithm: str
    asked: int
    passed: int
    most: int
    """The most that went through in any ten seconds."""
    crowd: tuple[int, ...]
    """Which requests those were, counted from 0."""
    at_once: int
    """The most that held a slot at the same time, were each to hold one for `HOLD_US`."""
    longest_delay_us: int

    @property
    def above(self) -> bool:
        """Whether more went through than the limit says. Slots do not limit ten seconds."""
        return self.algorithm != "concurrency" and self.most > QUOTA

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if self.algorithm == "concurrency":
            return f"at most {self.at_once} at once"
        if self.above:
            times = "twice" if self.most == 2 * QUOTA else f"{self.most / QUOTA:.1f}x"
            return f"{times} its limit, {_WHY_ABOVE.get(self.algorithm, 'a mistake')}"
        return f"never above {QUOTA}" + (", evenly spaced" if self.longest_delay_us else "")


def outcome(ticks: Sequence[Tick], algorithm: str) -> Outcome:
    """Count what `algorithm` made of the ticks."""
    decisions = [tick.decisions[algorithm] for tick in ticks]
    passed = [number for number, decision in enumerate(decisions) if decision]
    # A delayed request goes through when its delay is over; a queue keeps the order.
    through_us = [
        ticks[number].at_us + round(decisions[number].delay * SECOND_US) for number in passed
    ]
    busiest = fullest(through_us, WINDOW_US)
    return Outcome(
        algorithm=algorithm,
        asked=len(ticks),
        passed=len(passed),
        most=len(busiest),
        crowd=tuple(passed[number] for number in busiest),
        at_once=len(fullest(through_us, HOLD_US)),
        longest_delay_us=round(max(decision.delay for decision in decisions) * SECOND_US),
    )


def fullest(times_us: Sequence[int], span_us: int) -> range:
    """Return which of these ascending times are the most that lie within any `span_us`."""
    best, first = range(0), 0
    for last, time_us in enumerate(times_us):
        while time_us - times_us[first] >= span_us:
            first += 1
        if last + 1 - first > len(best):
            best = range(first, last + 1)
    return best


def picture(ticks: Sequence[Tick], shown: int, *, ascii_only: bool = False) -> Group:
    """Draw the first `shown` ticks: a row for each algorithm, a character for each request."""
    gaps = ["", *(_gap(before, tick) for before, tick in pairwise(ticks))]
    columns = [_NAME_WIDTH + n + len("".join(gaps[: n + 1])) for n in range(len(ticks))]
    phases, times = "", ""
    for tick, gap, column in zip(ticks, gaps, columns, strict=True):
        if tick.at_us == tick.phase.start_us:
            phases = phases.ljust(column) + tick.phase.name
        if gap or not times:
            times = times.ljust(column) + f"{tick.at_us // SECOND_US}s"
    rows = [Text(phases, "bold"), Text(times, "dim")]
    for name in ticks[0].decisions:
        row = Text(name.ljust(_NAME_WIDTH))
        for tick, gap in zip(ticks[:shown], gaps, strict=False):
            row.append(gap, "dim").append(*_cell(tick.decisions[name]))
        rows.append(row)
        if name == "fixed_window":
            rows.append(_bracket(ticks[:shown], name, columns))
    now = ticks[shown - 1]
    note = f"{now.at_us / SECOND_US:4.1f} s  {now.phase.note}" if shown < len(ticks) else ""
    rows += [Text(), Text.from_markup(_LEGEND), Text(note, "bold")]
    for row in rows:
        row.no_wrap, row.overflow = True, "crop"
        if ascii_only:
            row.plain = row.plain.translate(_ASCII)
    return Group(*rows)


def _gap(before: Tick, tick: Tick) -> str:
    if before.at_us // WINDOW_US != tick.at_us // WINDOW_US:
        return "│"
    return "" if before.phase is tick.phase else " "


def _cell(decision: Decision) -> tuple[str, str]:
    if not decision:
        return "·", "red"
    return ("□", "yellow") if decision.delay else ("■", "green")


def _bracket(ticks: Sequence[Tick], name: str, columns: Sequence[int]) -> Text:
    """Point at the requests that went through above the limit, once there are some."""
    result = outcome(ticks, name)
    if not result.above:
        return Text()
    first, last = result.crowd[0], result.crowd[-1]
    label = f" {result.most} in {(ticks[last].at_us - ticks[first].at_us) / SECOND_US:.1f} s "
    line = label.center(columns[last] - columns[first] - 1, "─")
    return Text(" " * columns[first]).append(f"└{line}┘", "bold red")


def comparison(outcomes: Sequence[Outcome]) -> Table:
    """Put the numbers side by side."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    table.caption = f"! above the limit of {QUOTA} in 10 s"
    for heading in ("algorithm", "limit"):
        table.add_column(heading, no_wrap=True)
    for heading in ("asked", "passed", "refused", "most\nin 10s", "longest\ndelay"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for result in outcomes:
        delay_us = result.longest_delay_us
        table.add_row(
            result.algorithm,
            f"{QUOTA} slots" if result.algorithm == "concurrency" else f"{QUOTA}/10s",
            *(str(count) for count in (result.asked, result.passed, result.asked - result.passed)),
            f"[bold red]{result.most}![/]" if result.above else f"{result.most} ",
            f"{delay_us / SECOND_US:.1f} s" if delay_us else "-",
            result.verdict,
        )
    return table


def run(*, animated: bool = True, speed: float = 1.0) -> None:
    """Show the traffic going through, moving where there is a terminal, and then compare."""
    console = Console(highlight=False)
    ticks = trace()
    console.print(f"The same traffic through every algorithm: {QUOTA} are allowed in 10 seconds.\n")
    if animated and console.file.isatty() and not console.is_dumb_terminal:
        _animate(console, ticks, _ANIMATION_S / speed)
    else:
        console.print(picture(ticks, len(ticks), ascii_only=console.options.ascii_only))
    console.print(comparison([outcome(ticks, name) for name in ticks[0].decisions]))
    console.print("\n[bold]Next:[/]  from limen import Limiter")
    console.print('       Limiter().check("user:42", "10/10s").allowed   # by packed_window')


def _animate(console: Console, ticks: Sequence[Tick], seconds: float) -> None:
    frame = partial(picture, ticks, ascii_only=console.options.ascii_only)
    # A long silence is shortened, or nothing would move for most of the time.
    gaps_us = [min(tick.at_us - before.at_us, 2 * SECOND_US) for before, tick in pairwise(ticks)]
    with Live(frame(1), console=console, auto_refresh=False) as live:
        for shown, gap_us in enumerate(gaps_us, 2):
            time.sleep(seconds * gap_us / sum(gaps_us))
            live.update(frame(shown), refresh=True)
