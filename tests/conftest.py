"""How hard the property tests try.

`make test` tries the same examples every time, so that it fails for a change and for nothing else.
New examples are for `make fuzz`, which is made to fail.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow]
settings.register_profile("quick", deadline=None, max_examples=10, suppress_health_check=_SLOW)
settings.register_profile(
    "test", deadline=None, max_examples=100, derandomize=True, suppress_health_check=_SLOW
)
settings.register_profile("fuzz", deadline=None, max_examples=1_000, suppress_health_check=_SLOW)
settings.load_profile("test")
