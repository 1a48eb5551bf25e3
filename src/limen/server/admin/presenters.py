"""Summaries of rules and versions for responses. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from limen.server.admin.edits import state_of
from limen.server.admin.responses import (
    BlockView,
    ExemptionView,
    OverrideView,
    RuleSummary,
)

T = TypeVar("T")


def summarize_rule(raw: Mapping[str, Any], now: datetime) -> RuleSummary:
    """Return a summary of a rule."""
    key = raw.get("key") or []
    return RuleSummary(
        name=str(raw["name"]),
        description=raw.get("description") or "",
        mode=raw.get("mode") or "enforce",
        enforce_percent=float(raw.get("enforce_percent", 100)),
        match=raw.get("match") or {},
        key=[key] if isinstance(key, str) else key,
        limits=_limits(raw),
        overrides=len(raw.get("overrides") or []),
        state=state_of(raw, now),
    )


def view(value: object, kind: type[T]) -> T:
    """Return a message, or a list of them, with the fields of a value that has more."""
    return msgspec.convert(value, kind, from_attributes=True)


def view_override(name: str, raw: Mapping[str, Any], now: datetime) -> OverrideView:
    """Return an override of a rule."""
    return OverrideView(rule=name, key=raw["key"], limits=raw["limits"], **_timed(raw, now))


def view_exemption(raw: Mapping[str, Any], now: datetime) -> ExemptionView:
    """Return an exemption."""
    rules = raw.get("rules")
    return ExemptionView(
        name=str(raw["name"]),
        match=raw["match"],
        rules=None if rules is None else [str(each) for each in rules],
        **_timed(raw, now),
    )


def view_block(raw: Mapping[str, Any], now: datetime) -> BlockView:
    """Return a rule that blocks."""
    return BlockView(name=str(raw["name"]), match=raw.get("match") or {}, **_timed(raw, now))


def _timed(raw: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    return {
        "description": raw.get("description") or "",
        "starts": raw.get("starts"),
        "ends": raw.get("ends"),
        "state": state_of(raw, now),
    }


def _limits(raw: Mapping[str, Any]) -> list[str]:
    """Return all that a rule allows: `100/minute`, `pro: 600/minute`, `2 variants`."""
    words = _texts(raw.get("limits"))
    concurrency = raw.get("concurrency")
    if concurrency is not None:
        words.append(f"{concurrency['slots']} at once, lease {concurrency['lease']}")
    tiers = raw.get("tiers") or {}
    for tier, limits in (tiers.get("limits") or {}).items():
        words.append(f"{tier}: {', '.join(_texts(limits))}")
    if tiers.get("default") is not None:
        words.append(f"other: {', '.join(_texts(tiers['default']))}")
    variants = len(raw.get("variants") or [])
    if variants:
        words.append(f"{variants} variant{'' if variants == 1 else 's'}")
    return words


def _texts(limits: Any) -> list[str]:
    if limits is None:
        return []
    return [str(each) for each in limits] if isinstance(limits, list) else [str(limits)]
