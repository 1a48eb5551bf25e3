"""Rules and a limiter together: attributes of a request in, a verdict out."""

from limen.engine.aio import AsyncEngine, AsyncRuleSlot
from limen.engine.asked import Asked, Together, together
from limen.engine.sync import Engine, RuleSlot
from limen.engine.verdict import (
    Bill,
    Charge,
    Part,
    RequestRefused,
    Verdict,
    part_without_limit,
    verdict_without_rules,
)

__all__ = [
    "Asked",
    "AsyncEngine",
    "AsyncRuleSlot",
    "Bill",
    "Charge",
    "Engine",
    "Part",
    "RequestRefused",
    "RuleSlot",
    "Together",
    "Verdict",
    "part_without_limit",
    "together",
    "verdict_without_rules",
]
