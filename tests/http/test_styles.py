"""Which styles there are, which go together, and what a page of another origin may read."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from limen import Limiter
from limen.errors import ConfigurationError
from limen.http import HeaderStyle, answer_of, exposed_headers, headers, valid_styles
from limen.http.styles import WRITTEN
from limen.testing import ManualClock

EVERY: tuple[HeaderStyle, ...] = get_args(HeaderStyle)
NAMES = ", ".join(EVERY)


@pytest.mark.parametrize(
    "styles",
    [
        [],
        ["draft-11"],
        ("x-ratelimit", "draft-11"),
        ["draft-07", "draft-03", "x-ratelimit-delta"],
        iter(["draft-03", "draft-11"]),
    ],
)
def test_styles_are_taken(styles: Any) -> None:
    said = list(styles)
    assert list(valid_styles(iter(said))) == said


@pytest.mark.parametrize(
    ("styles", "message"),
    [
        ("draft-11", "headers must be a list of styles, got 'draft-11'"),
        (None, "headers must be a list of styles, got None"),
        (
            ["draft-1"],
            f"unknown style of headers 'draft-1' (did you mean 'draft-11'?); there are: {NAMES}",
        ),
        (
            ["draft-11", "X-Rate-Limit"],
            "unknown style of headers 'X-Rate-Limit' (did you mean 'x-ratelimit'?); "
            f"there are: {NAMES}",
        ),
        ([3], f"unknown style of headers 3; there are: {NAMES}"),
        ([["draft-11"]], f"unknown style of headers ['draft-11']; there are: {NAMES}"),
        (["off"], f"unknown style of headers 'off'; there are: {NAMES}"),
        (
            ["draft-11", "draft-11"],
            "the style 'draft-11' stands twice among ('draft-11', 'draft-11')",
        ),
        (
            ["draft-03", "draft-11", "draft-07"],
            "the styles 'draft-11' and 'draft-07' both write RateLimit-Policy; choose one of them",
        ),
        (
            ["x-ratelimit-delta", "x-ratelimit"],
            "the styles 'x-ratelimit-delta' and 'x-ratelimit' both write X-RateLimit-Limit; "
            "choose one of them",
        ),
    ],
)
def test_styles_are_refused_in_one_line(styles: object, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        valid_styles(styles)
    assert str(raised.value) == message


def test_a_style_that_there_is_not_writes_nothing_else_instead() -> None:
    unknown: Any = "draft-08"
    with pytest.raises(ConfigurationError, match="unknown style of headers 'draft-08'"):
        headers(answer_of(Limiter().check("key", "3/minute")), [unknown], 0.0)


@pytest.mark.parametrize("style", EVERY)
def test_a_style_writes_the_headers_it_says_it_writes(style: HeaderStyle) -> None:
    limiter = Limiter(clock=ManualClock())
    passed = headers(answer_of(limiter.check("key", "1/minute")), [style], 0.0)
    assert tuple(name for name, _ in passed) == WRITTEN[style]
    refused = headers(answer_of(limiter.check("key", "1/minute")), [style], 0.0)
    assert tuple(name for name, _ in refused) == (*WRITTEN[style], "Retry-After")


def test_without_a_style_there_is_retry_after_alone() -> None:
    limiter = Limiter(clock=ManualClock())
    assert headers(answer_of(limiter.check("key", "1/minute")), []) == []
    refused = answer_of(limiter.check("key", "1/minute"))
    assert headers(refused, []) == [("Retry-After", "60")]


@pytest.mark.parametrize(
    ("styles", "already", "said"),
    [
        (["draft-11"], "", "RateLimit-Policy, RateLimit, Retry-After"),
        ([], "", "Retry-After"),
        (
            ["draft-03"],
            "",
            "RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, Retry-After",
        ),
        (["draft-11"], "ETag, Link", "ETag, Link, RateLimit-Policy, RateLimit, Retry-After"),
        (["draft-07"], "retry-after,RATELIMIT ,", "retry-after, RATELIMIT, RateLimit-Policy"),
        ([], "*", "*, Retry-After"),
        ([], " , ,", "Retry-After"),
    ],
)
def test_what_pages_of_other_origins_may_read(styles: Any, already: str, said: str) -> None:
    assert exposed_headers(styles, already) == said
    # Whoever adds it twice changes nothing.
    assert exposed_headers(styles, said) == said


def test_everything_that_is_sent_is_exposed() -> None:
    limiter = Limiter()
    limiter.check("key", "1/minute")
    refused = answer_of(limiter.check("key", "1/minute"))
    for style in EVERY:
        exposed = exposed_headers([style]).split(", ")
        assert {name for name, _ in headers(refused, [style], 0.0)} <= set(exposed)
