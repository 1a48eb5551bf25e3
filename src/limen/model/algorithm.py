"""The table of the algorithms. All other modules take names, codes and Lua files from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

MAX_QUOTA = 10**9


class Algorithm(NamedTuple):
    """One algorithm. `fixed_window` is the class `FixedWindowState` in `fixed_window.py`."""

    code: str
    """The part of the state's key that names the algorithm. It must not change: `"fw"`."""
    lua: tuple[str, ...]
    """The Lua files in `limen/algorithms`, in their order in the script, without `.lua`."""
    is_bucket: bool = False
    """Whether it drains continuously. Then a limit may have a `burst`."""
    is_exact: bool = False
    """Whether it remembers each unit. Then a limit may have `min_interval` and `count_denied`."""
    max_quota: int = MAX_QUOTA


ALGORITHMS: dict[str, Algorithm] = {
    "fixed_window": Algorithm("fw", ("string_state", "fixed_window")),
    "sliding_counter": Algorithm("sc", ("string_state", "sliding_counter")),
    "rolling_window": Algorithm(
        "rw", ("rolling_window", "exact_window"), is_exact=True, max_quota=10_000
    ),
    "packed_window": Algorithm(
        "pw", ("packed_window", "exact_window"), is_exact=True, max_quota=1_000_000
    ),
    "token_bucket": Algorithm("tb", ("string_state", "token_bucket"), is_bucket=True),
    "leaky_bucket": Algorithm("lb", ("string_state", "token_bucket"), is_bucket=True),
}
"""Every algorithm by its name in limits and rules."""

if TYPE_CHECKING:
    AlgorithmName = str
else:
    # pydantic lists the names in the JSON Schema of rules.
    AlgorithmName = Literal[tuple(ALGORITHMS)]
