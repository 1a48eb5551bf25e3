"""What the administration is asked and told to do, field by field.

Fields that a rule set has too are called as they are there.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    model_validator,
)

from limen.model import MAX_COST
from limen.rules.fields import Attribute, Moment, Name, Prose, Text
from limen.rules.spec import ExemptionSpec, OverrideSpec
from limen.rules.stores.records import MAX_VERSION
from limen.rules.stores.tokens import Role
from limen.rules.sync.switch import MAX_RULES
from limen.server.admin.kinds import Comment, Document, Facts, Model, RuleName


class _Written(BaseModel):
    """Keeps what was sent beside what it means: rules keep the words of their author."""

    _sent: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        found = handler(value)
        if isinstance(value, dict):
            found._sent = value
        return found

    def sent(self, *without: str) -> dict[str, Any]:
        """Return the fields as they were sent; those that are null are not there."""
        return {
            name: value
            for name, value in self._sent.items()
            if value is not None and name not in without
        }


class ToValidate(Model):
    """Rules that somebody wants to be told about: as data, or as text."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={
            "examples": [{"text": "rules: [{name: api, key: user, limits: 100/minute}]"}]
        }
    )

    document: Any = None
    text: str | None = None
    """YAML, or JSON: problems tell its lines."""
    want: Literal["document", "text"] | None = None
    """What to be told besides: the rules as data, or as YAML."""
    json_: Annotated[bool, Field(alias="json")] = False
    """Whether the text is JSON."""


class ToSave(Model):
    """Rules to save, all of them."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "document": {"rules": [{"name": "api", "key": "user", "limits": "100/minute"}]},
                    "base": 1,
                    "comment": "a start",
                }
            ]
        }
    )

    document: Document
    base: Annotated[int, Field(ge=0, le=MAX_VERSION)]
    """The newest version when the edit began; 0 for none. If another is by now: 409."""
    comment: Comment = ""
    activate: bool = True
    """Whether they hold from now on, or are a draft."""


class ToActivate(Model):
    """How to let a version hold."""

    expected: Annotated[int, Field(ge=0, le=MAX_VERSION)] | None = None
    """The version that is active, as far as you know; 0 for none. If another is: 409."""
    comment: Comment = ""


class ToRollBack(Model):
    """How to let an old version hold again."""

    base: Annotated[int, Field(ge=0, le=MAX_VERSION)] | None = None
    """The newest version, as far as you know. If another is: 409."""
    comment: Comment = ""


class ToOverride(OverrideSpec, _Written):
    """Other limits for some keys of a rule. They take the place of those for the same key."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={
            "examples": [
                {"key": {"user": "42"}, "limits": "5000/hour", "ends": "2099-12-24T18:00Z"}
            ]
        }
    )

    comment: Comment = ""
    """Why the rules change, for the history."""


class ToExempt(ExemptionSpec, _Written):
    """Requests that rules shall not apply to."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={"examples": [{"name": "office", "match": {"ip": "192.0.2.0/24"}}]}
    )

    comment: Comment = ""
    """Why the rules change, for the history."""


class ToBlock(_Written):
    """Whom to refuse, whatever else is allowed."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        json_schema_extra={
            "examples": [{"attributes": {"user": "42"}, "ends": "2099-12-24T18:00Z"}]
        },
    )

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


class ToExplain(Model):
    """A request to explain."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={"examples": [{"attributes": {"user": "42", "path": "/search"}}]}
    )

    attributes: Facts
    cost: Annotated[int, Field(ge=0, le=MAX_COST)] = 1
    document: Any = None
    """Rules to explain it by, instead of those in force: a draft. Null for those in force."""
    rule: RuleName | None = None
    """A rule that is in the answer in any case, though others may be left out."""


class ToInspect(Model):
    """Whose counters to look at."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={"examples": [{"attributes": {"user": "42"}}]}
    )

    attributes: Facts


class ToReset(Model):
    """Whose counters to forget."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={"examples": [{"attributes": {"user": "42"}, "rule": "per-user"}]}
    )

    attributes: Facts
    rule: RuleName | None = None
    """Only under this rule; without it, under every rule that the request meets."""
    comment: Comment = ""


class ToGrant(Model):
    """A token to create."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={"examples": [{"role": "check", "name": "checkout service"}]}
    )

    role: Role
    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    """What it is for: the audit calls its holder so."""
    expires_at: Moment | None = None
    """From when on it does not hold any more; null is never."""


class ToTurn(Model):
    """How the kill switch shall stand."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={"examples": [{"on": True, "rules": []}]}
    )

    on: bool
    # `find_wrong_name` checks the number, with a better message.
    rules: Annotated[list[RuleName], Field(json_schema_extra={"maxItems": MAX_RULES})] = Field(
        default_factory=list
    )
    """Only these rules, at most 500; empty is all."""
    comment: Comment = ""
