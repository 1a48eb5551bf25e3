"""`/overrides`, `/exemptions`, `/blocks`: small edits of the rules that hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Path, Request

from limen.server.admin import edits, summary
from limen.server.admin.answers import (
    Blocks,
    BlockSaved,
    Exemptions,
    ExemptionSaved,
    Overrides,
    OverrideSaved,
    Saved,
)
from limen.server.admin.desk import Desk, Held
from limen.server.admin.guard import Door, caller_of
from limen.server.admin.questions import ToBlock, ToExempt, ToOverride
from limen.server.exchange import Rejected
from limen.server.openapi import QUERY_OF_ATTRIBUTES

T = TypeVar("T")
Named = Annotated[str, Path(max_length=64)]
_KEY = {"parameters": [{**QUERY_OF_ATTRIBUTES, "required": True}]}


class SpecialCases:
    """Answers what is asked of single keys."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def list_overrides(self, request: Request) -> Overrides:
        """List every override of every rule."""
        return await self._summarized(request, _overrides)

    async def add_override(self, request: Request, name: Named, asked: ToOverride) -> OverrideSaved:
        """Give some keys of a rule other limits, for a time or for good."""
        override = asked.sent("comment")
        _refuse_ended(override)
        stored = await self._desk.edit(
            caller_of(request),
            asked.comment or f"override in {name} for {edits.told(asked.key)}"[:2_000],
            lambda document: edits.with_override(document, name, override),
        )
        return OverrideSaved(
            override=summary.override(name, override, edits.now()), version=summary.saved(stored)
        )

    async def remove_override(self, request: Request, name: Named) -> Saved:
        """Take the overrides for a key from a rule. The query has the key, to the letter."""
        key = _key(request)
        stored = await self._desk.edit(
            caller_of(request),
            f"no override in {name} for {edits.told(key)}"[:2_000],
            lambda document: edits.without_override(document, name, key),
        )
        return summary.saved(stored)

    async def list_exemptions(self, request: Request) -> Exemptions:
        """List every exemption."""
        return await self._summarized(request, _exemptions)

    async def add_exemption(self, request: Request, asked: ToExempt) -> ExemptionSaved:
        """Exempt requests from all rules, or from some. One of the same name that has ended makes
        room."""
        exemption = asked.sent("comment")
        exemption["name"] = asked.name
        _refuse_ended(exemption)
        stored = await self._desk.edit(
            caller_of(request),
            asked.comment or f"exemption {asked.name}",
            lambda document: edits.with_exemption(document, exemption, edits.now()),
        )
        return ExemptionSaved(
            exemption=summary.exemption(exemption, edits.now()), version=summary.saved(stored)
        )

    async def remove_exemption(self, request: Request, name: Named) -> Saved:
        """Take an exemption away."""
        stored = await self._desk.edit(
            caller_of(request),
            f"no exemption {name}",
            lambda document: edits.without_exemption(document, name),
        )
        return summary.saved(stored)

    async def list_blocks(self, request: Request) -> Blocks:
        """List every rule that blocks."""
        return await self._summarized(request, _blocks)

    async def add_block(self, request: Request, asked: ToBlock) -> BlockSaved:
        """Refuse whoever has these attributes, for a time or for good. It is a rule of the mode
        block, before all others. A block of the same name that has ended makes room."""
        block: dict[str, Any] = {
            **edits.block(asked.attributes, asked.name),
            **asked.sent("attributes", "name", "comment"),
        }
        _refuse_ended(block)
        stored = await self._desk.edit(
            caller_of(request),
            asked.comment or f"block {edits.told(asked.attributes)}"[:2_000],
            lambda document: edits.with_block(document, block, edits.now()),
        )
        return BlockSaved(block=summary.block(block, edits.now()), version=summary.saved(stored))

    async def remove_block(self, request: Request, name: Named) -> Saved:
        """Lift a block. Other rules cannot be removed so."""
        stored = await self._desk.edit(
            caller_of(request),
            f"no block {name}",
            lambda document: edits.without_block(document, name),
        )
        return summary.saved(stored)

    async def _summarized(self, request: Request, summarize: Callable[[Held], T]) -> T:
        caller = caller_of(request)
        return await self._desk.compute(caller, summarize, await self._desk.held(caller))


def install(door: Door, desk: Desk) -> None:
    """Add the routes."""
    made = SpecialCases(desk)
    both, gone = (409, 503), (404, 409, 503)
    door.add("viewer", "GET", "/overrides", made.list_overrides, also=(503,))
    rule = "/rules/{name}/overrides"
    door.add("editor", "POST", rule, made.add_override, also=gone, status=201)
    door.add("editor", "DELETE", rule, made.remove_override, also=gone, extra=_KEY)
    door.add("viewer", "GET", "/exemptions", made.list_exemptions, also=(503,))
    door.add("editor", "POST", "/exemptions", made.add_exemption, also=both, status=201)
    door.add("editor", "DELETE", "/exemptions/{name}", made.remove_exemption, also=gone)
    door.add("viewer", "GET", "/blocks", made.list_blocks, also=(503,))
    door.add("editor", "POST", "/blocks", made.add_block, also=both, status=201)
    door.add("editor", "DELETE", "/blocks/{name}", made.remove_block, also=gone)


def _overrides(held: Held) -> Overrides:
    at, overrides = edits.now(), edits.overrides_of(held.document)
    summaries = [summary.override(name, raw, at) for name, raw in overrides]
    return Overrides(version=held.version, overrides=summaries)


def _exemptions(held: Held) -> Exemptions:
    at, exemptions = edits.now(), edits.exemptions_of(held.document)
    summaries = [summary.exemption(raw, at) for raw in exemptions]
    return Exemptions(version=held.version, exemptions=summaries)


def _blocks(held: Held) -> Blocks:
    at, rules = edits.now(), edits.rules_of(held.document)
    summaries = [summary.block(raw, at) for raw in rules if edits.is_block(raw)]
    return Blocks(version=held.version, blocks=summaries)


def _refuse_ended(item: dict[str, Any]) -> None:
    if edits.state_of(item, edits.now()) == "ended":
        raise Rejected(422, "ends: this is over already; give a time in the future")


def _key(request: Request) -> dict[str, str]:
    pairs = request.query_params.multi_items()
    key = dict(pairs)
    if not key or len(key) < len(pairs):
        raise Rejected(
            422, "the query must be the key of the override, such as ?user=42, each once"
        )
    return key
