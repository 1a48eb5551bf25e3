"""The language of rules: every field, what it takes, and what it means. Knows no request.

These models are read from a document, turned into a `RuleSet` by `limen.rules.document`, and
published as JSON Schema. A field takes what people write (`limits: 100/minute` as well as a list),
and a wrong value is answered by what would have been right.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from limen.errors import shown
from limen.model import MAX_COST, grammar
from limen.model.decision import OnError
from limen.model.grammar import AlgorithmName
from limen.rules.match import ADDRESS, MAX_PATTERN, Values

Mode = Literal["enforce", "shadow", "off", "block"]
Missing = Literal["skip", "deny"]
UNLIMITED = "unlimited"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_MAX_TEXT = 1_000
_SURROGATE = re.compile("[\ud800-\udfff]")


def _text(value: Any) -> str:
    """Return a value as the text that a request would bring."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {_kind(value)}")
    if not value:
        raise ValueError("expected text, got nothing; an empty value counts as absent")
    if len(value) > MAX_PATTERN:
        raise ValueError(f"expected at most {MAX_PATTERN} characters, got {len(value)}")
    return _encodable(value)


def _prose(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {_kind(value)}")
    if len(value) > _MAX_TEXT:
        raise ValueError(f"expected at most {_MAX_TEXT} characters, got {len(value)}")
    return _encodable(value)


def _encodable(text: str) -> str:
    if _SURROGATE.search(text):
        raise ValueError(f"half a character cannot be kept: {shown(text)}")
    return text


def _name(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(
            f"a name has 1 to 64 letters, digits, '.', '_' or '-', and begins with a letter or "
            f"digit; got {shown(value)}"
        )
    return value


def _attribute(value: Any) -> str:
    if not isinstance(value, str) or not _ATTRIBUTE.fullmatch(value):
        raise ValueError(
            "an attribute's name has 1 to 64 letters, digits, '_', '.' or '-', and begins with a "
            f"letter; got {shown(value)}"
        )
    return value


def _as_list(value: Any) -> Any:
    """Return a single value as a list of it."""
    if isinstance(value, Mapping) or value is None:
        raise ValueError(f"expected text or a list, got {_kind(value)}")
    if isinstance(value, list) and not value:
        raise ValueError("expected at least one, got an empty list")
    return value if isinstance(value, list) else [value]


def _keys(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _limit(value: Any) -> str:
    if value == UNLIMITED:
        raise ValueError("'unlimited' is for tiers, variants and overrides, and stands alone there")
    # For its errors; what algorithm a limit is read with is not known yet.
    grammar.parse(value)
    return str(value)


def _limits_or_none(value: Any) -> Any:
    return [] if value in (UNLIMITED, [UNLIMITED]) else _as_list(value)


def _condition(value: Any) -> Any:
    """Return the short forms of a condition, a value or a list, as the long one."""
    return value if isinstance(value, Mapping) else {"is": value}


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {shown(value)}")
    return value


def _percent(value: Any) -> float:
    """Read a number, also one written as text: YAML's `12.5` is text here."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= 100:  # what is not a number is neither
        raise ValueError(f"expected a number from 0 to 100, got {shown(value)}")
    return number


def _cost(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= MAX_COST:
            raise ValueError(f"expected 0 to {MAX_COST:,}, or an attribute, got {shown(value)}")
        return value
    if not isinstance(value, str) or not _ATTRIBUTE.fullmatch(value):
        raise ValueError(
            f"expected a whole number, or the name of an attribute that holds one, "
            f"got {shown(value)}"
        )
    return value


def _slots(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected a whole number, got {shown(value)}")
    return value


def _duration(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        value = f"{value}s"
    if not isinstance(value, str):
        raise ValueError(f"expected a duration such as '60s', got {shown(value)}")
    return grammar.read_duration(value)


def _moment(value: Any) -> datetime:
    """Read a date or a time; without an offset it is UTC, and a date is its first moment."""
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            found = None
        if found is not None:
            return found if found.tzinfo else found.replace(tzinfo=UTC)
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime.combine(value, time(), UTC)
    raise ValueError(
        f"expected a date such as 2026-12-24 or a time such as 2026-12-24T18:00Z, "
        f"got {shown(value)}"
    )


def _kind(value: Any) -> str:
    """Name what was got, for a reader of YAML."""
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return "a list"
    return "a mapping" if isinstance(value, Mapping) else shown(value)


def _field(read: Callable[[Any], Any], **schema: Any) -> tuple[BeforeValidator, WithJsonSchema]:
    return BeforeValidator(read), WithJsonSchema(schema)


_NAMES = {"type": ["string", "integer"], "pattern": f"^{_NAME.pattern}$"}
_ATTRIBUTES = {"type": "string", "pattern": f"^{_ATTRIBUTE.pattern}$"}
_SCALAR = {"type": ["string", "integer", "boolean"], "minLength": 1, "maxLength": MAX_PATTERN}
_MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]+(Z|[+-][0-9:]+)?)?$"


def _one_or_more(item: Mapping[str, Any], **schema: Any) -> dict[str, Any]:
    return {**schema, "anyOf": [item, {"type": "array", "items": item, "minItems": 1}]}


Text = Annotated[str, *_field(_text, **_SCALAR)]
Prose = Annotated[str, *_field(_prose, type="string", maxLength=_MAX_TEXT)]
Name = Annotated[str, *_field(_name, **_NAMES)]
Attribute = Annotated[str, *_field(_attribute, **_ATTRIBUTES)]
Texts = Annotated[list[Text], *_field(_as_list, **_one_or_more(_SCALAR))]
Limits = Annotated[
    list[Annotated[str, BeforeValidator(_limit)]],
    *_field(
        _as_list,
        **_one_or_more({"type": "string"}, examples=["100/minute", ["10/s burst 20", "1000/day"]]),
    ),
]
LimitsOrNone = Annotated[
    list[Annotated[str, BeforeValidator(_limit)]],
    *_field(
        _limits_or_none,
        **_one_or_more({"type": "string"}, examples=["600/minute", "20000/month", UNLIMITED]),
    ),
]
Percent = Annotated[
    float,
    *_field(
        # A number with a point is text to `limen.rules.text`.
        _percent,
        type=["number", "string"],
        minimum=0,
        maximum=100,
        pattern=r"^[0-9]+(\.[0-9]+)?$",
    ),
]
Duration = Annotated[int, *_field(_duration, type=["string", "integer"], examples=["60s", "5m"])]
Moment = Annotated[
    datetime,
    *_field(_moment, type="string", pattern=_MOMENT, examples=["2026-12-24", "2026-12-24T18:00Z"]),
]
Flag = Annotated[bool, *_field(_flag, type="boolean")]


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        populate_by_name=False,
        frozen=True,
        # What stands below a field is what an editor shows beside it.
        use_attribute_docstrings=True,
        model_title_generator=lambda model: model.__name__.removesuffix("Spec").lower(),
    )


class ConditionSpec(_Model):
    """What is asked of one attribute. A value or a list alone means `is`."""

    is_: Texts | None = Field(None, alias="is")
    """One of these: exact text, or with `*` for any characters. For `ip`, addresses and networks:
    `[10.0.0.0/8, 192.0.2.7]`."""
    not_: Texts | None = Field(None, alias="not")
    """None of these. Holds too when the attribute is absent."""
    present: Flag | None = None
    """true: the attribute must be there. false: it must not."""


Condition = Annotated[
    ConditionSpec,
    BeforeValidator(_condition, json_schema_input_type=Texts | ConditionSpec),
]
Match = Annotated[
    dict[Attribute, Condition], Field(json_schema_extra={"additionalProperties": False})
]


class TiersSpec(_Model):
    """Limits that depend on an attribute, such as the plan a user pays for."""

    by: Attribute
    """The attribute that names the tier: `plan`."""
    limits: dict[Text, LimitsOrNone]
    """The limits of each tier: `{free: 60/minute, pro: [600/minute, 20000/day], max: unlimited}`.
    """
    default: LimitsOrNone | None = None
    """For a tier that is not listed. Without it, the rule's own `limits`."""


class VariantSpec(_Model):
    """Another way to limit a stable share of the keys, to compare it with the rest."""

    name: Name | None = None
    """How verdicts name it. Without one: `v1`, `v2`, ..."""
    percent: Percent
    """The share of the keys, from 0 to 100. The shares of all variants add up to 100 at most."""
    algorithm: AlgorithmName | None = None
    """Counts the same limits by another algorithm."""
    limits: LimitsOrNone | None = None
    """Replaces the rule's own `limits`; may be `unlimited`."""
    tiers: TiersSpec | None = None
    """Replaces the rule's `tiers`."""


class OverrideSpec(_Model):
    """Other limits for some keys: `user 42 gets 5,000/hour until Friday`."""

    key: Annotated[
        dict[Attribute, Text],
        Field(json_schema_extra={"additionalProperties": False, "minProperties": 1}),
    ]
    """Whom it is for, by attributes of the rule's `key`: `{user: 42}`."""
    limits: LimitsOrNone
    """What holds instead of the rule's limits, tiers and variants; may be `unlimited`."""
    description: Prose = ""
    """Why it is there, for whoever reads the rules later."""
    starts: Moment | None = None
    """From when on: `2026-12-24` or `2026-12-24T18:00Z`, in UTC unless it says otherwise. Without
    it: at once."""
    ends: Moment | None = None
    """Until when, not included: `2026-12-27`. Without it: for ever."""


class ConcurrencySpec(_Model):
    """How many may run at once."""

    slots: Annotated[int, *_field(_slots, type="integer", minimum=1)]
    """How many at the same time."""
    lease: Duration
    """How long a holder that died keeps its slot: `60s`. Who is alive renews it."""


class RuleSpec(_Model):
    """One rule: which requests, counted by what, against which limits."""

    name: Name
    """Names the rule in verdicts, and keeps its counters apart. Another name starts from nothing.
    """
    description: Prose = ""
    """What it is for, for whoever reads the rules later."""
    match: Match = Field(default_factory=dict)
    """Which requests it is for: `{path: /search/*, method: [GET, POST]}`. All of it has to hold.
    Without it: every request."""
    key: Annotated[
        list[Attribute],
        *_field(_keys, anyOf=[_ATTRIBUTES, {"type": "array", "items": _ATTRIBUTES}]),
    ] = Field(default_factory=list)
    """What is counted apart: `[user]`, `[org, path]`. `[]`, or nothing, counts all together."""
    missing: Missing = "skip"
    """When an attribute of `key` is absent: `skip` the rule, or `deny` the request. `deny` is also
    for the attribute that holds the cost; else a request without it costs what it asks for."""
    limits: Limits | None = None
    """One limit, `100/minute`, or a list: `[10/s burst 20, 1000/month]`. With `tiers`: for requests
    that have no tier."""
    concurrency: ConcurrencySpec | None = None
    """How many may run at once: `{slots: 3, lease: 60s}`. May stand beside `limits`."""
    algorithm: AlgorithmName | None = None
    """Counts those limits that name no algorithm themselves. Without it: `packed_window`, which is
    exact."""
    tiers: TiersSpec | None = None
    """Limits by plan, or by any other attribute."""
    cost: Annotated[
        int | str | None,
        *_field(
            _cost,
            type=["integer", "string"],
            minimum=0,
            maximum=MAX_COST,
            pattern=_ATTRIBUTES["pattern"],
        ),
    ] = None
    """What one request counts here: a number, or the attribute that holds it, such as `tokens`.
    Without it, or without the attribute: the cost that the caller gave, by default 1."""
    mode: Mode = "enforce"
    """`enforce` it; `shadow` counts and reports and never refuses; `off` is not there; `block`
    refuses whoever matches."""
    enforce_percent: Percent = 100.0
    """The share of keys, from 0 to 100, for which it is enforced; for the rest it is a shadow. A
    key stays where it is when the share grows."""
    variants: list[VariantSpec] = Field(default_factory=list)
    """A/B: other limits or algorithms for stable shares of the keys."""
    overrides: list[OverrideSpec] = Field(default_factory=list)
    """Other limits for single keys, for a time or for good."""
    on_error: OnError | None = None
    """When the store fails: `local` counts in each process, `open` lets pass, `closed` refuses.
    Without it: the limiter's own setting."""
    starts: Moment | None = None
    """From when on the rule is there: `2026-12-24` or `2026-12-24T18:00Z`, in UTC unless it says
    otherwise. Without it: at once."""
    ends: Moment | None = None
    """Until when, not included: `2026-12-27`. Without it: for ever."""


class ExemptionSpec(_Model):
    """Requests that rules do not apply to."""

    name: Name
    """Names it in verdicts."""
    description: Prose = ""
    """Why it is there, for whoever reads the rules later."""
    match: Annotated[Match, Field(min_length=1)]
    """Which requests: `{ip: 10.0.0.0/8}`, `{user: [root, ops]}`. All of it has to hold."""
    rules: list[Name] | None = None
    """Which rules they are exempt from, by name. Without it: all."""
    starts: Moment | None = None
    """From when on: `2026-12-24` or `2026-12-24T18:00Z`, in UTC unless it says otherwise. Without
    it: at once."""
    ends: Moment | None = None
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


def values(texts: list[str], attribute: str) -> Values:
    """Return what a condition on this attribute is matched by."""
    return Values(texts, are_addresses=attribute == ADDRESS)
