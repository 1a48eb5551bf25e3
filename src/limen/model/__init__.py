"""The words everything else is said in: limits, checks, decisions. No I/O, no clock, no store."""

from limen.model.algorithm import ALGORITHMS, AlgorithmName
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
    binding,
    decision_of,
    receipt_ids,
    valid_cost,
    valid_key,
)
from limen.model.limit import Concurrency, Limit

__all__ = [
    "ALGORITHMS",
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
    "binding",
    "decision_of",
    "receipt_ids",
    "valid_cost",
    "valid_key",
]
