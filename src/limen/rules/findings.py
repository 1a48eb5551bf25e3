"""What is wrong with a document, collected: every problem with its path, its line and a way out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from limen.errors import InvalidRules, Problem, did_you_mean, shown
from limen.rules.text import Path

Lines = Callable[[Path], int | None]

_SYNONYMS = {
    "expires": "ends",
    "from": "starts",
    "until": "ends",
    "untill": "ends",
    "when": "match",
    "if": "match",
    "id": "name",
    "rate": "limits",
    "in": "is",
    "except": "not",
    "isnt": "not",
    "is_not": "not",
    "exists": "present",
    "plans": "tiers",
    "weight": "cost",
}


_LONGEST_STEP = 80
_MOST = 10_000


class Findings:
    """Collects problems of one document."""

    def __init__(self, document: object, lines: Lines | None = None) -> None:
        self._document = document
        self._lines = lines
        self._problems: list[Problem] = []
        self._places: set[Path] = set()

    def add(self, path: Path, message: str) -> None:
        """Note what is wrong at a path."""
        if self.is_full:
            return
        path = self._real(path)
        line = self._lines(path) if self._lines else None
        self._places.add(path)
        self._problems.append(Problem(path_text(path), message, line))

    @property
    def is_full(self) -> bool:
        """Whether so much is wrong that nobody would read more."""
        return len(self._problems) >= _MOST

    def has(self, path: Path) -> bool:
        """Return whether anything was noted at a path."""
        return self._real(path) in self._places

    def add_errors(self, path: Path, error: ValidationError, model: type[BaseModel]) -> None:
        """Note all that a model found wrong with what stands at a path."""
        seen = set()
        for detail in error.errors(include_url=False):
            # pydantic adds a step that is no place, for the key of a mapping.
            loc = tuple(step for step in detail["loc"] if step != "[key]")
            where = (*path, *loc)
            message = _message(detail, _fields_at(model, loc))
            if (where, message) not in seen:
                seen.add((where, message))
                self.add(where, message)

    def raise_if_any(self) -> None:
        """Raise `InvalidRules` with everything that was noted, in the order of the file."""
        if self._problems:
            raise InvalidRules(sorted(self._problems, key=lambda problem: problem.line or 0))

    def _real(self, path: Path) -> Path:
        """Return a path without steps that the document does not have.

        A single value that may be a list is checked as a list of one, and a short form as the long
        one: whoever wrote it does not know of either. The last step stays when it names a field of
        a mapping, since that one may be missing.
        """
        found: list[str | int] = []
        here = self._document
        for number, step in enumerate(path):
            if _has(here, step):
                here = here[step]  # type: ignore[index]  # it has it
            elif number < len(path) - 1 or not isinstance(here, Mapping) or step == "is":
                continue
            found.append(step)
        return tuple(found)


def path_text(path: Path) -> str:
    """Write a path: `rules[2].tiers.limits.pro`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            word = step if step.isprintable() and len(step) <= _LONGEST_STEP else shown(step)
            text += f".{word}" if text else word
    return text


def got(value: object) -> str:
    """Return a value as a message shows it: what stands nowhere is nothing, and not None."""
    return "nothing" if value is None else shown(value)


def unknown_field(name: object, fields: Iterable[str]) -> str:
    """Say that there is no such field, and which there are."""
    if name == "<<":
        return "merge keys are not read; write the fields themselves"
    fields = list(fields)
    meant = _SYNONYMS.get(str(name).lower())
    hint = f" (did you mean '{meant}'?)" if meant in fields else did_you_mean(name, fields)
    hint = hint or f"; there are: {', '.join(fields)}"
    return f"unknown field {shown(name)}{hint}"


def _has(value: object, step: str | int) -> bool:
    """Return whether a step leads into a value."""
    if isinstance(value, list):
        return isinstance(step, int) and 0 <= step < len(value)
    return isinstance(value, Mapping) and step in value


def _fields_at(model: type[BaseModel], path: Path) -> list[str]:
    """Return the fields that there are beside the last step of a path."""
    names: dict[str, Any] = {}
    for step in ("", *path[:-1]):
        if step in names:
            model = _model_in(names[str(step)]) or model
        names = {of.alias or name: of.annotation for name, of in model.model_fields.items()}
    return list(names)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a type holds: a list of it, a mapping to it, or nothing."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _model_in(inner)
        if found is not None:
            return found
    return None


def _message(detail: ErrorDetails, fields: Iterable[str]) -> str:
    context: Mapping[str, Any] = detail.get("ctx", {})
    value = detail["input"]
    match detail["type"]:
        case "value_error":
            return str(context["error"])
        case "extra_forbidden":
            return unknown_field(detail["loc"][-1], fields)
        case "missing":
            return "this field is missing, and there is no default"
        case "literal_error":
            expected = str(context["expected"]).replace("'", "")
            words = expected.replace(" or ", ", ").split(", ")
            return f"expected {expected}, got {shown(value)}{did_you_mean(value, words)}"
        case "list_type":
            return f"expected a list, got {got(value)}"
        case "dict_type" | "model_type" | "mapping_type":
            return f"expected a mapping, got {got(value)}"
        case "too_short":
            return "expected at least one attribute, got none"
    return f"{detail['msg']}, got {shown(value)}"
