"""Bad rule files, each named after its mistake, beside the message that it must give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from limen.errors import ConfigurationError, InvalidRules
from limen.rules import load, parse, parse_text
from limen.rules.text import read

FOLDER = Path(__file__).parent / "bad"
FILES = sorted(path for path in FOLDER.iterdir() if path.suffix != ".txt")
GOOD = {"name": "a-good-one", "limits": "100/minute"}

every_bad_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


def problems(path: Path) -> InvalidRules:
    with pytest.raises(InvalidRules) as caught:
        load(path)
    return caught.value


@every_bad_file
def test_a_bad_file_is_refused_with_exactly_its_message(path: Path) -> None:
    assert str(problems(path)) == path.with_suffix(".txt").read_text().rstrip("\n")


@every_bad_file
def test_problems_come_in_the_order_of_the_file_each_on_one_short_line(path: Path) -> None:
    count = len(path.read_bytes().splitlines())
    found = problems(path).problems
    lines = [problem.line for problem in found if problem.line is not None]
    assert lines == sorted(lines)
    assert all(1 <= line <= count for line in lines)
    for problem in found:
        assert str(problem).isprintable()
        assert len(str(problem)) < 400


@every_bad_file
def test_no_good_rule_beside_it_saves_a_bad_file(path: Path) -> None:
    try:
        document = read(path.read_text(encoding="utf-8"), is_json=path.suffix == ".json").data
    except (InvalidRules, UnicodeDecodeError):
        return  # nothing can be read of it at all
    if not isinstance(document, dict) or not isinstance(document.get("rules"), list):
        return
    before = len(problems(path).problems)
    document["rules"].append(GOOD)
    with pytest.raises(InvalidRules) as caught:
        parse(document)
    assert len(caught.value.problems) == before


def test_there_is_a_message_for_every_file_and_a_file_for_every_message() -> None:
    assert {path.stem for path in FILES} == {path.stem for path in FOLDER.glob("*.txt")}
    assert len({path.stem for path in FILES}) == len(FILES) >= 35


def test_all_mistakes_of_a_file_are_said_at_once() -> None:
    """One mistake in each of a thousand rules: a thousand problems, each with its own line."""
    bad = "".join(f"  - {{name: rule-{n}, limits: {n}/minuet}}\n" for n in range(1_000))
    with pytest.raises(InvalidRules) as caught:
        parse_text(f"rules:\n{bad}")
    found = caught.value.problems
    assert [problem.line for problem in found] == list(range(2, 1_002))
    assert [problem.path for problem in found] == [f"rules[{n}].limits" for n in range(1_000)]


def test_a_message_commands_no_terminal_and_fills_no_screen() -> None:
    name = "\\e[2J" + "x" * 900
    with pytest.raises(InvalidRules) as caught:
        parse_text(f'rules: []\n"{name}": 1\n')
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_what_is_said_of_plain_data_names_its_path_and_no_line() -> None:
    with pytest.raises(InvalidRules) as caught:
        parse({"rules": [GOOD, {"name": "b", "limit": "1/s"}]})
    assert [(problem.path, problem.line) for problem in caught.value.problems] == [
        ("rules[1].limit", None)
    ]


# What is beyond what a field takes, for fields that read their values by hand.
WRONG: dict[str, list[Any]] = {
    "enforce_percent": ["abc", "10%", True, None, [], {}, "nan", "sNaN", "inf", -1, "1e3", 10**400],
    "cost": ["two words", True, [], {}, -1, 10**9 + 1, 10**30, 1.5, ""],
    "starts": ["Friday", "18:00", True, 5, [], {}, "", "2026-13-01", "9" * 50],
    "concurrency": [
        *({"slots": slots, "lease": 5} for slots in (0, -1, "3", True, 10**9, None)),
        *({"slots": 3, "lease": lease} for lease in (0, -1, "x", True, "9" * 50, "1 month")),
    ],
    "description": [1, None, [], "x" * 1_001],
    "limits": [1, True, {}, [], [[]], [None], "", ["1/s", 2], "1/s;" * 400],
    "key": [1, True, {}, None, [1], [""], ["a b"], ["x" * 65]],
    "match": [
        *(1, [], "x", {"": 1}, {"a": []}, {"a": {}}, {"a": {"present": 1}}, {"a": [[]]}),
        *({"a": {"is": None}}, {"a": "x" * 1_001}, {"ip": "10.0.0.256"}, {"ip": 1.5}),
    ],
    "tiers": [1, [], {}, {"by": "plan"}, {"by": "plan", "limits": {"": "1/s"}}],
    "variants": [1, {}, ["x"], [{"percent": "x", "algorithm": "token_bucket"}]],
    "overrides": [1, {}, ["x"], [{"key": "user", "limits": "1/s"}], [{"limits": "1/s"}]],
    "mode": [1, True, None, [], "Enforce"],
    "name": ["", None, True, 1.5, [], "a b", "x" * 65, "-a", "a#b", "a|b", "a\n"],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in WRONG.items() for value in values],
    ids=lambda value: repr(value)[:40],
)
def test_a_wrong_value_is_a_problem_at_its_field_and_never_another_error(
    field: str, value: object
) -> None:
    rule = {"name": "a", "key": ["user"], "limits": "100/minute", field: value}
    with pytest.raises(InvalidRules) as caught:
        parse({"rules": [rule]})
    for problem in caught.value.problems:
        assert re.match(rf"rules\[0\]\.{field}\b", problem.path)


# Shares that are 100 percent together, and a little more when added up as floats.
@pytest.mark.parametrize("shares", [("0.2", "83.9", "15.9"), ("33.3", "33.3", "33.4"), (50, 50)])
def test_shares_that_add_up_to_100_percent_are_not_above_it(shares: tuple[object, ...]) -> None:
    variants = [{"percent": share, "limits": "1/s"} for share in shares]
    parse({"rules": [{"name": "a", "key": ["user"], "limits": "2/s", "variants": variants}]})


def test_what_looks_odd_and_is_not_wrong_loads() -> None:
    rules = parse_text(
        """\
$schema: https://example.com/rules.json
rules:
  - name: 404                       # a number is a name too
    key: user                       # one attribute needs no list
    limits: [100/minute, 10/minute burst 5, 10/s; 1000/hour]
    match: {country: no, version: 1.10, id: 012, plan: {not: [free]}, beta: true}
    enforce_percent: 12.5
    description: ''
  - {name: off, mode: off}
  - {name: gone, mode: block, missing: deny, key: [user], ends: 2026-12-24}
  - &anchor {name: anchored, limits: 1/s, on_error: open}
exemptions: []
"""
    )
    assert [rule.name for rule in rules.rules] == ["404", "off", "gone", "anchored"]
    first = rules.rules[0]
    assert first.conditions["country"].holds("no")
    assert first.conditions["version"].holds("1.10")
    assert first.conditions["id"].holds("012")
    assert first.conditions["beta"].holds("true")
    assert len(first.allowances.own.limits) == 4


def test_a_missing_file_is_not_a_bad_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read the rules in .*: No such file"):
        load(tmp_path / "rules.yaml")


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules: []\n", encoding="utf-8-sig")
    assert load(path).rules == ()
