"""The index finds what asking every rule one by one would find, and is not made slow by anybody."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import combinations
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen.rules import parse
from limen.rules.index import Index
from limen.rules.match import Condition, Values
from limen.rules.rule import key_of

NAMES = ("ip", "path", "user", "größe")

# Nested prefixes and suffixes, whole texts that are prefixes of others, and few of each: so that
# many rules share a place in the index, and many hold.
texts = st.text(st.sampled_from("ab/é"), min_size=1, max_size=4)
values = st.one_of(
    texts,
    texts.map(lambda text: f"{text}*"),
    texts.map(lambda text: f"*{text}"),
    st.tuples(texts, texts).map("*".join),
    texts.map(lambda text: f"*{text}*"),
    st.sampled_from(["*", "\\*", "a\\*b", "/", "/a/*/b"]),
)
networks = st.sampled_from(
    ["10.0.0.0/8", "10.0.0.0/24", "10.0.0.1", "0.0.0.0/0", "::/0", "2001:db8::/32", "2001:db8::1"]
)
facts = st.fixed_dictionaries(
    {},
    optional={
        "ip": st.sampled_from(
            ["10.0.0.1", "10.9.9.9", "11.0.0.1", "::ffff:10.0.0.1", "2001:db8::1", "::1", "bad"]
        ),
        **{
            name: st.one_of(texts, st.text(st.sampled_from("ab/é*\\"), min_size=1, max_size=10))
            for name in NAMES[1:]
        },
    },
)


# Made once, and not anew for every example: that takes longer than to draw from them.
SOME = {
    name: st.lists(networks if name == "ip" else values, min_size=1, max_size=3) for name in NAMES
}
IS = {name: st.none() | some for name, some in SOME.items()}
NOT = {name: st.none() | st.none() | some for name, some in SOME.items()}
PRESENT = st.sampled_from([None, True])


@st.composite
def conditions(draw: st.DrawFn, name: str) -> Condition:
    is_ = draw(IS[name])
    not_ = draw(NOT[name])
    if is_ is None and not_ is None:
        return Condition(None, None, draw(st.booleans()))
    read = {
        side: None if of is None else Values(of, are_addresses=name == "ip")
        for side, of in (("is", is_), ("not", not_))
    }
    return Condition(read["is"], read["not"], draw(PRESENT))


rules = st.fixed_dictionaries({}, optional={name: conditions(name) for name in NAMES})


def one_by_one(of: list[dict[str, Condition]], request: Mapping[str, str]) -> list[int]:
    return [
        number
        for number, rule in enumerate(of)
        if all(condition.holds(request.get(name)) for name, condition in rule.items())
    ]


@given(of=st.lists(rules, max_size=40), requests=st.lists(facts, min_size=1, max_size=8))
def test_finds_what_asking_every_rule_would_find(
    of: list[dict[str, Condition]], requests: list[dict[str, str]]
) -> None:
    index = Index(of)
    for request in requests:
        assert index.find(request) == one_by_one(of, request)


# Each form of a condition that the index sorts by, with and without what it must then still test.
FORMS: dict[str, tuple[list[str], list[str]]] = {
    "exact": (["a", "ab"], ["a", "ab", "abc", "b"]),
    "beginnings": (["a*", "ab*", "abc*"], ["a", "ab", "abcd", "b"]),
    "endings": (["*a", "*ba", "*cba"], ["a", "ba", "dcba", "b"]),
    "both ends": (["a*a", "a*ba", "*b"], ["a", "aa", "aba", "acba", "b"]),
    "middles": (["a*b*c", "*b*", "*"], ["abc", "ac", "b", "xbx", "x"]),
    "exact and beginnings": (["a", "b*"], ["a", "ab", "b", "bc"]),
    "exact and endings": (["a", "*b"], ["a", "ba", "b", "cb"]),
    "networks": (["10.0.0.0/8", "10.0.0.0/24", "2001:db8::/32"], ["10.0.0.1", "10.1.0.1", "::1"]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("present", [None, True])
def test_finds_by_every_form_of_condition_with_and_without_exceptions(
    form: str, present: bool | None
) -> None:
    patterns, requests = FORMS[form]
    name = "ip" if form == "networks" else "path"
    some = [Values(list(of), are_addresses=name == "ip") for of in subsets(patterns)]
    of = [{name: Condition(is_, not_, present)} for is_ in some for not_ in (None, *some)]
    of += [{name: each[name], "user": Condition(Values(["u*"]), None, None)} for each in of]
    of += [{name: Condition(None, not_, present)} for not_ in some]
    of += [{name: Condition(None, None, True)}, {name: Condition(None, None, False)}, {}]
    index = Index(of)
    for value in (*requests, "", "zzz"):
        for user in ("u1", "x"):
            request = {"user": user} | ({name: value} if value else {})
            assert index.find(request) == one_by_one(of, request)


def subsets(of: list[str]) -> list[tuple[str, ...]]:
    return [some for size in (1, 2, 3) for some in combinations(of, size)]


@given(
    of=st.lists(
        st.fixed_dictionaries(
            {}, optional={name: st.lists(texts, min_size=1, max_size=3) for name in NAMES[1:]}
        ),
        min_size=5,
        max_size=60,
    ),
    requests=st.lists(facts, min_size=1, max_size=8),
)
def test_finds_rules_of_exact_values_alone(
    of: list[dict[str, list[str]]], requests: list[dict[str, str]]
) -> None:
    plain = [
        {name: Condition(Values(some), None, None) for name, some in rule.items()} for rule in of
    ]
    index = Index(plain)
    for request in requests:
        assert index.find(request) == one_by_one(plain, request)


@given(chain=st.lists(texts, min_size=5, max_size=30), value=st.text(st.sampled_from("ab/é")))
def test_finds_every_prefix_and_suffix_that_lie_within_each_other(
    chain: list[str], value: str
) -> None:
    starts = ["".join(chain[:n]) for n in range(1, len(chain))]
    of = [{"path": Condition(Values([f"{text}*"]), None, None)} for text in starts]
    of += [{"path": Condition(Values([f"*{text}"]), None, None)} for text in starts]
    index = Index(of)
    for request in (value, "".join(chain), "".join(chain) + value, value + "".join(chain)):
        assert index.find({"path": request}) == one_by_one(of, {"path": request})


def test_an_index_of_nothing_finds_nothing() -> None:
    assert Index([]).find({"path": "/"}) == []


def test_rules_without_conditions_hold_for_every_request() -> None:
    assert Index([{}] * 7).find({}) == list(range(7))


def document(count: int) -> dict[str, Any]:
    """Rules of which each asks for something of its own, in every form there is."""
    forms = ("/v1/{0}", "/v1/{0}/*", "*.{0}", "/v1/*/{0}/*x")
    return {
        "rules": [
            {
                "name": f"rule-{n}",
                "match": {"path": forms[n % 3].format(n)},
                "key": ["user"],
                "limits": "100/minute",
            }
            for n in range(count)
        ]
    }


def test_a_thousand_rules_are_found_nearly_as_fast_as_ten() -> None:
    few, many = parse(document(10)), parse(document(2_000))
    request = {"path": "/v1/7/x", "user": "42"}
    assert seconds_of(many, request) < 20 * seconds_of(few, request) + 0.001


def seconds_of(rules: Any, request: dict[str, str], rounds: int = 20) -> float:
    """Return the seconds of the quickest of some tries: the others were disturbed."""
    found = []
    for _ in range(rounds):
        start = process_time()
        rules.resolve(request, 1, 0.0)
        found.append(process_time() - start)
    return min(found)


MEGABYTE = 2**20


@pytest.mark.parametrize(
    "value",
    ["a" * MEGABYTE, "/v1/" + "a/" * (MEGABYTE // 2), "|%" * (MEGABYTE // 2), "é" * MEGABYTE],
)
@pytest.mark.parametrize("attribute", ["path", "user", "ip", "tokens"])
def test_no_value_makes_resolving_slow(attribute: str, value: str) -> None:
    limits: dict[str, Any] = {"key": ["user", "path"], "limits": "100/minute"}
    globs = ["*a" * 15 + "*b", "/v1/" + "*/a" * 15, "*é" * 16, "*%|" * 16]
    rules = parse(
        {
            "rules": [
                {"name": f"glob-{n}", "match": {"path": globs[n % 4]}, **limits} for n in range(20)
            ]
            + [{"name": "not", "match": {"path": {"not": globs}}, **limits}]
            + [{"name": "share", "enforce_percent": 50, **limits}]
            + [{"name": "network", "match": {"ip": "10.0.0.0/8"}, **limits}]
        }
    )
    request = {"path": "/v1/a", "user": "42", "ip": "10.0.0.1", "tokens": "1", attribute: value}
    # Twenty globs read a megabyte once or twice each; a matcher that goes back takes minutes.
    assert seconds_of(rules, request, rounds=3) < 5


def test_rules_of_many_globs_on_many_attributes_load_at_once() -> None:
    """Each alternative of one attribute must not be combined with each of all the others."""
    match = {f"a{n}": [f"{letter}*" for letter in "abcdefgh"] for n in range(6)}
    rules = [{"name": f"rule-{n}", "match": match, "limits": "1/s"} for n in range(6)]
    start = process_time()
    found = parse({"rules": rules})
    assert process_time() - start < 10
    request = dict.fromkeys(match, "abc")
    assert len(found.resolve(request, 1, 0.0).applied) == 6
    assert seconds_of(found, request) < 0.1


def test_rules_of_globs_within_each_other_are_found_at_once() -> None:
    """Who sends what all of them hold for must not make each be asked for each other."""
    match = {f"a{n}": ["a*", "aa*", "aaa*", "aaaa*"] for n in range(6)}
    found = parse(
        {"rules": [{"name": f"rule-{n}", "match": match, "limits": "1/s"} for n in range(6)]}
    )
    assert seconds_of(found, dict.fromkeys(match, "aaaaa"), rounds=5) < 0.04


def test_lists_of_exact_values_do_not_multiply_without_bound() -> None:
    users, paths = ([f"{kind}{n}" for n in range(90)] for kind in ("user", "path"))
    start = process_time()
    found = parse(
        {
            "rules": [
                {"name": f"r{n}", "match": {"user": users, "path": paths}, "limits": "1/s"}
                for n in range(40)
            ]
        }
    )
    assert process_time() - start < 10
    assert len(found.resolve({"user": "user7", "path": "path7"}, 1, 0.0).applied) == 40


key_values = st.text(st.sampled_from("a|%=7C25é\ud800"), min_size=1, max_size=8)


@given(data=st.data())
def test_no_two_requests_that_differ_in_the_key_share_a_text(data: st.DataObject) -> None:
    names = tuple(data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)))
    tuples = st.tuples(*[key_values | st.text(min_size=1, max_size=3) for _ in names])
    one, other = data.draw(tuples), data.draw(tuples)
    first, second = (key_of(names, dict(zip(names, of, strict=True))) for of in (one, other))
    assert (first == second) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("|", "b"), ("%7C", "b")),
        (("%", "b"), ("%25", "b")),
        (("x|b=y", "z"), ("x", "y|b=z")),
        (("x%7Cb=y", "z"), ("x", "y%7Cb=z")),
        (("x", "y"), ("x|b=y", "y")),
    ],
)
def test_what_joins_a_key_cannot_be_written_into_it(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    names = ("a", "b")
    keys = {key_of(names, dict(zip(names, of, strict=True))) for of in (one, other)}
    assert len(keys) == 2
    assert key_of(("a",), {"a": one[0]}) != key_of(("a",), {"a": other[0]})


@given(data=st.data())
def test_an_absent_attribute_has_no_key(data: st.DataObject) -> None:
    names = ("a", "b", "c")
    there = data.draw(st.dictionaries(st.sampled_from(names), key_values))
    assert (key_of(names, there) is None) == (len(there) < 3)


SHAPES: dict[str, Any] = {
    "a star in the middle": lambda n: {"path": f"/orders/*/items-{n}"},
    "globs beside methods that all share": lambda n: {
        "path": [f"/p{n}/{part}/*" for part in range(30)],
        "method": ["GET", "POST", "PUT", "DELETE", "PATCH"],
    },
    "paths beside users that all share": lambda n: {
        "path": [f"/p{n}/{part}" for part in range(40)],
        "user": [f"u{number}" for number in range(30)],
    },
    "a glob beside regions that all share": lambda n: {
        "path": f"/p{n}/*",
        "region": [f"r{number}" for number in range(200)],
    },
    "two attributes that only together tell apart": lambda n: {
        "region": f"r{n % 32}",
        "plan": f"p{n // 32}",
    },
}
REQUEST = {"method": "GET", "user": "u3", "region": "r7", "plan": "p0"}


@cache
def index_of(shape: str) -> Index:
    """A thousand rules of one shape: once for all paths, as they take long to read."""
    return Index(
        rule.conditions
        for rule in parse(
            {
                "rules": [
                    {"name": f"r{n}", "match": SHAPES[shape](n), "limits": "1/s"}
                    for n in range(1_000)
                ]
            }
        ).rules
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("path", ["/p7/3/x", "/p7/3", "/orders/1/items-7"])
def test_what_tells_rules_apart_comes_first(
    shape: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = index_of(shape)
    asked = []
    holds = Condition.holds

    def counting(self: Condition, value: str | None) -> bool:
        asked.append(value)
        return holds(self, value)

    monkeypatch.setattr(Condition, "holds", counting)
    index.find({**REQUEST, "path": path})
    assert len(asked) <= 8
