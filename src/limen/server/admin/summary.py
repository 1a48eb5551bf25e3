"""Rules and versions in a few words: from what is written to what is answered. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import structs

from limen.rules import diff
from limen.rules.stores.records import StoredRuleSet
from limen.server.admin.answers import (
    BlockOf,
    ChangeMade,
    ExemptionOf,
    OverrideOf,
    RuleSummary,
    Saved,
    VersionSummary,
    WholeVersion,
)
from limen.server.admin.edits import state_of


def rule(raw: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the fields of a rule's summary."""
    key = raw.get("key") or []
    return {
        "name": str(raw["name"]),
        "description": raw.get("description") or "",
        "mode": raw.get("mode") or "enforce",
        "enforce_percent": float(raw.get("enforce_percent", 100)),
        "match": raw.get("match") or {},
        "key": [key] if isinstance(key, str) else key,
        "limits": _limits(raw),
        "overrides": len(raw.get("overrides") or []),
        "state": state_of(raw, now),
    }


def rule_summary(raw: Mapping[str, Any], now: datetime) -> RuleSummary:
    """Return a rule in a few words."""
    return RuleSummary(**rule(raw, now))


def version(stored: StoredRuleSet) -> VersionSummary:
    """Return a version without its rules."""
    return VersionSummary(**_version(stored))


def saved(stored: StoredRuleSet) -> Saved:
    """Return a version with what is different from its parent."""
    return Saved(**_version(stored), changes=changes(stored.changes))


def whole(stored: StoredRuleSet) -> WholeVersion:
    """Return a version with its rules."""
    document = stored.document or {}
    return WholeVersion(**_version(stored), changes=changes(stored.changes), document=document)


def changes(found: list[diff.Change]) -> list[ChangeMade]:
    """Return changes as they are answered."""
    return [ChangeMade(**structs.asdict(each)) for each in found]


def override(name: str, raw: Mapping[str, Any], now: datetime) -> OverrideOf:
    """Return an override of a rule."""
    return OverrideOf(rule=name, key=raw["key"], limits=raw["limits"], **_common(raw, now))


def exemption(raw: Mapping[str, Any], now: datetime) -> ExemptionOf:
    """Return an exemption."""
    rules = raw.get("rules")
    return ExemptionOf(
        name=str(raw["name"]),
        match=raw["match"],
        rules=None if rules is None else [str(each) for each in rules],
        **_common(raw, now),
    )


def block(raw: Mapping[str, Any], now: datetime) -> BlockOf:
    """Return a rule that blocks."""
    return BlockOf(name=str(raw["name"]), match=raw.get("match") or {}, **_common(raw, now))


def _common(raw: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    return {
        "description": raw.get("description") or "",
        "starts": raw.get("starts"),
        "ends": raw.get("ends"),
        "state": state_of(raw, now),
    }


def _version(stored: StoredRuleSet) -> dict[str, Any]:
    return {
        "version": stored.version,
        "parent": stored.parent,
        "author": stored.author,
        "comment": stored.comment,
        "created_at": stored.created_at,
        "digest": stored.digest,
        "active": stored.active,
        "summary": diff.summary(stored.changes),
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
