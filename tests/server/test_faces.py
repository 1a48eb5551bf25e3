"""What is said of limits is shared by all to whom the same is said, and by nobody else."""

from __future__ import annotations

import time
from itertools import pairwise, product

import msgspec

from limen import AsyncLimiter
from limen.engine import Asked, AsyncEngine
from limen.engine.asked import ask
from limen.rules import parse
from limen.server.answers import QUICK_STYLES
from limen.server.faces import Gallery, faces_of
from limen.server.questions import Questions

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


def asked(**attributes: str | None) -> Asked:
    facts = {name: value for name, value in attributes.items() if value is not None}
    return ask(RULES, facts, 1, time.time_ns(), slots=False)


def test_each_is_shown_its_own_and_many_the_same() -> None:
    gallery, shown = Gallery(), set()
    plans = ("50%", "free", "rich", "other", None)
    for user, plan, tokens in product("abcdefghijklmnop", plans, ("0", "7", None)):
        request = asked(user=user, plan=plan, tokens=tokens)
        found = gallery.faces(request)
        assert found == faces_of(request.found.applied)
        assert gallery.faces(asked(user=user, plan=plan, tokens=tokens)) is found
        shown.add(id(found))
    # Four kinds of tier and two overrides; enforced or not; by tokens or not; two variants.
    assert 16 < len(shown) <= 6 * 2 * 2 * 2


def test_however_many_there_are_they_have_their_room() -> None:
    rules = [
        {"name": f"rule-{n}", "key": ["user"], "limits": "5/minute", "enforce_percent": 50}
        for n in range(40)
    ]
    rule_set, gallery = parse({"rules": rules}), Gallery()
    for number in range(2_000):
        gallery.faces(ask(rule_set, {"user": str(number)}, 1, time.time_ns(), slots=False))
    assert gallery.made > 50_000_000
    assert gallery._known._used < 16_000_000
    assert 250 < len(gallery._known._known) < 600


def test_what_is_said_of_a_question_alone_counts_as_its_own() -> None:
    limiter = AsyncLimiter()
    questions = Questions(AsyncEngine(RULES, limiter), limiter, max_batch=9, styles=QUICK_STYLES)
    used = [0]
    for user in ("c", "d", "c"):
        for plan in ("free", "rich"):
            body = {"attributes": {"user": user, "plan": plan, "x": str(len(used))}}
            questions.one(msgspec.json.encode(body))
            used.append(questions._memo._used)
    took = [after - before for before, after in pairwise(used)]
    assert took[0] > took[4] + 600
    assert took[1] > took[5] + 600
