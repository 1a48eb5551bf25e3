"""A document of rules, checked: the one door from plain data to a `RuleSet`.

A set with one bad rule is refused as a whole, and everything that is wrong with it is said at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from pathlib import Path as FilePath
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from limen.errors import ConfigurationError, InvalidRules, Problem
from limen.rules.compile import Compiler
from limen.rules.findings import Findings, Lines, got, unknown_field
from limen.rules.ruleset import RuleSet
from limen.rules.spec import ExemptionSpec, RuleSpec
from limen.rules.text import Path, read

_FIELDS = ("rules", "exemptions", "$schema")
_MAX_RULES = 10_000
_SHORT = 12
Spec = TypeVar("Spec", bound=BaseModel)


def check(document: Any) -> None:
    """Raise `InvalidRules` with everything that is wrong with a document."""
    parse(document)


def parse(document: Any, *, version: str = "", lines: Lines | None = None) -> RuleSet:
    """Return the rule set that a document describes, or raise `InvalidRules`."""
    findings = Findings(document, lines)
    if not isinstance(document, Mapping):
        findings.add((), f"expected a mapping with 'rules', got {got(document)}")
        findings.raise_if_any()
    for name in document:
        if name not in _FIELDS:
            findings.add((name,), unknown_field(name, _FIELDS))
    if "rules" not in document:
        findings.add((), "the field 'rules' is missing: a list, which may be empty")
    compiler = Compiler(findings)
    rules = [
        compiler.rule(spec, path, is_whole=is_whole)
        for path, spec, is_whole in _items(document, "rules", RuleSpec, findings)
    ]
    names = _names(document.get("rules"), "rules", findings)
    exemptions = [
        compiler.exemption(spec, names, path)
        for path, spec, _ in _items(document, "exemptions", ExemptionSpec, findings)
    ]
    _names(document.get("exemptions"), "exemptions", findings)
    findings.raise_if_any()
    return RuleSet(rules, exemptions, version=version, document=deepcopy(document))


def parse_text(text: str, *, version: str = "", is_json: bool = False) -> RuleSet:
    """Return the rule set that a text in YAML or JSON describes, or raise `InvalidRules`."""
    found = read(text, is_json=is_json)
    return parse(found.data, version=version or digest(found.data)[:_SHORT], lines=found.line)


def load(path: str | FilePath) -> RuleSet:
    """Return the rule set in a file; `.json` is JSON, anything else YAML.

    Raises `InvalidRules` with the lines, and `ConfigurationError` when the file cannot be read.
    """
    path = FilePath(path)
    return parse_bytes(read_file(path), is_json=path.suffix == ".json")


def read_file(path: FilePath) -> bytes:
    """Return what is in a file, or raise `ConfigurationError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read the rules in {path}: {error.strerror}") from None


def parse_bytes(raw: bytes, *, is_json: bool = False) -> RuleSet:
    """Return the rule set that a file says, or raise `InvalidRules`."""
    return parse_text(decode(raw), is_json=is_json)


def decode(raw: bytes) -> str:
    """Return the text of a file, or raise `InvalidRules`."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidRules([Problem("", "this is not text in UTF-8", line)]) from None


def digest(document: Any) -> str:
    """Return the SHA-256 of a document: the same for the same rules, in any order of fields."""
    canonical = json.dumps(
        document, allow_nan=False, ensure_ascii=False, separators=(",", ":"), sort_keys=True
    )
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def _items(
    document: Mapping[str, Any], field: str, model: type[Spec], findings: Findings
) -> Iterable[tuple[Path, Spec, bool]]:
    """Yield what each item of a list says, and whether that is all of it; note what is wrong."""
    items = document.get(field)
    if items is None and field not in document:
        return
    if not isinstance(items, list):
        findings.add((field,), f"expected a list, got {got(items)}")
        return
    if len(items) > _MAX_RULES:
        findings.add((field,), f"at most {_MAX_RULES:,} fit into one set, got {len(items):,}")
        return
    for number, raw in enumerate(items):
        if findings.is_full:
            return
        path = (field, number)
        try:
            yield path, model.model_validate(raw), True
        except ValidationError as error:
            findings.add_errors(path, error, model)
            rest = _without_errors(raw, error, model)
            if rest is not None:
                yield path, rest, False


def _without_errors(raw: object, error: ValidationError, model: type[Spec]) -> Spec | None:
    """Return what is left of an item without the fields that are wrong, so that it is seen too."""
    if not isinstance(raw, Mapping):
        return None
    wrong = {detail["loc"][0] for detail in error.errors(include_url=False) if detail["loc"]}
    rest = {field: value for field, value in raw.items() if field not in wrong}
    try:
        return model.model_validate({"name": "unnamed", **rest})
    except ValidationError:
        # What is missing besides was said already.
        return None


def _names(items: object, field: str, findings: Findings) -> Collection[str]:
    """Return the names of rules or exemptions; note those that stand twice."""
    first: dict[str, int] = {}
    for number, raw in enumerate(items if isinstance(items, list) else []):
        name = raw.get("name") if isinstance(raw, Mapping) else None
        if type(name) is int:
            name = str(name)
        if isinstance(name, str) and first.setdefault(name, number) != number:
            findings.add(
                (field, number, "name"), f"{name!r} is the name of {field}[{first[name]}] too"
            )
    return first
