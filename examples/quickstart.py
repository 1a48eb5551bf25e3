"""The smallest use of limen: three requests a minute, and a fourth that is refused."""

from limen import Limiter

limiter = Limiter()

for attempt in range(1, 5):
    decision = limiter.check("user:42", "3/minute")
    if decision.allowed:
        print(f"request {attempt}: allowed, {decision.remaining} left")
    else:
        print(f"request {attempt}: refused, come back in {decision.retry_after:.0f} s")
