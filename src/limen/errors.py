"""Every error limen raises, in one tree. Knows nothing of the rest of limen.

    LimenError
    ├── InvalidLimit        (ValueError)  a limit that cannot be understood or held
    ├── InvalidInput        (ValueError)  a key, cost or other argument of a call
    ├── InvalidRules        (ValueError)  rules that cannot be understood: all that is wrong
    ├── Conflict                          the rules were changed by somebody else meanwhile
    ├── ConfigurationError                how a limiter or a decorator was put together
    ├── StoreError                        the store cannot be reached or used
    └── RateLimitExceeded                 refused, for those who asked for an exception

A refusal is a value (`Decision.allowed`). It becomes `RateLimitExceeded` only where the caller
asked to be stopped: in `acquire`, under `@limiter.limit`, and in `with limiter.slot(...)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from limen.model import Decision

_LONGEST_WORD = 100
_MOST_NAMES = 200


class LimenError(Exception):
    """The root: `except LimenError` catches whatever limen raises."""


class InvalidLimit(LimenError, ValueError):
    """Say that a limit is not understood, or that it asks for something that cannot be kept."""


class InvalidInput(LimenError, ValueError):
    """Say that an argument of a call is not what was expected. Nothing was changed."""


class Problem(NamedTuple):
    """One thing that is wrong with a rule set, and where."""

    path: str
    """Where in the document: `rules[2].tiers.limits.pro`; empty for the whole of it."""
    message: str
    """What was got, what was expected, and what to do."""
    line: int | None = None
    """The line in the file, from 1; None when there is no file."""

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}: "
        return f"{place}{self.path}: {self.message}" if self.path else f"{place}{self.message}"


class InvalidRules(LimenError, ValueError):
    """Say everything that is wrong with a rule set. It was refused as a whole."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[InvalidRules], tuple[tuple[Problem, ...]]]:
        return (InvalidRules, (self.problems,))


class Conflict(LimenError):
    """Say that the rules have changed since the caller looked. Nothing was written."""


class ConfigurationError(LimenError):
    """Say that a limiter, a store address or a decorator was put together wrongly."""


class StoreError(LimenError):
    """Say that the store cannot be reached or used."""


class RateLimitExceeded(LimenError):
    """Stop a caller who is over the limit. `decision` tells which limit, and when to come back."""

    def __init__(self, decision: Decision) -> None:
        # The key stays out of the message: it may be somebody's API key, and messages get logged.
        retry_after = decision.retry_after
        when = "never fits" if retry_after is None else f"retry in {retry_after:.6g} s"
        super().__init__(f"over the limit of {decision.limit}: {when}")
        self.decision = decision

    def __reduce__(self) -> tuple[type[RateLimitExceeded], tuple[Decision]]:
        return (RateLimitExceeded, (self.decision,))


def shown(value: object) -> str:
    """Return a value as an error message shows it: one line, never long, never failing."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception:  # it is the user's own, and may do anything
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ` (did you mean 'limits'?)`, or nothing when nothing is near.

    Upper and lower case, and `-` and `_`, are the same here. Takes a few milliseconds at most: long
    words get no suggestion, and of many names only those with the same first letters are compared.
    """
    if not isinstance(word, str) or len(word) > _LONGEST_WORD:
        return ""
    plain = _plain(word)
    names = {_plain(name): name for name in known}
    if len(names) > _MOST_NAMES:
        alike = ((other, name) for other, name in names.items() if other[:2] == plain[:2])
        names = dict(islice(alike, _MOST_NAMES))
    close = get_close_matches(plain, names, 1)
    return f" (did you mean '{names[close[0]]}'?)" if close else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
