"""A profile for hypothesis: the examples of `make test`, and no search for the smallest that fails.

That one fails is all there is to know, and the search takes longer than to find it.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "unshrunk",
    deadline=None,
    max_examples=100,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=(Phase.explicit, Phase.generate),
)
