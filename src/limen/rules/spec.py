"""The language of rules: every field, and what it means. Knows no request.

These models are read from a document, turned into a `RuleSet` by `limen.rules.document`, and
published as JSON Schema. A field takes what people write, `limits: 100/minute` as well as a list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.json_schema import GenerateJsonSchema

from limen.errors import shown
from limen.model import AlgorithmName
from limen.model.decision import OnError
from limen.rules import fields

Mode = Literal["enforce", "shadow", "off", "block"]
Missing = Literal["skip", "deny"]


class _Model(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        populate_by_name=False,
        frozen=True,
        # What stands below a field is what an editor shows beside it.
        use_attribute_docstrings=True,
        model_title_generator=lambda model: model.__name__.removesuffix("Spec").lower(),
    )


def _condition(value: Any) -> Any:
    """Return the short forms of a condition, a value or a list, as the long one."""
    return value if isinstance(value, Mapping) else {"is": value}


class ConditionSpec(_Model):
    """What is asked of one attribute. A value or a list alone means `is`."""

    is_: fields.Texts | None = Field(None, alias="is")
    """One of these: exact text, or with `*` for any characters. For `ip`, addresses and networks:
    `[10.0.0.0/8, 192.0.2.7]`."""
    not_: fields.Texts | None = Field(None, alias="not")
    """None of these. Holds too when the attribute is absent."""
    present: fields.Flag | None = None
    """true: the attribute must be there. false: it must not."""


Condition = Annotated[
    ConditionSpec,
    BeforeValidator(_condition, json_schema_input_type=fields.Texts | ConditionSpec),
]
Match = Annotated[
    dict[fields.Attribute, Condition], Field(json_schema_extra={"additionalProperties": False})
]


class TiersSpec(_Model):
    """Limits that depend on an attribute, such as the plan a user pays for."""

    by: fields.Attribute
    """The attribute that names the tier: `plan`."""
    limits: dict[fields.Text, fields.LimitsOrNone]
    """The limits of each tier: `{free: 60/minute, pro: [600/minute, 20000/day], max: unlimited}`.
    """
    default: fields.LimitsOrNone | None = None
    """For a tier that is not listed. Without it, the rule's own `limits`."""


class VariantSpec(_Model):
    """Another way to limit a stable share of the keys, to compare it with the rest."""

    name: fields.Name | None = None
    """How verdicts name it. Without one: `v1`, `v2`, ..."""
    percent: fields.Percent
    """The share of the keys, from 0 to 100. The shares of all variants add up to 100 at most."""
    algorithm: AlgorithmName | None = None
    """Counts the same limits by another algorithm."""
    limits: fields.LimitsOrNone | None = None
    """Replaces the rule's own `limits`; may be `unlimited`."""
    tiers: TiersSpec | None = None
    """Replaces the rule's `tiers`."""


class OverrideSpec(_Model):
    """Other limits for some keys: `user 42 gets 5,000/hour until Friday`."""

    key: Annotated[
        dict[fields.Attribute, fields.Text],
        Field(json_schema_extra={"additionalProperties": False, "minProperties": 1}),
    ]
    """Whom it is for, by attributes of the rule's `key`: `{user: 42}`."""
    limits: fields.LimitsOrNone
    """What holds instead of the rule's limits, tiers and variants; may be `unlimited`."""
    description: fields.Prose = ""
    """Why it is there, for whoever reads the rules later."""
    starts: fields.Moment | None = None
    """From when on: `2026-12-24` or `2026-12-24T18:00Z`, in UTC unless it says otherwise. Without
    it: at once."""
    ends: fields.Moment | None = None
    """Until when, not included: `2026-12-27`. Without it: for ever."""


class ConcurrencySpec(_Model):
    """How many may run at once."""

    slots: fields.Slots
    """How many at the same time."""
    lease: fields.Duration
    """How long a holder that died keeps its slot: `60s`. Who is alive renews it."""


def _concurrency(value: Any) -> Any:
    """Refuse what people write who know no lease: a number alone."""
    if value is not None and not isinstance(value, Mapping | ConcurrencySpec):
        raise ValueError(f"expected a mapping such as {{slots: 5, lease: 60s}}, got {shown(value)}")
    return value


