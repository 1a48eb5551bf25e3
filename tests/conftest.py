"""How hard the property tests try: a little in `make test`, a lot in `make fuzz`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "test", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "fuzz", deadline=None, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("test")
