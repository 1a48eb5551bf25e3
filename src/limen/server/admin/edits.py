"""Small edits of a document of rules: an override, an exemption, a block. Pure, on plain data.

The document is one that was valid. Whether it still is after an edit, whoever saves it finds out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import TypeAdapter

from limen.errors import LimenError, did_you_mean
from limen.model.text import printable
from limen.rules.fields import Moment
from limen.rules.match import ADDRESS, canonical

Document = dict[str, Any]
State = Literal["active", "scheduled", "ended"]

_MOMENT: TypeAdapter[datetime | None] = TypeAdapter(Moment | None)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME = 64


class NotFound(LimenError):
    """Say that there is no such thing to look at, or to change."""


class AlreadyExists(LimenError):
    """Say that there is such a thing already."""


def rules_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rules of a document, as they are written."""
    found: list[dict[str, Any]] = document.get("rules") or []
    return found


def exemptions_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the exemptions of a document, as they are written."""
    found: list[dict[str, Any]] = document.get("exemptions") or []
    return found


def rule_of(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return one rule as it is written. Raises `NotFound`."""
    return _named(rules_of(document), name, "rule")


def state_of(item: Mapping[str, Any], now: datetime) -> State:
    """Say whether a rule, an override or an exemption holds now, will, or did."""
    starts, ends = (_MOMENT.validate_python(item.get(name)) for name in ("starts", "ends"))
    if starts is not None and now < starts:
        return "scheduled"
    return "ended" if ends is not None and ends <= now else "active"


def overrides_of(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every override with the name of its rule."""
    for rule in rules_of(document):
        for override in rule.get("overrides") or []:
            yield str(rule["name"]), override


def with_override(document: Document, rule: str, override: dict[str, Any]) -> None:
    """Add an override to a rule; it takes the place of those for the same key."""
    found = rule_of(document, rule)
    key = _plain_key(override["key"])
    others = [each for each in found.get("overrides") or [] if _plain_key(each["key"]) != key]
    found["overrides"] = [*others, override]


def without_override(document: Document, rule: str, key: Mapping[str, Any]) -> None:
    """Take the overrides for a key from a rule. Raises `NotFound` when there are none."""
    found = rule_of(document, rule)
    overrides, gone = found.get("overrides") or [], _plain_key(key)
    others = [each for each in overrides if _plain_key(each["key"]) != gone]
    if len(others) == len(overrides):
        raise NotFound(f"the rule {rule!r} has no override for {format_attributes(key)}")
    found["overrides"] = others
    if not others:
        del found["overrides"]


def with_exemption(document: Document, exemption: dict[str, Any], now: datetime) -> None:
    """Add an exemption. Raises `AlreadyExists` when one of this name holds, or will."""
    document["exemptions"] = [
        *_room(exemptions_of(document), exemption["name"], "an exemption", now),
        exemption,
    ]


def without_exemption(document: Document, name: str) -> None:
    """Take an exemption away. Raises `NotFound`."""
    exemptions = exemptions_of(document)
    gone = _named(exemptions, name, "exemption")
    document["exemptions"] = [each for each in exemptions if each is not gone]
    if not document["exemptions"]:
        del document["exemptions"]


def is_block(rule: Mapping[str, Any]) -> bool:
    """Return whether a rule refuses whoever matches."""
    return rule.get("mode") == "block"


def block(attributes: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    """Return a rule that blocks whoever has these attributes, exactly."""
    match = {
        attribute: value if attribute == ADDRESS else _text(value).replace("*", r"\*")
        for attribute, value in attributes.items()
    }
    return {"name": name or block_name(attributes), "match": match, "mode": "block"}


def block_name(attributes: Mapping[str, Any]) -> str:
    """Return what a block is called: `block-user-42`. Never the same for different attributes."""
    written = "-".join(["block", *(f"{key}-{_text(value)}" for key, value in attributes.items())])
    name = _NOT_IN_NAMES.sub("-", written)
    if name == written and len(name) <= _MAX_NAME and len(attributes) == 1:
        return name
    mark = hashlib.sha256(repr(sorted(_plain_key(attributes).items())).encode()).hexdigest()[:8]
    return f"{name[: _MAX_NAME - 9]}-{mark}"


def with_block(document: Document, blocked: dict[str, Any], now: datetime) -> None:
    """Put a block before all rules. Raises `AlreadyExists` when another rule has its name.

    A block of that name that has ended makes room.
    """
    rules, name = rules_of(document), blocked["name"]
    others = [
        each
        for each in rules
        if str(each["name"]) != name or not is_block(each) or state_of(each, now) != "ended"
    ]
    if any(str(each["name"]) == name for each in others):
        raise AlreadyExists(
            f"there is a rule {name!r} already; delete it, or give the block another name"
        )
    document["rules"] = [blocked, *others]


def without_block(document: Document, name: str) -> None:
    """Take a block away. Raises `NotFound` when there is none of this name."""
    rules = rules_of(document)
    gone = _named([each for each in rules if is_block(each)], name, "block")
    document["rules"] = [each for each in rules if each is not gone]


def format_attributes(attributes: Mapping[str, Any]) -> str:
    """Write attributes for people: `user=42, path=/search`."""
    written = ", ".join(f"{name}={_text(value)}" for name, value in attributes.items())
    # It goes into comments and the audit, which keep no NUL and are shown on terminals.
    return printable(written)


def now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


def _named(items: list[dict[str, Any]], name: str, what: str) -> dict[str, Any]:
    for item in items:
        if str(item["name"]) == name:
            return item
    hint = did_you_mean(name, [str(item["name"]) for item in items])
    raise NotFound(f"there is no {what} {name[:100]!r}{hint}")


def _room(items: list[dict[str, Any]], name: str, what: str, now: datetime) -> list[dict[str, Any]]:
    """Return the items without one of this name that has ended.

    Raises `AlreadyExists` if one has not.
    """
    same = [each for each in items if str(each["name"]) == name]
    if any(state_of(each, now) != "ended" for each in same):
        raise AlreadyExists(f"there is {what} {name!r} already; delete it, or choose another name")
    return [each for each in items if each not in same]


def _plain_key(key: Mapping[str, Any]) -> dict[str, str]:
    """Return a key as requests are compared with it: in one spelling, whatever was written."""
    texts = {str(name): _text(value) for name, value in key.items()}
    return {name: canonical(text) if name == ADDRESS else text for name, text in texts.items()}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
