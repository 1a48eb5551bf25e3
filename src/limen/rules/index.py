"""Which of many rules a request is under, without asking each of them. Pure.

Rules are sorted into a tree. There are four ways to sort a rule: by an attribute's exact values, by
how a text begins, by how it ends, and by networks. At each node a rule takes the way that it shares
with the fewest others, so that what tells rules apart comes first; a rule with several values
stands in several places. A node with few rules asks each of them for what is still open. So the
time depends on how many rules fit and on how differently rules are built, not on their number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from limen.model.network import read_address
from limen.rules.match import Condition, Values

Conditions = Mapping[str, Condition]
Facts = Mapping[str, str]

_FEW = 4
_MAX_VALUES = 10_000
_MAX_PLACES = 1_000
"""In how many places a rule may stand, once it stands in more than one."""


class _Way(NamedTuple):
    kind: Literal["exact", "begins", "ends", "network"]
    name: str


class _Entry(NamedTuple):
    number: int
    ways: Mapping[_Way, Sequence[Hashable]]
    """What it may yet be sorted by, and where it would then stand."""
    tests: Conditions
    """What is yet to be tested."""
    places: int
    """In how many places it stands."""


_Tables = dict[_Way, dict[Hashable, list[_Entry]]]


class Index:
    """Finds the numbers of the rules whose conditions a request fulfils."""

    def __init__(self, rules: Iterable[Conditions]) -> None:
        self._root = _Node(
            [_Entry(number, _ways(rule), rule, 1) for number, rule in enumerate(rules)]
        )

    def find(self, facts: Facts) -> list[int]:
        """Return the numbers of the rules that fit, in their order."""
        found: list[int] = []
        get = facts.get
        nodes = [self._root]
        for node in nodes:
            for number, tests in node.tested:
                for name, condition in tests:
                    if not condition.holds(get(name)):
                        break
                else:
                    found.append(number)
            if node.branches:
                node.follow(facts, nodes)
        if len(found) > 1:
            # Twice, when two globs of one rule fit.
            return sorted(set(found))
        return found


class _Node:
    __slots__ = ("_beginnings", "_endings", "_exact", "_networks", "branches", "tested")

    def __init__(self, entries: Sequence[_Entry]) -> None:
        rest, sorted_ = _sort(entries) if len(entries) > _FEW else (list(entries), _Tables())
        tables = {
            way: {place: _Node(among) for place, among in table.items()}
            for way, table in sorted_.items()
        }
        self._exact = [(way.name, of) for way, of in tables.items() if way.kind == "exact"]
        self._beginnings = [
            (way.name, _Prefixes(of)) for way, of in tables.items() if way.kind == "begins"
        ]
        self._endings = [
            (way.name, _Prefixes(of)) for way, of in tables.items() if way.kind == "ends"
        ]
        self._networks = [
            (way.name, _by_length(of)) for way, of in tables.items() if way.kind == "network"
        ]
        self.tested = [(entry.number, tuple(entry.tests.items())) for entry in rest]
        self.branches = bool(tables)

    def follow(self, facts: Facts, nodes: list[_Node]) -> None:
        """Add the nodes below that a request leads to."""
        get = facts.get
        for name, table in self._exact:
            node = table.get(get(name))
            if node is not None:
                nodes.append(node)
        for name, prefixes in self._beginnings:
            value = get(name)
            if value is not None:
                prefixes.follow(value, nodes)
        for name, prefixes in self._endings:
            value = get(name)
            if value is not None:
                prefixes.follow(value[::-1], nodes)
        for name, lengths in self._networks:
            address = read_address(get(name, ""))
            if address is None:
                continue
            version, number = address
            for (of_version, cut), starts in lengths.items():
                node = starts.get(number >> cut) if of_version == version else None
                if node is not None:
                    nodes.append(node)


def _sort(entries: Sequence[_Entry]) -> tuple[list[_Entry], _Tables]:
    """Put each entry where the fewest others stand; return who stands nowhere, and the tables."""
    crowd = Counter(
        (way, place) for entry in entries for way, places in entry.ways.items() for place in places
    )
    rest: list[_Entry] = []
    tables: _Tables = {}
    for entry in entries:
        way = _best_way(entry, crowd, len(entries))
        if way is None:
            rest.append(entry)
            continue
        places = entry.ways[way]
        below = _Entry(
            entry.number,
            {other: found for other, found in entry.ways.items() if other != way},
            _tests_below(entry.tests, way),
            entry.places * len(places),
        )
        table = tables.setdefault(way, {})
        for place in places:
            table.setdefault(place, []).append(below)
    return rest, tables


def _best_way(entry: _Entry, crowd: Mapping[tuple[_Way, Hashable], int], all_: int) -> _Way | None:
    """Return the way that leads to the least crowded places; None when none leads anywhere."""
    best, least = None, (all_ + 1, 0)
    for way, places in entry.ways.items():
        if entry.places > 1 and entry.places * len(places) > _MAX_PLACES:
            continue
        most = max(crowd[way, place] for place in places)
        if most == all_ and len(places) > 1:
            continue  # everybody would stand there, and many times
        if (most, len(places)) < least:
            best, least = way, (most, len(places))
    return best


def _tests_below(tests: Conditions, way: _Way) -> Conditions:
    """Return what is yet to be tested of a rule that was sorted: not what its place says."""
    condition = tests.get(way.name)
    if condition is None or condition.not_ is not None or condition.is_ is None:
        return tests
    values = condition.is_
    if way.kind == "begins" and (
        values.exact or any(of.suffix or of.middles for of in values.globs)
    ):
        return tests
    if way.kind == "ends" and (values.exact or any(of.prefix or of.middles for of in values.globs)):
        return tests
    return {name: other for name, other in tests.items() if name != way.name}


def _ways(rule: Conditions) -> dict[_Way, Sequence[Hashable]]:
    """Return by what a rule can be sorted."""
    found: dict[_Way, Sequence[Hashable]] = {}
    for name, condition in rule.items():
        values = condition.is_
        if values is None:
            continue
        if values.networks is not None:
            tables = values.networks.tables
            found[_Way("network", name)] = [
                (length, start) for length, starts in tables.items() for start in starts
            ]
        elif not values.globs:
            found[_Way("exact", name)] = list(values.exact)
        else:
            found.update(_text_ways(name, values))
    return {way: places for way, places in found.items() if 0 < len(places) <= _MAX_VALUES}


def _text_ways(name: str, values: Values) -> dict[_Way, Sequence[Hashable]]:
    begins = {*values.exact, *(glob.prefix for glob in values.globs)}
    ends = {text[::-1] for text in (*values.exact, *(glob.suffix for glob in values.globs))}
    found: dict[_Way, Sequence[Hashable]] = {}
    # Every text begins with nothing, and ends with it.
    if "" not in begins:
        found[_Way("begins", name)] = list(begins)
    if "" not in ends:
        found[_Way("ends", name)] = list(ends)
    return found


def _by_length(table: Mapping[Hashable, _Node]) -> dict[tuple[int, int], dict[int, _Node]]:
    """Return networks by their version and length: an address is looked up once for each."""
    found: dict[tuple[int, int], dict[int, _Node]] = {}
    places: Mapping[Any, _Node] = table  # as `_ways` made them
    for (length, start), node in places.items():
        found.setdefault(length, {})[start] = node
    return found


class _Prefixes:
    """Texts, and a node for each; finds those that a value begins with.

    In order, all texts that a value begins with stand before it, and the nearest text before it
    begins with each of them: so they are that text, or found by going from each text to the longest
    other that it begins with.
    """

    __slots__ = ("_nodes", "_shorter", "_texts")

    def __init__(self, nodes: Mapping[Hashable, _Node]) -> None:
        self._texts = sorted(map(str, nodes))
        self._nodes = [nodes[text] for text in self._texts]
        self._shorter: list[int] = []
        for number, text in enumerate(self._texts):
            before = number - 1
            while before >= 0 and not text.startswith(self._texts[before]):
                before = self._shorter[before]
            self._shorter.append(before)

    def follow(self, value: str, nodes: list[_Node]) -> None:
        """Add the nodes of the texts that a value begins with."""
        number = bisect_right(self._texts, value) - 1
        while number >= 0:
            if value.startswith(self._texts[number]):
                nodes.append(self._nodes[number])
            number = self._shorter[number]
