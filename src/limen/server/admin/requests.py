"""The parameters and bodies of requests to the administration.

Fields of a rule set have the same names here.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from fastapi import Query
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)

from limen.model import MAX_COST
from limen.rules.fields import Attribute, Moment, Name, Prose, Text
from limen.rules.spec import ExemptionSpec, OverrideSpec
from limen.rules.stores.records import MAX_COMMENT, MAX_VERSION
from limen.rules.stores.tokens import Role
from limen.rules.sync.switch import MAX_RULES
from limen.server.admin.openapi import REFERENCE
from limen.wire import MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE

_MAX_DIGITS = 10
_MAX_FACTS = 16_384


class Model(BaseModel):
    """A body with these fields and no others, each of exactly this type."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


def whole_number(value: Any) -> Any:
    """Read digits, and nothing else that Python takes for a number, such as `1_0`."""
    if not isinstance(value, str):
        return value
    if not value.isascii() or not value.isdigit() or len(value) > _MAX_DIGITS:
        raise ValueError("expected a whole number")
    return int(value)


def _few(value: Any) -> Any:
    """Refuse more attributes than a request can have, before each of them is validated."""
    if isinstance(value, dict) and len(value) > MAX_ATTRIBUTES:
        raise ValueError(f"expected at most {MAX_ATTRIBUTES} attributes, got {len(value):,}")
    return value


Version = Annotated[int, BeforeValidator(whole_number), Field(ge=1, le=MAX_VERSION)]
"""The number of a version, in an address."""
VersionOrNone = Annotated[int, BeforeValidator(whole_number), Field(ge=0, le=MAX_VERSION)]
"""The number of a version, or 0 for none, in an address."""
Before = Annotated[
    VersionOrNone | None, Query(description="Only those before this one, for the next page.")
]
PageSize = Annotated[
    int,
    BeforeValidator(whole_number),
    Field(ge=1, le=1_000),
    Query(description="How many at most."),
]
Comment = Annotated[str, Field(strict=True, max_length=MAX_COMMENT)]
Document = Annotated[dict[str, Any], WithJsonSchema({REFERENCE: "RuleSet"})]


def _not_too_long(facts: dict[str, str]) -> dict[str, str]:
    """Bound the answer, which repeats values for every limit."""
    length = sum(len(name) + len(value) for name, value in facts.items())
    if length > _MAX_FACTS:
        raise ValueError(f"expected at most {_MAX_FACTS:,} characters in all, got {length:,}")
    return facts


Facts = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)],
        Annotated[str, StringConstraints(max_length=MAX_VALUE)],
    ],
    BeforeValidator(_few),
    Field(max_length=MAX_ATTRIBUTES),
    AfterValidator(_not_too_long),
]
"""What is known of a request, as `/v1/check` takes it, and not longer than headers may be."""
TokenId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}$")]
RuleName = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class ValidateRequest(
    Model,
    json_schema_extra={
        "examples": [{"text": "rules: [{name: api, key: user, limits: 100/minute}]"}]
    },
):
    """Rules to validate: as data, or as text."""

    document: Any = None
    text: str | None = None
    """YAML, or JSON: problems name its lines."""
    want: Literal["document", "text"] | None = None
    """An addition to the response: the rules as data, or as YAML."""
    json_: Annotated[bool, Field(alias="json")] = False
    """Whether the text is JSON."""


class SaveRequest(
    Model,
    json_schema_extra={
        "examples": [
            {
                "document": {"rules": [{"name": "api", "key": "user", "limits": "100/minute"}]},
                "base": 1,
                "comment": "a start",
            }
        ]
    },
):
    """A whole rule set to save."""

    document: Document
    base: Annotated[int, Field(ge=0, le=MAX_VERSION)]
    """The newest version when the edit began; 0 for none. If another is by now: 409."""
    comment: Comment = ""
    activate: bool = True
    """Whether to activate them; otherwise they are a draft."""


class ActivateRequest(Model):
    """The activation of a version."""

    expected: Annotated[int, Field(ge=0, le=MAX_VERSION)] | None = None
    """The version that is active, as far as you know; 0 for none. If another is: 409."""
    comment: Comment = ""


class RollbackRequest(Model):
    """The return to an old version."""

    base: Annotated[int, Field(ge=0, le=MAX_VERSION)] | None = None
    """The newest version, as far as you know. If another is: 409."""
    comment: Comment = ""


class OverrideRequest(
    OverrideSpec,
    json_schema_extra={
        "examples": [{"key": {"user": "42"}, "limits": "5000/hour", "ends": "2099-12-24T18:00Z"}]
    },
):
    """Other limits for some keys of a rule. They take the place of those for the same key."""

    comment: Comment = ""
    """Why the rules change, for the history."""


class ExemptionRequest(
    ExemptionSpec,
    json_schema_extra={"examples": [{"name": "office", "match": {"ip": "192.0.2.0/24"}}]},
):
    """Requests that rules shall not apply to."""

    comment: Comment = ""
    """Why the rules change, for the history."""


class BlockRequest(
    BaseModel,
    extra="forbid",
    frozen=True,
    use_attribute_docstrings=True,
    json_schema_extra={"examples": [{"attributes": {"user": "42"}, "ends": "2099-12-24T18:00Z"}]},
):
    """Whom to refuse, whatever else is allowed."""

    attributes: Annotated[
        dict[Attribute, Text],
        Field(min_length=1, json_schema_extra={"additionalProperties": False}),
    ]
    """Who: all of these have to be so, to the letter. For `ip`, also a network."""
    name: Name | None = None
    """What verdicts call it. Without one: `block-user-42`."""
    description: Prose = ""
    """Why, for whoever reads the rules later."""
    starts: Moment | None = None
    """From when on; without it, at once."""
    ends: Moment | None = None
    """Until when, not included; without it, for ever."""
    comment: Comment = ""
    """Why the rules change, for the history."""


class ExplainRequest(
    Model, json_schema_extra={"examples": [{"attributes": {"user": "42", "path": "/search"}}]}
):
    """A request to explain."""

    attributes: Facts
    cost: Annotated[int, Field(ge=0, le=MAX_COST)] = 1
    document: Any = None
    """Rules to explain it by, instead of those in force: a draft. Null for those in force."""
    rule: RuleName | None = None
    """A rule that is in the answer in any case, though others may be left out."""


class InspectRequest(Model, json_schema_extra={"examples": [{"attributes": {"user": "42"}}]}):
    """A key whose counters to inspect."""

    attributes: Facts


class ResetRequest(
    Model, json_schema_extra={"examples": [{"attributes": {"user": "42"}, "rule": "per-user"}]}
):
    """A key whose counters to reset."""

    attributes: Facts
    rule: RuleName | None = None
    """Only under this rule; without it, under every rule that the request meets."""
    comment: Comment = ""


class CreateTokenRequest(
    Model, json_schema_extra={"examples": [{"role": "check", "name": "checkout service"}]}
):
    """A token to create."""

    role: Role
    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    """Its purpose: the audit shows it as the author."""
    expires_at: Moment | None = None
    """From when on it does not hold any more; null is never."""


class KillSwitchRequest(Model, json_schema_extra={"examples": [{"on": True, "rules": []}]}):
    """The new state of the kill switch."""

    on: bool
    # `find_wrong_name` checks the number, with a better message.
    rules: Annotated[list[RuleName], Field(json_schema_extra={"maxItems": MAX_RULES})] = Field(
        default_factory=list
    )
    """Only these rules, at most 500; empty is all."""
    comment: Comment = ""
