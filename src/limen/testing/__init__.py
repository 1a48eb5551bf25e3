"""Tools for the tests of code that uses limen. Nothing here is needed in production.

`ManualClock` moves when told to, `in_memory` takes the store away from a limiter for a while. As
fixtures of pytest they are in `limen.testing.fixtures`.
"""

from limen.testing.clock import ManualClock
from limen.testing.memory import in_memory

__all__ = ["ManualClock", "in_memory"]
