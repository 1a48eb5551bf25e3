"""The words everything else is said in: limits, checks, decisions. No I/O, no clock, no store."""

from limen.model.decision import (
    MAX_COST,
    NEVER_US,
    UNCHARGED,
    Check,
    Decision,
    OnError,
    Reading,
    Receipt,
    Source,
    decision_of,
    valid_cost,
    valid_key,
)
from limen.model.limit import AlgorithmName, Concurrency, Limit

__all__ = [
    "MAX_COST",
    "NEVER_US",
    "UNCHARGED",
    "AlgorithmName",
    "Check",
    "Concurrency",
    "Decision",
    "Limit",
    "OnError",
    "Reading",
    "Receipt",
    "Source",
    "decision_of",
    "valid_cost",
    "valid_key",
]