class RuleSpec(_Model):
    """One rule: which requests, counted by what, against which limits."""

    name: fields.Name
    """Names the rule in verdicts, and keeps its counters apart. Another name starts from nothing.
    """
    description: fields.Prose = ""
    """What it is for, for whoever reads the rules later."""
    match: Match = Field(default_factory=dict)
    """Which requests it is for: `{path: /search/*, method: [GET, POST]}`. All of it has to hold.
    Without it: every request."""
    key: fields.Key = Field(default_factory=list)
    """What is counted apart: `[user]`, `[org, path]`. `[]`, or nothing, counts all together."""
    missing: Missing = "skip"
    """When an attribute of `key` is absent: `skip` the rule, or `deny` the request. `deny` is also
    for the attribute that holds the cost; else a request without it costs what it asks for."""
    limits: fields.Limits | None = None
    """One limit, `100/minute`, or a list: `[10/s burst 20, 1000/month]`. With `tiers`: for requests
    that have no tier."""
    concurrency: Annotated[
        ConcurrencySpec | None,
        BeforeValidator(_concurrency, json_schema_input_type=ConcurrencySpec | None),
    ] = None
    """How many may run at once: `{slots: 3, lease: 60s}`. May stand beside `limits`."""
    algorithm: AlgorithmName | None = None
    """Counts those limits that name no algorithm themselves. Without it: `packed_window`, which is
    exact."""
    tiers: TiersSpec | None = None
    """Limits by plan, or by any other attribute."""
    cost: fields.Cost | None = None
    """What one request counts here: a number, or the attribute that holds it, such as `tokens`.
    Without it, or without the attribute: the cost that the caller gave, by default 1."""
    mode: Mode = "enforce"
    """`enforce` it; `shadow` counts and reports and never refuses; `off` is not there; `block`
    refuses whoever matches."""
    enforce_percent: fields.Percent = 100.0
    """The share of keys, from 0 to 100, for which it is enforced; for the rest it is a shadow. A
    key stays where it is when the share grows."""
    variants: list[VariantSpec] = Field(default_factory=list)
    """A/B: other limits or algorithms for stable shares of the keys."""
    overrides: list[OverrideSpec] = Field(default_factory=list)
    """Other limits for single keys, for a time or for good."""
    on_error: OnError | None = None
    """When the store fails: `local` counts in each process, `open` lets pass, `closed` refuses.
    Without it: the limiter's own setting."""
    starts: fields.Moment | None = None
    """From when on the rule is there: `2026-12-24` or `2026-12-24T18:00Z`, in UTC unless it says
    otherwise. Without it: at once."""
    ends: fields.Moment | None = None
    """Until when, not included: `2026-12-27`. Without it: for ever."""


class ExemptionSpec(_Model):
    """Requests that rules do not apply to."""

    name: fields.Name
    """Names it in verdicts."""
    description: fields.Prose = ""
    """Why it is there, for whoever reads the rules later."""
    match: Annotated[Match, Field(min_length=1)]
    """Which requests: `{ip: 10.0.0.0/8}`, `{user: [root, ops]}`. All of it has to hold."""
    rules: list[fields.Name] | None = None
    """Which rules they are exempt from, by name. Without it: all."""
    starts: fields.Moment | None = None
    """From when on: `2026-12-24` or `2026-12-24T18:00Z`, in UTC unless it says otherwise. Without
    it: at once."""
    ends: fields.Moment | None = None
    """Until when, not included: `2026-12-27`. Without it: for ever."""


class RulesSpec(_Model):
    """A set of rules for limen: who may do how much of what."""

    json_schema: str | None = Field(None, alias="$schema")
    """Where an editor finds this schema. limen does not read it."""
    rules: list[RuleSpec]
    """The rules. All that match a request apply, all or nothing."""
    exemptions: list[ExemptionSpec] = Field(default_factory=list)
    """Requests that are under no rule, or not under some."""


class _Schema(GenerateJsonSchema):
    """Without a title for each field: it says no more than the field's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a rule set."""
    schema = RulesSpec.model_json_schema(by_alias=True, schema_generator=_Schema)
    flat: dict[str, Any] = json.loads(json.dumps(schema), object_hook=_in_one_line)
    return {"$schema": _Schema.schema_dialect, **flat}


def _in_one_line(of: dict[str, Any]) -> dict[str, Any]:
    """Join the lines of a description: an editor breaks them where it likes."""
    text = of.get("description")
    return {**of, "description": " ".join(text.split())} if isinstance(text, str) else of
