"""Text to data: any text is read or refused, and soon; what is written is read back."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limen.errors import InvalidRules, Problem
from limen.rules import load, parse_text
from limen.rules.text import read, write

MEGABYTE = 2**20

words = st.sampled_from(
    [
        *"-:?[]{},&*!|>'\"%@#`~<=\\/ \n\t\r\0\x07\x7f\x85\u2028\ufeff\ud800é𝄞",
        *(
            "- ",
            ": ",
            "? ",
            "a",
            "0",
            "-1",
            "true",
            "null",
            "---\n",
            "...\n",
            "&a ",
            "*a",
            "!!str ",
        ),
        *(
            "<<: ",
            "\n  ",
            "\n - ",
            "%YAML 1.1\n",
            "%TAG ! x\n",
            "a: b\n",
            "[a, b]",
            "{a: b}",
            "|\n ",
        ),
        *('"\\x00"', '"\\ud800"', '"a"', "rules:", "name:", "limits:", "100/minute", "1e5", "NaN"),
    ]
)
arbitrary = st.text(max_size=200) | st.lists(words, max_size=60).map("".join)


def never_another_error(text: str, *, is_json: bool) -> None:
    last = len(text.splitlines()) + 1
    for each in (read, parse_text):
        problems: tuple[Problem, ...] | None = None
        try:
            each(text, is_json=is_json)
        except InvalidRules as error:
            problems = error.problems
        assert problems != ()
        lines = [problem.line for problem in problems or () if problem.line is not None]
        assert all(1 <= line <= last for line in lines)


@given(text=arbitrary)
@example(text="rules: [\ud800]")
@example(text="rules:\n- {name: a, limits: 1/s, description: '\ud800'}")
@example(text="\ufeffrules: []")
@example(text="? [a]\n: b")
@example(text="&a [*a]")
@example(text="{*a : b}")
@example(text="a: *b")
def test_any_text_is_read_as_yaml_or_refused(text: str) -> None:
    never_another_error(text, is_json=False)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(text=arbitrary | json_like.map(json.dumps))
@example(text='{"rules": [{"name": "a", "limits": "1/s", "description": "\\ud800"}]}')
@example(text='{"rules": [], "x": ' + "9" * 5_000 + "}")
@example(text='{"rules": [{"name": "a", "limits": "1/s", "cost": 1e999}]}')
@example(text='{"rules": [{"name": "a", "limits": "1/s", "cost": ' + "9" * 40 + "}]}")
@example(text='{"rules": ' + "[" * 900 + "]" * 900 + "}")
def test_any_text_is_read_as_json_or_refused(text: str) -> None:
    never_another_error(text, is_json=True)


rule_like = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", 1, "x y", None])},
    optional={
        "limits": json_like | st.sampled_from(["1/s", ["1/s", "2/s"], "unlimited"]),
        "match": json_like | st.dictionaries(st.sampled_from(["ip", "path", ""]), json_like),
        "key": json_like | st.sampled_from(["user", ["user", "path"]]),
        "tiers": json_like
        | st.fixed_dictionaries(
            {"by": json_like, "limits": st.dictionaries(st.text(max_size=2), json_like, max_size=3)}
        ),
        "concurrency": st.fixed_dictionaries({"slots": json_like, "lease": json_like}),
        "variants": st.lists(
            st.fixed_dictionaries({"percent": json_like, "limits": json_like}), max_size=2
        ),
        "overrides": st.lists(
            st.fixed_dictionaries({"key": json_like, "limits": json_like}), max_size=2
        ),
        **dict.fromkeys(("cost", "mode", "enforce_percent", "starts", "ends", "nmae"), json_like),
    },
)


@given(rules=st.lists(rule_like, max_size=3), exemptions=st.lists(rule_like, max_size=2))
def test_any_data_is_a_rule_set_or_refused(rules: list[Any], exemptions: list[Any]) -> None:
    text = json.dumps({"rules": rules, "exemptions": exemptions})
    never_another_error(text, is_json=True)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "- " * 100_000,
        "{a: " * 100_000,
        "? " * 100_000,
        "a" * MEGABYTE,
        "#" * MEGABYTE,
        "\n" * MEGABYTE,
        "a: " + " " * MEGABYTE + "b",
        "'" + "\n" * MEGABYTE,
        '"' + "\\x41" * (MEGABYTE // 4) + '"',
        ":" * MEGABYTE,
        "!" * MEGABYTE,
        "%" * MEGABYTE,
        "".join(f"%TAG !a{n}! x\n" for n in range(MEGABYTE // 16)) + "--- a",
        "[" + "".join(f"&a{n} x," for n in range(MEGABYTE // 8)) + "]",
        "[&a x" + ",*a" * (MEGABYTE // 3) + "]",
        "{" + ",".join(f"k{n}: 1" for n in range(MEGABYTE // 10)) + "}",
        "\n".join(f"k{n}: &k{n} [*k{n - 1},*k{n - 1}]" if n else "k0: &k0 a" for n in range(5_000)),
        "rules:\n" + "- a\n" * 9_999,
        "rules:\n" + "- {name: a}\n" * 9_999,
        "rules:\n" + "- {nmae: a, limist: 1/s}\n" * 5_000,
    ],
    ids=lambda text: text[:12].encode("unicode_escape").decode(),
)
def test_no_text_of_a_megabyte_takes_long(text: str) -> None:
    start = process_time()
    never_another_error(text, is_json=False)
    # About 10 µs for each value there is; reading each before each other would take minutes.
    assert process_time() - start < 15.0


@pytest.mark.parametrize("depth", [100, 1_000, 5_000, 100_000])
def test_json_may_be_as_deep_as_it_likes(depth: int) -> None:
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        never_another_error(text, is_json=True)
        never_another_error(f'{{"rules": {text}}}', is_json=True)
        never_another_error(f'{{"rules": [{{"name": {text}}}]}}', is_json=True)


def test_aliases_of_a_long_text_are_counted_by_its_length() -> None:
    """What is written out again, for a digest, must not be thousands of times longer."""
    text = "a: &a " + "x" * MEGABYTE + "\nb: [" + "*a, " * 10_000 + "]"
    with pytest.raises(InvalidRules, match="alias"):
        read(text)


def test_values_are_counted_once_however_deep_they_stand() -> None:
    """A set of 10,000 rules with 20 overrides each is large, and no bomb."""
    text = "[" * 30 + "a," * 80_000 + "]" * 30
    found = read(text).data
    for _ in range(29):
        [found] = found
    assert len(found) == 80_000


def test_many_unknown_names_are_answered_in_time() -> None:
    rules = "".join(f"  - {{name: search-rule-{n}, limits: 1/s}}\n" for n in range(2_000))
    names = ", ".join(f"serch-rule-{n}x" for n in range(200))
    start = process_time()
    with pytest.raises(InvalidRules) as caught:
        parse_text(f"rules:\n{rules}exemptions: [{{name: e, match: {{u: x}}, rules: [{names}]}}]")
    assert len(caught.value.problems) == 200
    assert process_time() - start < 4.0


def test_mistakes_in_every_rule_of_a_large_set_are_found_in_time() -> None:
    text = "rules:\n" + "".join(f"- {{name: r{n}, limits: 1/minuet}}\n" for n in range(9_000))
    start = process_time()
    with pytest.raises(InvalidRules) as caught:
        parse_text(text)
    assert len(caught.value.problems) == 9_000
    assert process_time() - start < 3.0


# What JSON can say, as far as rules need it: no fractions, and numbers of up to 18 digits.
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18) + 1, 10**18 - 1)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.sampled_from(
        ["", " ", "no", "~", "null", "1.10", "012", "0x1F", "12:30", "1_000", "<<", "- a", "a: b"]
    )
    | st.sampled_from(["2026-12-24", "#", "!a", "&a", "*a", "'", '"', "\n", "a\n ", "\t", "---"])
    | st.text(st.sampled_from("ab \n"), min_size=80, max_size=300),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner)
    ),
    max_leaves=20,
)


@given(data=plain)
@example(data={"k" * 300: [1]})
@example(data=[["a"] * 2] * 2)
@example(data={"": {"~": {"null": None}}})
@example(data={"\x85": ["a\u2028", "\ufeff", "\n\x85 x"]})
def test_what_is_written_is_read_back_the_same(data: Any) -> None:
    assert read(write(data)).data == data


def test_what_stands_twice_in_the_data_is_written_so_that_it_is_read_back() -> None:
    shared = ["10/s", "100/minute"]
    data = {"a": shared, "b": {"c": shared}}
    assert read(write(data)).data == data


@given(data=plain)
def test_json_is_read_as_json(data: Any) -> None:
    for indent in (None, 2, "\t"):
        text = json.dumps(data, indent=indent)
        assert read(text, is_json=True).data == data


def test_a_file_called_json_is_read_as_json(tmp_path: Any) -> None:
    path = tmp_path / "rules.json"
    path.write_text('{"rules": [{"name": "a", "limits": "1\\/s"}]}')
    assert str(load(path).rules[0].allowances.own.limits[0]) == "1/second"
    path.write_text("rules: []")
    with pytest.raises(InvalidRules, match="this is not JSON"):
        load(path)


# Columns: what stands after `a: `, and what it is.
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("off", "off"),
        ("yes", "yes"),
        ("True", "True"),
        ("true", True),
        ("'true'", "true"),
        ("null", None),
        ("~", None),
        ("", None),
        ("''", ""),
        ("12", 12),
        ("-12", -12),
        ("+12", "+12"),
        ("012", "012"),
        ("0", 0),
        ("1_000", "1_000"),
        ("1.10", "1.10"),
        ("1e5", "1e5"),
        ("0x1F", "0x1F"),
        ("12:30", "12:30"),
        ("2026-12-24", "2026-12-24"),
        ("'12'", "12"),
        ('"12"', "12"),
        ("! 12", "12"),
        ("9" * 18, 10**18 - 1),
        ("9" * 19, "9" * 19),
        ("|\n  12\n", "12\n"),
        (".inf", ".inf"),
    ],
)
def test_a_scalar_is_what_its_writer_meant(text: str, value: object) -> None:
    found = read(f"a: {text}\n").data["a"]
    assert (type(found), found) == (type(value), value)


# Columns: a text, and what is said of it after what libyaml says.
@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a: 1\r\n\tb: 2\r\n", "use spaces, not tabs"),
        ("a: 1\u2028\tb: 2\n", "use spaces, not tabs"),
        ("a: b: c", "a text with ': ' in it needs quotes"),
        ("a\n  b: c", "check the indentation of this line"),
        ("a: [::1, b]", "an address such as ::1 needs quotes here"),
        ("a: {b: c,, d: e}", None),
        ("a: [b, ]]", None),
        ("a: 'b'c'", "look at the quotes before it: within single quotes, ' is written ''"),
        ('a: "b"c"', 'look at the quotes before it: within double quotes, " is written \\"'),
        ("a: `b`", "to begin a text with '`', quote it"),
        ("a: *", "to begin a text with '*', quote it"),
        ('a: "\\d"', "use single quotes"),
    ],
)
def test_a_slip_in_yaml_is_answered_by_what_to_do(text: str, hint: str | None) -> None:
    with pytest.raises(InvalidRules) as caught:
        read(text)
    [problem] = caught.value.problems
    said, _, told = problem.message.partition("; ")
    assert said.startswith("this is not YAML: ")
    assert told == (hint or "")


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_quote_that_is_not_closed_is_told_where_it_opens(quote: str) -> None:
    with pytest.raises(InvalidRules) as caught:
        read(f"a: 1\nb: {quote}c\nd: 2\ne: 3\n")
    assert [problem.line for problem in caught.value.problems] == [2]


DOCUMENT = """\
# A remark.
rules:
  - name: a
    match:
      path: /a
      user: {not: x,
             present: true}
    limits:
      - 1/s
      - 2/s
    tiers: &tiers
      by: plan
  - {name: b, tiers: *tiers,
     limits:
       1/s
    }
last:
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 2),
        (("rules",), 2),
        (("rules", 0), 3),
        (("rules", 0, "name"), 3),
        (("rules", 0, "match"), 4),
        (("rules", 0, "match", "path"), 5),
        (("rules", 0, "match", "user"), 6),
        (("rules", 0, "match", "user", "not"), 6),
        (("rules", 0, "match", "user", "present"), 7),
        (("rules", 0, "limits"), 8),
        (("rules", 0, "limits", 1), 10),
        (("rules", 0, "tiers"), 11),
        (("rules", 0, "tiers", "by"), 12),
        (("rules", 0, "tiers", "default"), 11),
        (("rules", 1, "tiers"), 13),
        (("rules", 1, "limits"), 14),
        (("rules", 7), 2),
        (("last",), 17),
    ],
)
def test_the_line_of_a_field_is_where_its_name_stands(
    path: tuple[str | int, ...], line: int
) -> None:
    assert read(DOCUMENT).line(path) == line
