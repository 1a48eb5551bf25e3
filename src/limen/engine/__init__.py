"""Rules and a limiter together: attributes of a request in, a verdict out."""

from limen.engine.aio import AsyncEngine, AsyncRuleSlot
from limen.engine.sync import Engine, RuleSlot
from limen.engine.verdict import Part, RequestRefused, Verdict

__all__ = [
    "AsyncEngine",
    "AsyncRuleSlot",
    "Engine",
    "Part",
    "RequestRefused",
    "RuleSlot",
    "Verdict",
]
