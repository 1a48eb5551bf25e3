"""`/insight`, `/decisions`, `/alerts`: the recent decisions of all processes.

Nothing here is charged or changed. Keys are redacted if the settings say so, in queries too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import BeforeValidator, Field, StringConstraints

from limen.errors import StoreError, did_you_mean, shown
from limen.observe.board import MAX_SEEN
from limen.observe.hiding import is_hidden
from limen.observe.recent import DecisionRecord, decode, found
from limen.observe.view import MAX_WINDOW_S, Picture, Run
from limen.server.admin.authorization import AdminRoute
from limen.server.admin.edits import NotFound
from limen.server.admin.insight_responses import (
    Alerts,
    Decisions,
    InsightWindow,
    RetentionPolicy,
    RuleWindow,
    insight_of,
    rule_window_of,
)
from limen.server.admin.requests import PageSize, whole_number
from limen.server.admin.rule_service import ForCaller, RuleService
from limen.server.insight.insight import Insight
from limen.server.settings import Settings

MAX_TEXT = 4_096
_REFUSED = "up to 100 a second, 3 of one key"


Window = Annotated[
    int,
    BeforeValidator(whole_number),
    Field(ge=10, le=MAX_WINDOW_S),
    Query(description="Of how many seconds, up to now."),
]
Sought = Annotated[str, StringConstraints(max_length=MAX_TEXT)]
YesOrNo = Literal["true", "false"]
KeyFilter = Annotated[Sought | None, Query(description="Only decisions of this key.")]
RuleFilter = Annotated[Sought | None, Query(description="Only of this rule.")]
AllowedFilter = Annotated[
    YesOrNo | None, Query(description="Only decisions that were allowed, or were not.")
]


async def get_insight(
    rules: ForCaller, window: Window = 60, limit: PageSize = 100
) -> InsightWindow:
    """Return the recent decisions of all processes. Without Redis, of the one that answers."""
    picture, now = await _picture(rules, window)
    return await rules.compute(insight_of, picture, window, limit, now)


async def get_rule_insight(
    rules: ForCaller, name: Annotated[str, Path(max_length=256)], window: Window = 60
) -> RuleWindow:
    """Return the recent decisions of one rule."""
    picture, now = await _picture(rules, window)
    if name not in picture.whole.rules:
        await rules.compute(_check_name, rules, name, picture)
    return await rules.compute(rule_window_of, picture, name, window, now)


async def list_decisions(
    rules: ForCaller,
    key: KeyFilter = None,
    id: Annotated[Sought | None, Query(description="Only of the request of this id.")] = None,
    rule: RuleFilter = None,
    allowed: AllowedFilter = None,
    limit: PageSize = 50,
) -> Decisions:
    """List recent decisions, the newest first. Not all of them are kept: see `kept`."""
    insight = rules.service.insight
    is_any = key is None and id is None and rule is None and allowed is None
    seen, is_shared = await lately(insight, limit if is_any else MAX_SEEN, rules.compute)
    hidden = None if key is None else hidden_as(insight, key)
    fitting = await rules.compute(found, seen, hidden, id, rule, parse_flag(allowed), limit)
    return Decisions(is_shared, _retention(rules.service.settings), fitting)


async def list_alerts(rules: ForCaller) -> Alerts:
    """List present and past alerts."""
    insight = rules.service.insight
    return Alerts(
        shared=insight.view.is_shared,
        open=insight.alerts.open,
        ended=insight.alerts.ended,
        more=insight.alerts.more,
        thresholds=insight.alerts.thresholds,
    )


async def lately(
    insight: Insight, most: int, run: Run = asyncio.to_thread
) -> tuple[list[DecisionRecord], bool]:
    """Return recent decisions in no order, and whether they are of all processes.

    Those of this process, which the others may not know yet, and up to `most` of what is shared.
    `run` calls a function in a thread.
    """
    own = insight.watch.recent.newest(most)
    if insight.board is None or not insight.view.is_shared:
        return own, False
    try:
        shared = await insight.board.seen(most)
    except StoreError as error:
        insight.view.rest(error)
        return own, False
    return await run(_joined, own, shared), True


def _joined(own: Sequence[DecisionRecord], shared: Sequence[bytes]) -> list[DecisionRecord]:
    """Return each decision once: what this process shared may have been cut on the way."""
    read = [one for one in map(decode, shared) if one is not None]
    return list({identity(one): one for one in (*read, *own)}.values())


def identity(seen: DecisionRecord) -> tuple[str, float]:
    """Return the identity of a decision: a process makes no two at the same time."""
    return seen.instance, seen.at


def hidden_as(insight: Insight, key: str) -> str:
    """Return a key as it is kept; one that was copied from a response is redacted already."""
    return key if is_hidden(key) else insight.hide(key)


def parse_flag(word: YesOrNo | None) -> bool | None:
    """Return the meaning of a flag in a query."""
    return None if word is None else word == "true"


async def _picture(rules: RuleService, window: int) -> tuple[Picture, float]:
    now = time.time()
    return await rules.service.insight.view.picture(window, now, rules.compute), now


def _check_name(rules: RuleService, name: str, picture: Picture) -> None:
    known = [rule.name for rule in rules.service.engine.rules.rules]
    if name not in known:
        hint = did_you_mean(name, [*known, *picture.whole.rules])
        raise NotFound(f"there is no rule {shown(name)}{hint}")


def _retention(settings: Settings) -> RetentionPolicy:
    if not settings.insight.enabled:
        return RetentionPolicy("none, because insight is turned off", 0.0)
    return RetentionPolicy(_REFUSED, settings.insight.sample)


ROUTES = (
    AdminRoute("viewer", "GET", "/insight", get_insight),
    AdminRoute("viewer", "GET", "/insight/rules/{name}", get_rule_insight, also=(404,)),
    AdminRoute("viewer", "GET", "/decisions", list_decisions),
    AdminRoute("viewer", "GET", "/alerts", list_alerts),
)
