"""`/insight`, `/decisions`, `/alerts`: what is decided by all processes, for whom, and why.

Nothing here is charged or changed. Keys are shown as the settings say, and sought in the same way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Path, Query, Request
from msgspec import structs
from pydantic import BeforeValidator, Field, StringConstraints

from limen.errors import StoreError, did_you_mean, shown
from limen.observe.alerts import Alert
from limen.observe.board import MAX_SEEN
from limen.observe.hiding import is_hidden
from limen.observe.recent import Seen, decode, found
from limen.observe.view import MAX_WINDOW_S, Picture, Run
from limen.server.admin.desk import Desk
from limen.server.admin.edits import Missing
from limen.server.admin.guard import Door, caller_of
from limen.server.admin.insight_answers import (
    AlertOf,
    Alerts,
    DecisionOf,
    Decisions,
    InsightOf,
    Kept,
    RuleInsightOf,
    ThresholdsOf,
    insight_of,
    rule_insight_of,
)
from limen.server.admin.kinds import PageSize
from limen.server.insight.insight import Insight
from limen.server.service import Service
from limen.server.settings import Settings

MAX_TEXT = 4_096
_REFUSED = "up to 100 a second, 3 of one key"


def _digits(value: Any) -> Any:
    if isinstance(value, str) and not (value.isascii() and value.isdigit() and len(value) < 5):
        raise ValueError("expected a whole number of seconds")
    return int(value)


Window = Annotated[
    int,
    BeforeValidator(_digits),
    Field(ge=10, le=MAX_WINDOW_S),
    Query(description="Of how many seconds, up to now."),
]
Sought = Annotated[str, StringConstraints(max_length=MAX_TEXT)]
YesOrNo = Literal["true", "false"]


class Insights:
    """Answers what is asked of decisions."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._service: Service = desk.service

    async def get_insight(
        self,
        request: Request,
        window: Window = 60,
        limit: Annotated[PageSize, Query(description="Of how many rules at most.")] = 100,
    ) -> InsightOf:
        """Say what was decided lately, by all processes, and for whom. Without Redis, by the one
        that answers."""
        run = self._run_for(request)
        picture, now = await self._picture(window, run)
        insight: InsightOf = await run(insight_of, picture, window, limit, now)
        return insight

    async def get_rule_insight(
        self, request: Request, name: Annotated[str, Path(max_length=256)], window: Window = 60
    ) -> RuleInsightOf:
        """Say what one rule decided lately, and for whom."""
        run = self._run_for(request)
        picture, now = await self._picture(window, run)
        if name not in picture.whole.rules:
            await run(self._check_name, name, picture)
        insight: RuleInsightOf = await run(rule_insight_of, picture, name, window, now)
        return insight

    async def list_decisions(
        self,
        request: Request,
        key: Annotated[Sought | None, Query(description="Only of this key.")] = None,
        id: Annotated[Sought | None, Query(description="Only of the request of this id.")] = None,
        rule: Annotated[Sought | None, Query(description="Only of this rule.")] = None,
        allowed: Annotated[
            YesOrNo | None, Query(description="Only those that were, or were not.")
        ] = None,
        limit: Annotated[PageSize, Query(description="How many.")] = 50,
    ) -> Decisions:
        """List decisions of late, the newest first. Not all of them are kept: `kept` says which."""
        insight = self._service.insight
        is_any = key is None and id is None and rule is None and allowed is None
        run = self._run_for(request)
        seen, is_shared = await lately(insight, limit if is_any else MAX_SEEN, run)
        hidden = None if key is None else hidden_as(insight, key)
        fitting = await run(found, seen, hidden, id, rule, said(allowed), limit)
        return Decisions(
            shared=is_shared,
            kept=_kept(self._service.settings),
            decisions=[DecisionOf(**structs.asdict(one)) for one in fitting],
        )

    async def list_alerts(self) -> Alerts:
        """List what is above its threshold, and what was."""
        insight, alerts = self._service.insight, self._service.settings.alerts
        judge = insight.alerts
        return Alerts(
            shared=insight.view.is_shared,
            open=[alert_of(alert) for alert in judge.open],
            ended=[alert_of(alert) for alert in judge.ended],
            more=judge.more,
            thresholds=ThresholdsOf(
                refusal_share=alerts.refusal_share,
                fallback_share=alerts.fallback_share,
                key_share=alerts.key_share,
                store_latency=alerts.store_latency,
                least=alerts.least,
            ),
        )

    def _run_for(self, request: Request) -> Run:
        return partial(self._desk.compute, caller_of(request))

    async def _picture(self, window: int, run: Run) -> tuple[Picture, float]:
        now = time.time()
        return await self._service.insight.view.picture(window, now, run), now

    def _check_name(self, name: str, picture: Picture) -> None:
        known = [rule.name for rule in self._service.engine.rules.rules]
        if name not in known:
            hint = did_you_mean(name, [*known, *picture.whole.rules])
            raise Missing(f"there is no rule {shown(name)}{hint}")


def install(door: Door, desk: Desk) -> None:
    """Add the routes."""
    insights = Insights(desk)
    door.add("viewer", "GET", "/insight", insights.get_insight)
    door.add("viewer", "GET", "/insight/rules/{name}", insights.get_rule_insight, also=(404,))
    door.add("viewer", "GET", "/decisions", insights.list_decisions)
    door.add("viewer", "GET", "/alerts", insights.list_alerts)


async def lately(
    insight: Insight, most: int, run: Run = asyncio.to_thread
) -> tuple[list[Seen], bool]:
    """Return decisions of late in no order, and whether they are of all processes.

    Those of this process, which the others may not know yet, and up to `most` of what is shared.
    `run` calls a function in a thread.
    """
    own = insight.watch.recent.find(most=most)
    if insight.board is None or not insight.view.is_shared:
        return own, False
    try:
        told = await insight.board.seen(most)
    except StoreError as error:
        insight.view.rest(error)
        return own, False
    return await run(_joined, own, told), True


def _joined(own: Sequence[Seen], told: Sequence[bytes]) -> list[Seen]:
    """Return each decision once: what this process told of may have been cut on the way."""
    read = [one for one in map(decode, told) if one is not None]
    return list({which(one): one for one in (*read, *own)}.values())


def which(seen: Seen) -> tuple[str, float]:
    """Return what tells a decision from all others: nobody makes two at once."""
    return seen.instance, seen.at


def hidden_as(insight: Insight, key: str) -> str:
    """Return a key as it is kept; one that was copied from an answer is so already."""
    return key if is_hidden(key) else insight.hide(key)


def said(word: YesOrNo | None) -> bool | None:
    """Return what a word in an address means."""
    return None if word is None else word == "true"


def alert_of(alert: Alert) -> AlertOf:
    """Return an alert as it is told."""
    return AlertOf(**{**structs.asdict(alert), "top": list(alert.top)})


def _kept(settings: Settings) -> Kept:
    kept = settings.insight
    if not kept.enabled:
        return Kept(refused="none, because insight is turned off", allowed_share=0.0)
    return Kept(refused=_REFUSED, allowed_share=kept.sample)
