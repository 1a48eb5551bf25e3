"""The kinds of values that the administration takes and gives, and how each is described."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)

from limen.rules.stores.records import MAX_VERSION
from limen.server.openapi import REFERENCE
from limen.wire import MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE

_MAX_DIGITS = 10
_MAX_FACTS = 16_384


class Model(BaseModel):
    """Plain data with these fields and no others, each of just this type."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


def refer(name: str) -> WithJsonSchema:
    """Describe a field by a schema that is made elsewhere."""
    return WithJsonSchema({REFERENCE: name})


def _whole(value: Any) -> Any:
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


Version = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=MAX_VERSION)]
"""The number of a version, in an address."""
VersionOrNone = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=MAX_VERSION)]
"""The number of a version, or 0 for none, in an address."""
PageSize = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=1_000)]
Comment = Annotated[str, Field(strict=True, max_length=2_000)]
Document = Annotated[dict[str, Any], refer("RuleSet")]


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
Mode = Literal["enforce", "shadow", "off", "block"]
