"""An engine that was put together wrongly says so at once, and not at every request."""

from __future__ import annotations

from typing import Any

import pytest

from limen import AsyncLimiter, ConfigurationError, Limiter
from limen.engine import AsyncEngine, Engine
from limen.rules import parse

RULES = parse({"rules": []})


@pytest.mark.parametrize("engine", [Engine, AsyncEngine])
@pytest.mark.parametrize("rules", ["rules.yaml", None, {"rules": []}, Limiter])
def test_what_is_no_rule_set_is_refused(engine: Any, rules: object) -> None:
    limiter = Limiter() if engine is Engine else AsyncLimiter()
    with pytest.raises(ConfigurationError, match="an engine needs a RuleSet, got"):
        engine(rules, limiter)
    built = engine(RULES, limiter)
    with pytest.raises(ConfigurationError, match="an engine needs a RuleSet, got"):
        built.use(rules)
    assert built.rules is RULES


def test_a_path_is_told_how_to_be_read() -> None:
    with pytest.raises(ConfigurationError, match=r"got 'rules.yaml'; read a file by limen.rules"):
        Engine("rules.yaml", Limiter())  # type: ignore[arg-type]  # that it fails is the point


@pytest.mark.parametrize(
    ("engine", "limiter", "got"),
    [
        (Engine, "redis://:s3cret@localhost", "this engine is for Limiter, got str"),
        (Engine, AsyncLimiter(), "this engine is for Limiter, got AsyncLimiter"),
        (AsyncEngine, Limiter(), "this engine is for AsyncLimiter, got Limiter"),
    ],
)
def test_another_limiter_is_refused(engine: Any, limiter: object, got: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        engine(RULES, limiter)
    assert str(caught.value) == got
