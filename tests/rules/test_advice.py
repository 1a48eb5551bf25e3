"""What is valid and hardly meant: each is said once, where it stands, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from time import process_time

import pytest

from limen.rules import load, parse, parse_text
from limen.rules.advice import advice
from limen.rules.text import read

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "rules").glob("*.yaml"))
NO_EXPRESSIONS = (
    "looks like a regular expression, and there are none: only * is special, for any characters"
)


def said(rule: str) -> list[str]:
    """Return what is said of one rule, which begins in line 2."""
    text = f"rules:\n{indent(rule.strip(), '    ').replace('    ', '  - ', 1)}\n"
    return [str(problem) for problem in advice(parse_text(text), read(text).line)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_nothing_is_said_of_the_examples(path: Path) -> None:
    assert advice(load(path)) == []


# Columns: a rule, and what is said of it.
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            "name: a\nlimits: [10/s burst 40, 100/minute]\ncost: 50",
            ["line 4: rules[0].cost: 50 never fits: '10/second burst 40' holds 40 at most"],
        ),
        (
            "name: a\nkey: u\ncost: 50\nlimits: 100/s\n"
            "tiers: {by: plan, limits: {free: 10/s, max: unlimited}, default: 20/s}\n"
            "variants: [{percent: 10, tiers: {by: plan, limits: {free: 30/s}, default: 60/s}}]\n"
            "overrides: [{key: {u: 7}, limits: 40/s}]",
            [
                "line 4: rules[0].cost: 50 never fits: '10/second' holds 10 at most",
                "line 4: rules[0].cost: 50 never fits: '20/second' holds 20 at most",
                "line 4: rules[0].cost: 50 never fits: '30/second' holds 30 at most",
                "line 4: rules[0].cost: 50 never fits: '40/second' holds 40 at most",
            ],
        ),
        (
            "name: a\nlimits: 1/s\nmatch:\n  client: [10.0.0.0/8, '2001:db8::/32', 10.1.2.3]",
            [
                "line 5: rules[0].match.client: '10.0.0.0/8' is compared as text: "
                "networks are for the attribute 'ip'",
                "line 5: rules[0].match.client: '2001:db8::/32' is compared as text: "
                "networks are for the attribute 'ip'",
            ],
        ),
        (
            "name: a\nlimits: 1/s\nmatch: {host: {not: 10.1.2.3/8}}",
            [
                "line 4: rules[0].match.host: '10.1.2.3/8' is compared as text: "
                "networks are for the attribute 'ip'"
            ],
        ),
        (
            "name: a\nkey: [u, org]\nlimits: 1/s\noverrides:\n"
            "  - {key: {u: 7, org: x}, limits: 2/s}\n"
            "  - {key: {u: 7}, limits: 2/s}\n"
            "  - {key: {org: x, u: '7'}, limits: 3/s, ends: 2026-01-01}",
            [
                "line 8: rules[0].overrides[2]: this is for the same key as overrides[0], "
                "at the same time: the first of them wins"
            ],
        ),
        (
            "name: a\nkey: ip\nlimits: 1/s\noverrides:\n"
            "  - {key: {ip: '::ffff:10.0.0.1'}, limits: 2/s}\n"
            "  - {key: {ip: 10.0.0.1}, limits: 2/s}",
            [
                "line 7: rules[0].overrides[1]: this is for the same key as overrides[0], "
                "at the same time: the first of them wins"
            ],
        ),
        (
            "name: a\nkey: u\nlimits: 1/s\noverrides:\n"
            "  - {key: {u: 7}, limits: 2/s, starts: 2026-03-01, ends: 2026-06-01}\n"
            "  - {key: {u: 7}, limits: 2/s, ends: 2026-01-01}\n"
            "  - {key: {u: 7}, limits: 2/s, starts: 2026-05-01, ends: 2026-05-02}\n"
            "  - {key: {u: 7}, limits: 2/s, starts: 2026-05-31}",
            [
                "line 8: rules[0].overrides[2]: this is for the same key as overrides[0], "
                "at the same time: the first of them wins",
                "line 9: rules[0].overrides[3]: this is for the same key as overrides[0], "
                "at the same time: the first of them wins",
            ],
        ),
        (
            "name: a\nkey: u\nlimits: 1/s\noverrides:\n  - key: {u: acme-*}\n    limits: 2/s",
            [
                "line 6: rules[0].overrides[0].key.u: 'acme-*' is compared as text: "
                "an override is for one key"
            ],
        ),
        (
            "name: a\nlimits: 1/s\ntiers:\n  by: plan\n  limits:\n    pro-*: 2/s",
            [
                "line 7: rules[0].tiers.limits.pro-*: 'pro-*' is compared as text: "
                "for the other tiers there is 'default'"
            ],
        ),
        *(
            (
                f"name: a\nlimits: 1/s\nmatch: {{path: '{path}'}}",
                [f"line 4: rules[0].match.path: '{path}' {NO_EXPRESSIONS}"],
            )
            for path in ("^/a", "/a$", r"/a/\d+", "/a/.*", "/a/[0-9]+")
        ),
    ],
)
def test_what_is_hardly_meant_is_said(rule: str, expected: list[str]) -> None:
    assert said(rule) == expected


@pytest.mark.parametrize(
    "rule",
    [
        "name: a\nlimits: 10/s\ncost: 10",
        "name: a\nlimits: 10/s\ncost: tokens",
        "name: a\nlimits: 10/s\ncost: 50\nmode: 'off'",
        "name: a\nlimits: 10/s\nmatch: {ip: 10.0.0.0/8}",
        "name: a\nlimits: 10/s\nmatch: {path: [/1/2, /$metadata, /a^b, '*.png', '/a\\*'], v: 1/2}",
        "name: a\nlimits: 10/s\nmatch: {host: example.*}",
        "name: a\nkey: u\nlimits: 1/s\noverrides:\n"
        "  - {key: {u: 7}, limits: 2/s, ends: 2026-01-01}\n"
        "  - {key: {u: 7}, limits: 2/s, starts: 2026-01-01}\n"
        "  - {key: {u: 8}, limits: 2/s}",
    ],
)
def test_nothing_is_said_of_what_may_be_meant(rule: str) -> None:
    assert said(rule) == []


def test_exemptions_are_looked_at_too() -> None:
    rules = parse({"rules": [], "exemptions": [{"name": "e", "match": {"client": "10.0.0.0/8"}}]})
    [problem] = advice(rules)
    assert (problem.path, problem.line) == ("exemptions[0].match.client", None)


def test_many_overrides_of_one_key_are_compared_in_time() -> None:
    overrides = [
        {
            "key": {"u": "7"},
            "limits": "2/s",
            "starts": f"{2000 + year}-01-01",
            "ends": f"{2000 + year}-12-01",
        }
        for year in range(5_000)
    ]
    rules = parse({"rules": [{"name": "a", "key": "u", "limits": "1/s", "overrides": overrides}]})
    start = process_time()
    assert advice(rules) == []
    assert process_time() - start < 2.0
