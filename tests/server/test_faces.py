"""What is said of limits is shared by all to whom the same is said, and by nobody else."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from limen.engine.asked import ask
from limen.rules import parse
from limen.server.faces import Gallery, faces_of

RULES = parse(
    {
        "rules": [
            {"name": "plain", "key": ["user"], "limits": "10/minute"},
            {
                "name": "tiers",
                "key": ["user"],
                "tiers": {
                    "by": "plan",
                    "limits": {"50%": "5/minute", "free": "5/minute", "rich": "unlimited"},
                    "default": ["7/minute", "70/hour"],
                },
                "overrides": [
                    {"key": {"user": "a"}, "limits": "8/minute"},
                    {"key": {"user": "b"}, "limits": "8/minute"},
                ],
            },
            {"name": "half", "key": ["user"], "limits": "5/minute", "enforce_percent": 50},
            {"name": "tokens", "key": ["user"], "limits": "900/hour", "cost": "tokens"},
            {
                "name": "test",
                "key": ["user"],
                "limits": "5/minute",
                "variants": [{"name": "new", "percent": 50, "limits": "6/minute"}],
            },
        ]
    }
)
GALLERY = Gallery()
SEEN: set[int] = set()


@given(
    user=st.sampled_from("abcdefghijklmnop"),
    plan=st.sampled_from(["50%", "free", "rich", "other", None]),
    tokens=st.sampled_from(["0", "7", None]),
)
def test_each_request_is_shown_its_own(user: str, plan: str | None, tokens: str | None) -> None:
    named = {"user": user, "plan": plan, "tokens": tokens}
    facts = {name: value for name, value in named.items() if value is not None}
    asked = ask(RULES, facts, 1, time.time_ns(), slots=False)
    found = GALLERY.faces(asked)
    assert found == faces_of(asked.found.applied)
    assert GALLERY.faces(ask(RULES, facts, 3, time.time_ns(), slots=False)) is found
    SEEN.add(id(found))


def test_many_are_shown_the_same() -> None:
    assert SEEN
    # Five kinds of tier and two overrides; enforced or not; by tokens or not; two variants.
    assert len(SEEN) <= 7 * 2 * 2 * 2
