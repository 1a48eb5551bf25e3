"""`/overrides`, `/exemptions`, `/blocks`: small edits of the active rules."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import Path, Request

from limen.server.admin import edits
from limen.server.admin.authorization import AdminRoute
from limen.server.admin.openapi import QUERY_OF_ATTRIBUTES
from limen.server.admin.requests import BlockRequest, ExemptionRequest, OverrideRequest
from limen.server.admin.responses import (
    Blocks,
    BlockSaved,
    BlockView,
    Exemptions,
    ExemptionSaved,
    ExemptionView,
    Overrides,
    OverrideSaved,
    OverrideView,
    SavedVersion,
)
from limen.server.admin.rule_service import ActiveDocument, ForCaller
from limen.server.http.exchange import Rejected

Named = Annotated[str, Path(max_length=64)]
_OVERRIDES = "/rules/{name}/overrides"
_CHANGE, _CHANGE_OF = (409, 503), (404, 409, 503)
"""The errors of a change, and of a change of something that may not exist."""
_KEY = {"parameters": [{**QUERY_OF_ATTRIBUTES, "required": True}]}


async def list_overrides(rules: ForCaller) -> Overrides:
    """List all overrides of all rules."""
    return await rules.compute(_overrides, await rules.active())


async def add_override(
    rules: ForCaller, request: Request, name: Named, asked: OverrideRequest
) -> OverrideSaved:
    """Give some keys of a rule other limits, for a time or for good."""
    override = await _sent(request, "comment")
    version = await rules.edit(
        asked.comment or f"override in {name} for {edits.format_attributes(asked.key)}",
        lambda document: edits.with_override(document, name, override),
    )
    return OverrideSaved(_view_override(name, override, edits.now()), version)


async def remove_override(rules: ForCaller, request: Request, name: Named) -> SavedVersion:
    """Remove the overrides for a key from a rule. The query has the key, to the letter."""
    key = _key(request)
    return await rules.edit(
        f"no override in {name} for {edits.format_attributes(key)}",
        lambda document: edits.without_override(document, name, key),
    )


async def list_exemptions(rules: ForCaller) -> Exemptions:
    """List all exemptions."""
    return await rules.compute(_exemptions, await rules.active())


async def add_exemption(
    rules: ForCaller, request: Request, asked: ExemptionRequest
) -> ExemptionSaved:
    """Exempt requests from all rules, or from some. One of the same name that has ended is
    replaced."""
    exemption = {**await _sent(request, "comment"), "name": asked.name}
    version = await rules.edit(
        asked.comment or f"exemption {asked.name}",
        lambda document: edits.with_exemption(document, exemption, edits.now()),
    )
    return ExemptionSaved(_view_exemption(exemption, edits.now()), version)


async def remove_exemption(rules: ForCaller, name: Named) -> SavedVersion:
    """Remove an exemption."""
    return await rules.edit(
        f"no exemption {name}", lambda document: edits.without_exemption(document, name)
    )


async def list_blocks(rules: ForCaller) -> Blocks:
    """List all rules that block."""
    return await rules.compute(_blocks, await rules.active())


async def add_block(rules: ForCaller, request: Request, asked: BlockRequest) -> BlockSaved:
    """Refuse all requests with these attributes, for a time or for good. It is a rule of the mode
    block, before all others. A block of the same name that has ended is replaced."""
    block: dict[str, Any] = {
        **edits.block(asked.attributes, asked.name),
        **await _sent(request, "attributes", "name", "comment"),
    }
    version = await rules.edit(
        asked.comment or f"block {edits.format_attributes(asked.attributes)}",
        lambda document: edits.with_block(document, block, edits.now()),
    )
    return BlockSaved(_view_block(block, edits.now()), version)


async def remove_block(rules: ForCaller, name: Named) -> SavedVersion:
    """Remove a block. Other rules cannot be removed so."""
    return await rules.edit(
        f"no block {name}", lambda document: edits.without_block(document, name)
    )


def _overrides(active: ActiveDocument) -> Overrides:
    now, overrides = edits.now(), edits.overrides_of(active.document)
    return Overrides(active.version, [_view_override(name, raw, now) for name, raw in overrides])


def _exemptions(active: ActiveDocument) -> Exemptions:
    now, exemptions = edits.now(), edits.exemptions_of(active.document)
    return Exemptions(active.version, [_view_exemption(raw, now) for raw in exemptions])


def _blocks(active: ActiveDocument) -> Blocks:
    now, blocks = edits.now(), filter(edits.is_block, edits.rules_of(active.document))
    return Blocks(active.version, [_view_block(raw, now) for raw in blocks])


def _view_override(name: str, raw: Mapping[str, Any], now: datetime) -> OverrideView:
    """Return an override of a rule."""
    return OverrideView(rule=name, key=raw["key"], limits=raw["limits"], **_timed(raw, now))


def _view_exemption(raw: Mapping[str, Any], now: datetime) -> ExemptionView:
    """Return an exemption."""
    rules = raw.get("rules")
    return ExemptionView(
        name=str(raw["name"]),
        match=raw["match"],
        rules=None if rules is None else [str(each) for each in rules],
        **_timed(raw, now),
    )


def _view_block(raw: Mapping[str, Any], now: datetime) -> BlockView:
    """Return a rule that blocks."""
    return BlockView(name=str(raw["name"]), match=raw.get("match") or {}, **_timed(raw, now))


def _timed(raw: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    return {
        "description": raw.get("description") or "",
        "starts": raw.get("starts"),
        "ends": raw.get("ends"),
        "state": edits.state_of(raw, now),
    }


async def _sent(request: Request, *without: str) -> dict[str, Any]:
    """Return the fields of a body as they were sent, since rules keep the words of their author.

    Fields that are null are left out. Raises `Rejected` if the item has ended.
    """
    sent = (await request.json()).items()
    fields = {name: value for name, value in sent if value is not None and name not in without}
    if edits.state_of(fields, edits.now()) == "ended":
        raise Rejected(422, "ends: this is over already; give a time in the future")
    return fields


def _key(request: Request) -> dict[str, str]:
    pairs = request.query_params.multi_items()
    key = dict(pairs)
    if not key or len(key) < len(pairs):
        raise Rejected(
            422, "the query must be the key of the override, such as ?user=42, each once"
        )
    return key


ROUTES = (
    AdminRoute("viewer", "GET", "/overrides", list_overrides, also=(503,)),
    AdminRoute("editor", "POST", _OVERRIDES, add_override, also=_CHANGE_OF, status=201),
    AdminRoute("editor", "DELETE", _OVERRIDES, remove_override, also=_CHANGE_OF, extra=_KEY),
    AdminRoute("viewer", "GET", "/exemptions", list_exemptions, also=(503,)),
    AdminRoute("editor", "POST", "/exemptions", add_exemption, also=_CHANGE, status=201),
    AdminRoute("editor", "DELETE", "/exemptions/{name}", remove_exemption, also=_CHANGE_OF),
    AdminRoute("viewer", "GET", "/blocks", list_blocks, also=(503,)),
    AdminRoute("editor", "POST", "/blocks", add_block, also=_CHANGE, status=201),
    AdminRoute("editor", "DELETE", "/blocks/{name}", remove_block, also=_CHANGE_OF),
)
