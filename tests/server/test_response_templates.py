"""Response templates are shared by requests to which the same limits apply, and by no others."""

from __future__ import annotations

import time
from itertools import pairwise, product

import msgspec

from limen import AsyncLimiter
from limen.engine import Asked, AsyncEngine
from limen.engine.asked import ask
from limen.rules import parse
from limen.server.api.requests import CheckRequestParser
from limen.server.api.response_templates import TemplateCache, template_of

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


def test_template_is_shared_by_requests_with_the_same_limits() -> None:
    cache, templates = TemplateCache(), set()
    plans = ("50%", "free", "rich", "other", None)
    for user, plan, tokens in product("abcdefghijklmnop", plans, ("0", "7", None)):
        request = asked(user=user, plan=plan, tokens=tokens)
        template = cache.get(request)
        assert template == template_of(request.applied)
        assert cache.get(asked(user=user, plan=plan, tokens=tokens)) is template
        templates.add(id(template))
    # Four kinds of tier and two overrides; enforced or not; by tokens or not; two variants.
    assert 16 < len(templates) <= 6 * 2 * 2 * 2


def test_size_of_the_cache_is_bounded() -> None:
    rules = [
        {"name": f"rule-{n}", "key": ["user"], "limits": "5/minute", "enforce_percent": 50}
        for n in range(40)
    ]
    rule_set, cache = parse({"rules": rules}), TemplateCache()
    for number in range(2_000):
        cache.get(ask(rule_set, {"user": str(number)}, 1, time.time_ns(), slots=False))
    assert cache.made > 40_000_000
    assert cache._known._used < 16_000_000
    assert 250 < len(cache._known._known) < 800


def test_new_template_counts_towards_the_size_of_its_request() -> None:
    limiter = AsyncLimiter()
    parser = CheckRequestParser(AsyncEngine(RULES, limiter), limiter, max_batch=9)
    used = [0]
    for user in ("c", "d", "c"):
        for plan in ("free", "rich"):
            body = {"attributes": {"user": user, "plan": plan, "x": str(len(used))}}
            parser.one(msgspec.json.encode(body))
            used.append(parser._cache._used)
    took = [after - before for before, after in pairwise(used)]
    assert took[0] > took[4] + 600
    assert took[1] > took[5] + 600
