"""Five wrong passwords in ten minutes lock a name; right ones cost nothing.

Each try is charged before the password is looked at, so that tries in parallel cannot slip
through. A right password gets its charge back. `count_denied` counts the tries at a locked door
too: who keeps hammering stays locked out, who waits ten minutes does not.
"""

from limen import Limit, Limiter
from limen.testing import ManualClock

PASSWORDS = {"alice": "correct horse", "mallory": "battery staple"}
TRIES = Limit(5, 600, count_denied=True, name="login")

clock = ManualClock(13 * 3600)  # moves when told; leave it out to use the machine's
limiter = Limiter(clock=clock)


def log_in(name: str, password: str) -> str:
    decision = limiter.check(name, TRIES)
    if not decision.allowed:
        return f"locked, come back in {decision.retry_after:.0f} s"
    if PASSWORDS.get(name) != password:
        return f"wrong password, {decision.remaining} tries left"
    limiter.refund(decision)
    return "welcome"


def show(name: str, password: str) -> None:
    minutes = round(clock.monotonic()) // 60
    print(f"{minutes // 60:02}:{minutes % 60:02} {name}: {log_in(name, password)}")


for _ in range(10):
    show("alice", "correct horse")  # ten right ones leave all five tries

for guess in ("123456", "password", "qwerty", "letmein", "dragon"):
    show("mallory", guess)

clock.advance(300)
for guess in ("hunter2", "football", "monkey", "sunshine", "iloveyou"):
    show("mallory", guess)  # refused, and counted

clock.advance(300)
show("mallory", "battery staple")  # still locked, because of the tries at 13:05

clock.advance(300)
show("mallory", "battery staple")
