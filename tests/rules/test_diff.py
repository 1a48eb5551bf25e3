"""What changed between two documents, told by name."""

from __future__ import annotations

from typing import Any

import pytest

from limen.rules.diff import Change, changes, lines, summary


def rule(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, **fields}


def rules(*items: Any, **rest: Any) -> dict[str, Any]:
    return {"rules": list(items), **rest}


A, B, C = rule("a", limits="1/day"), rule("b", limits="2/day"), rule("c", limits="3/day")
TIERS = {"by": "plan", "limits": {"free": "60/minute", "pro": "600/minute"}}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, rules(), []),
        (rules(A, B), rules(A, B), []),
        (
            None,
            rules(A, B),
            [Change("added", "rules.a", None, A), Change("added", "rules.b", None, B)],
        ),
        (rules(A), rules(A, B), [Change("added", "rules.b", None, B)]),
        (rules(A, B), rules(B), [Change("removed", "rules.a", A, None)]),
        (
            rules(A),
            rules(rule("a", limits="9/day")),
            [Change("changed", "rules.a.limits", "1/day", "9/day")],
        ),
        (rules(A), rules(A | {"mode": "off"}), [Change("added", "rules.a.mode", None, "off")]),
        (rules(A | {"mode": "off"}), rules(A), [Change("removed", "rules.a.mode", "off", None)]),
        (
            rules(rule("a", tiers=TIERS)),
            rules(rule("a", tiers={**TIERS, "limits": {"free": "60/minute", "pro": "unlimited"}})),
            [Change("changed", "rules.a.tiers.limits.pro", "600/minute", "unlimited")],
        ),
        (
            rules(rule("a", limits=["1/s", "2/day"])),
            rules(rule("a", limits=["1/s", "3/day"])),
            [Change("changed", "rules.a.limits", ["1/s", "2/day"], ["1/s", "3/day"])],
        ),
        # Written otherwise, though Python calls them equal.
        (
            rules(rule("a", cost=1)),
            rules(rule("a", cost=True)),
            [Change("changed", "rules.a.cost", 1, True)],
        ),
        (
            rules(rule("a", x=[1])),
            rules(rule("a", x=[1.0])),
            [Change("changed", "rules.a.x", [1], [1.0])],
        ),
        # The order of keys says nothing; the order of rules does.
        (rules(A), rules(dict(reversed(A.items()))), []),
        (
            rules(A, B, C),
            rules(C, A, B),
            [Change("changed", "rules", {"order": ["a", "b", "c"]}, {"order": ["c", "a", "b"]})],
        ),
        (rules(A, C), rules(B, A, C), [Change("added", "rules.b", None, B)]),
        (
            rules(exemptions=[rule("office", ip="10.0.0.0/8")]),
            rules(exemptions=[rule("office", ip="10.1.0.0/16")]),
            [Change("changed", "exemptions.office.ip", "10.0.0.0/8", "10.1.0.0/16")],
        ),
        (rules(), rules(exemptions=[]), []),
        (rules(), rules(version=2), [Change("added", "version", None, 2)]),
        (
            rules(defaults={"mode": "off"}),
            rules(defaults={"mode": "shadow"}),
            [Change("changed", "defaults.mode", "off", "shadow")],
        ),
    ],
)
def test_changes_are_told_by_name(
    before: dict[str, Any] | None, after: dict[str, Any], expected: list[Change]
) -> None:
    assert changes(before, after) == expected


def test_summary_counts_by_kind() -> None:
    found = changes(rules(A, B), rules(A | {"limits": "7/day"}, C))
    assert summary(found) == "+1 ~1 -1"
    assert summary([]) == "+0 ~0 -0"


def test_lines_are_for_a_terminal() -> None:
    before = rules(A, B, C, rule("t", limits=["1/s"], note=""))
    after = rules(
        C,
        A | {"limits": "200/minute", "mode": "off"},
        rule("t", limits=["2/s"], note=None),
        rule("n"),
    )
    assert lines(changes(before, after)) == [
        "~ rules: another order",
        "~ rules.a.limits: 1/day -> 200/minute",
        "+ rules.a.mode: off",
        '~ rules.t.limits: ["1/s"] -> ["2/s"]',
        '~ rules.t.note: "" -> null',
        "+ rules.n",
        "- rules.b",
    ]


def test_line_is_never_long_and_never_commands_the_terminal() -> None:
    [line] = lines(changes(rules(A), rules(A | {"x\n\x1b[31m": "y\x1b[0m\ud800" + "z" * 500})))
    assert line.isprintable()
    assert len(line) < 150


def test_a_long_value_is_cut_around_its_change() -> None:
    before, after = ([f"198.51.100.{n}" for n in range(60)] for _ in "ab")
    after[50] = "203.0.113.77"
    [line] = lines(changes({"rules": [rule("a", ips=before)]}, {"rules": [rule("a", ips=after)]}))
    old, new = line.removeprefix("~ rules.a.ips: ").split(" -> ")
    assert "198.51.100.50" in old
    assert "203.0.113.77" in new
    assert (old.startswith("..."), old.endswith("...")) == (True, True)
    assert len(line) < 220


def test_a_change_is_never_two_equal_texts() -> None:
    [line] = lines(changes({"rules": [rule("a", cost=5)]}, {"rules": [rule("a", cost="5")]}))
    assert line == '~ rules.a.cost: 5 -> "5"'
    long = "x" * 200
    [line] = lines(changes({"note": long + "a"}, {"note": long + "b"}))
    old, new = line.removeprefix("~ note: ").split(" -> ")
    assert (old, new) == ("..." + "x" * 20 + "a", "..." + "x" * 20 + "b")
