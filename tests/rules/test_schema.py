"""The published JSON Schema: what the code says, fit for an editor, as lenient as people write.

`.venv/bin/python -m tests.rules.test_schema` writes it anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from limen.errors import InvalidRules
from limen.rules import check, spec
from limen.rules.text import read

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "docs" / "rules.schema.json"
EXAMPLES = sorted((ROOT / "examples" / "rules").glob("*.yaml"))
MODELS = [
    of
    for of in vars(spec).values()
    if isinstance(of, type) and issubclass(of, BaseModel) and of.model_fields
]

GOOD = {
    "short forms": {"name": "x", "key": "user", "limits": "1/s", "match": {"path": "/a"}},
    "long forms": {
        "name": "x",
        "key": ["org", "user"],
        "limits": ["1/s", "10/minute"],
        "match": {"path": {"is": ["/a", "/b*"], "not": "/b/c"}, "user": {"present": True}},
    },
    "numbers and truths for text": {
        "name": 7,
        "key": "user",
        "limits": "1/s",
        "match": {"user": [1, "2"], "stream": True},
        "overrides": [{"key": {"user": 42}, "limits": "unlimited"}],
    },
    "a share with a point, as YAML here reads it": {
        "name": "x",
        "key": "user",
        "limits": "1/s",
        "enforce_percent": "12.5",
        "variants": [{"percent": 12.5, "algorithm": "token_bucket"}],
    },
    "tiers": {
        "name": "x",
        "tiers": {"by": "plan", "limits": {"a": "unlimited", "b": ["1/s", "5/minute"]}},
        "limits": "1/s",
    },
    "slots": {"name": "x", "concurrency": {"slots": 3, "lease": 60}},
    "slots with a unit": {"name": "x", "concurrency": {"slots": 3, "lease": "1.5m"}},
    "a cost by number": {"name": "x", "limits": "10/s", "cost": 0},
    "a cost by attribute": {"name": "x", "limits": "10/s", "cost": "tokens"},
    "a day": {"name": "x", "limits": "1/s", "starts": "2026-12-24"},
    "a time": {"name": "x", "limits": "1/s", "starts": "2026-12-24T18:00Z"},
    "a time to the microsecond": {"name": "x", "limits": "1/s", "ends": "2026-12-24 18:00:00.25"},
    "a time elsewhere": {"name": "x", "limits": "1/s", "ends": "2026-12-24T18:00+01:00"},
    "nothing said": {"name": "x", "limits": "1/s", "tiers": None, "on_error": None},
}

BAD: dict[str, dict[str, Any]] = {
    "a field that is not there": {"name": "x", "limit": "1/s"},
    "no name": {"limits": "1/s"},
    "a name with a space": {"name": "a b", "limits": "1/s"},
    "no such mode": {"name": "x", "limits": "1/s", "mode": "shaddow"},
    "no such algorithm": {"name": "x", "limits": "1/s", "algorithm": "bucket"},
    "limits as a number": {"name": "x", "limits": 100},
    "no limits in a list": {"name": "x", "limits": []},
    "an attribute with a space": {"name": "x", "limits": "1/s", "match": {"a b": "c"}},
    "a condition that is not there": {"name": "x", "limits": "1/s", "match": {"a": {"in": "b"}}},
    "a condition on nothing": {"name": "x", "limits": "1/s", "match": {"a": None}},
    "an empty text": {"name": "x", "limits": "1/s", "match": {"a": ""}},
    "a truth in words": {"name": "x", "limits": "1/s", "match": {"a": {"present": "yes"}}},
    "more than everybody": {"name": "x", "key": "u", "limits": "1/s", "enforce_percent": 101},
    "a negative cost": {"name": "x", "limits": "1/s", "cost": -1},
    "no slots": {"name": "x", "concurrency": {"slots": 0, "lease": "60s"}},
    "no lease": {"name": "x", "concurrency": {"slots": 1}},
    "a German date": {"name": "x", "limits": "1/s", "ends": "24.12.2026"},
    "an override for nobody": {
        "name": "x",
        "key": "u",
        "limits": "1/s",
        "overrides": [{"key": {}, "limits": "2/s"}],
    },
}


def written() -> str:
    """Return the schema as it is published."""
    return json.dumps(spec.json_schema(), indent=2) + "\n"


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(PUBLISHED.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_published_schema_is_what_the_code_says() -> None:
    # Not compared by pytest, whose difference of two long texts hides what to do.
    is_same = PUBLISHED.exists() and PUBLISHED.read_text() == written()
    assert is_same, (
        f"{PUBLISHED.relative_to(ROOT)} is not what limen.rules.spec says; write it anew: "
        ".venv/bin/python -m tests.rules.test_schema"
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_valid(example: Path, validator: Any) -> None:
    document = read(example.read_text()).data
    assert [error.message for error in validator.iter_errors(document)] == []


@pytest.mark.parametrize("what", GOOD)
def test_schema_takes_what_the_rules_take(what: str, validator: Any) -> None:
    document = {"rules": [GOOD[what]]}
    check(document)
    assert [error.message for error in validator.iter_errors(document)] == []


@pytest.mark.parametrize("what", BAD)
def test_schema_refuses_what_an_editor_can_see(what: str, validator: Any) -> None:
    document = {"rules": [BAD[what]]}
    with pytest.raises(InvalidRules):
        check(document)
    assert not validator.is_valid(document)


def described() -> list[tuple[str, str, str]]:
    """Return every field of every model, with what the schema says of it."""
    schema = spec.json_schema()
    parts = {"RulesSpec": schema, **schema["$defs"]}
    return [
        (model.__name__, name, parts[model.__name__]["properties"][name].get("description", ""))
        for model in MODELS
        for name in [of.alias or field for field, of in model.model_fields.items()]
    ]


def test_every_field_is_described() -> None:
    assert len(MODELS) == 8
    assert [(model, name) for model, name, text in described() if not text] == []


@pytest.mark.parametrize(("model", "name", "text"), described())
def test_description_fits_a_tooltip(model: str, name: str, text: str) -> None:
    assert text == " ".join(text.split()), "one line: an editor breaks it where it likes"
    assert 15 <= len(text) <= 200
    assert text.endswith((".", "..."))
    assert text.count("`") % 2 == 0


if __name__ == "__main__":
    PUBLISHED.write_text(written())
