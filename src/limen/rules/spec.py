"""The language of rules: every field, what it takes, and what it means. Knows no request.

These models are read from a document, turned into a `RuleSet` by `limen.rules.document`, and
published as JSON Schema. A field takes what people write (`limits: 100/minute` as well as a list),
and a wrong value is answered by what would have been right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

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
    return value


def _prose(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {_kind(value)}")
    if len(value) > _MAX_TEXT:
        raise ValueError(f"expected at most {_MAX_TEXT} characters, got {len(value)}")
    return value


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
    try:
        number = Decimal(str(value)) if not isinstance(value, bool) else Decimal("NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if not 0 <= number <= 100:  # not a number is neither
        raise ValueError(f"expected a number from 0 to 100, got {shown(value)}")
    return float(number)


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


_TEXTS = {"anyOf": [{"type": ["string", "integer", "boolean"]}, {"type": "array", "minItems": 1}]}
_LIMITS = {
    "description": "One limit or several: 100/minute, 10/s burst 20, 1000/month.",
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
    ],
}

Text = Annotated[str, *_field(_text, type=["string", "integer", "boolean"])]
Prose = Annotated[str, *_field(_prose, type="string", maxLength=_MAX_TEXT)]
Name = Annotated[str, *_field(_name, type="string", pattern=f"^{_NAME.pattern}$")]
Attribute = Annotated[str, *_field(_attribute, type="string", pattern=f"^{_ATTRIBUTE.pattern}$")]
Texts = Annotated[list[Text], *_field(_as_list, **_TEXTS)]
Limits = Annotated[list[Annotated[str, BeforeValidator(_limit)]], *_field(_as_list, **_LIMITS)]
LimitsOrNone = Annotated[
    list[Annotated[str, BeforeValidator(_limit)]], *_field(_limits_or_none, **_LIMITS)
]
Percent = Annotated[float, *_field(_percent, type="number", minimum=0, maximum=100)]
Duration = Annotated[int, *_field(_duration, type=["string", "integer"])]
Moment = Annotated[datetime, *_field(_moment, type="string", format="date-time")]
Flag = Annotated[bool, *_field(_flag, type="boolean")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=False, frozen=True)


class ConditionSpec(_Model):
    """What is asked of one attribute. A value or a list alone means `is`."""

    is_: Texts | None = Field(None, alias="is")
    """One of these: exact text, or with `*` for any characters. `ip` takes networks."""
    not_: Texts | None = Field(None, alias="not")
    """None of these. Holds too when the attribute is absent."""
    present: Flag | None = None
    """Whether the attribute must be there, or must not."""


Condition = Annotated[ConditionSpec, BeforeValidator(_condition)]
Match = dict[Attribute, Condition]


class TiersSpec(_Model):
    """Limits that depend on an attribute, such as the plan a user pays for."""

    by: Attribute
    """The attribute that names the tier: `plan`."""
    limits: dict[Text, LimitsOrNone]
    """The limits of each tier: `{free: 60/minute, pro: [600/minute, 20000/day]}`."""
    default: LimitsOrNone | None = None
    """For a tier that is not listed. Without it, the rule's own `limits`."""


class VariantSpec(_Model):
    """Another way to limit a stable share of the keys, to compare it with the rest."""

    name: Name | None = None
    """How verdicts name it; without one `v1`, `v2`, ..."""
    percent: Percent
    """The share of the keys, from 0 to 100."""
    algorithm: AlgorithmName | None = None
    """Counts the same limits by another algorithm."""
    limits: LimitsOrNone | None = None
    """Replaces the rule's own `limits`."""
    tiers: TiersSpec | None = None
    """Replaces the rule's `tiers`."""


class OverrideSpec(_Model):
    """Other limits for some keys: `user 42 gets 5,000/hour until Friday`."""

    key: dict[Attribute, Text]
    """Whom it is for, by attributes of the rule's `key`: `{user: 42}`."""
    limits: LimitsOrNone
    """What holds instead of the rule's limits."""
    description: Prose = ""
    """Why."""
    starts: Moment | None = None
    """From when on. None is always."""
    ends: Moment | None = None
    """Until when, not included. None is for ever."""


class ConcurrencySpec(_Model):
    """How many may run at once."""

    slots: Annotated[int, *_field(_slots, type="integer", minimum=1)]
    """How many at the same time."""
    lease: Duration
    """How long a holder that died keeps its slot: `60s`."""


class RuleSpec(_Model):
    """One rule: which requests, counted by what, against which limits."""

    name: Name
    """Names the rule in verdicts, and keeps its counters apart."""
    description: Prose = ""
    """What it is for."""
    match: Match = Field(default_factory=dict)
    """Which requests it is for; all of it has to hold. Nothing is every request."""
    key: Annotated[list[Attribute], BeforeValidator(_keys)] = Field(default_factory=list)
    """What is counted apart: `[user]`, `[org, path]`. `[]` counts all together."""
    missing: Missing = "skip"
    """When an attribute of `key` is absent: `skip` the rule, or `deny` the request."""
    limits: Limits | None = None
    """`100/minute`, or a list of limits."""
    concurrency: ConcurrencySpec | None = None
    """How many may run at once; may stand beside `limits`."""
    algorithm: AlgorithmName | None = None
    """Counts those limits that name no algorithm themselves."""
    tiers: TiersSpec | None = None
    """Limits by plan, or by any other attribute."""
    cost: Annotated[
        int | str | None, *_field(_cost, type=["integer", "string"], minimum=0, maximum=MAX_COST)
    ] = None
    """What one request counts here: a number, or the attribute that holds it. None: as asked."""
    mode: Mode = "enforce"
    """`enforce`; `shadow` counts and reports; `off` is not there; `block` refuses everybody."""
    enforce_percent: Percent = 100.0
    """The stable share of keys for which it is enforced; for the rest it is a shadow."""
    variants: list[VariantSpec] = Field(default_factory=list)
    """A/B: other limits or algorithms for stable shares of the keys."""
    overrides: list[OverrideSpec] = Field(default_factory=list)
    """Other limits for single keys."""
    on_error: OnError | None = None
    """When the store fails: `local`, `open` or `closed`. None is the limiter's own setting."""
    starts: Moment | None = None
    """From when on the rule is there."""
    ends: Moment | None = None
    """Until when, not included."""


class ExemptionSpec(_Model):
    """Requests that rules do not apply to."""

    name: Name
    """Names it in verdicts."""
    description: Prose = ""
    """Why."""
    match: Annotated[Match, Field(min_length=1)]
    """Which requests: `{ip: 10.0.0.0/8}`, `{user: [root, ops]}`."""
    rules: list[Name] | None = None
    """Which rules they are exempt from. None is all."""
    starts: Moment | None = None
    """From when on."""
    ends: Moment | None = None
    """Until when, not included."""


class RulesSpec(_Model):
    """A whole rule set."""

    json_schema: str | None = Field(None, alias="$schema")
    """Where an editor finds this schema."""
    rules: list[RuleSpec]
    """All that match a request apply, all or nothing."""
    exemptions: list[ExemptionSpec] = Field(default_factory=list)
    """Who is under no rule."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a rule set."""
    return RulesSpec.model_json_schema(by_alias=True)


def values(texts: list[str], attribute: str) -> Values:
    """Return what a condition on this attribute is matched by."""
    return Values(texts, are_addresses=attribute == ADDRESS)
