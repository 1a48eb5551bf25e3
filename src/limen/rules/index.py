"""Which of many rules a request is under, without asking each of them. Pure.

Rules are sorted into a tree. There are four ways to sort a rule: by an attribute's exact values, by
how a text begins, by how it ends, and by networks. At each node a rule takes the way that it shares
with the fewest others, so that what tells rules apart comes first; a rule with several values
stands in several places. A node with few rules asks each of them for what is still open. So the
time depends on how many rules fit and on how differently rules are built, not on their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from limen.model.network import read_address
from limen.rules.match import Condition

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
            for branch in node.branches:
                value = get(branch.name)
                if value is not None:
                    branch.follow(value, nodes)
        if len(found) > 1:
            # Twice, when two globs of one rule fit.
            return sorted(set(found))
        return found


class _Node:
    __slots__ = ("branches", "tested")

    def __init__(self, entries: Sequence[_Entry]) -> None:
        rest, tables = _sort(entries) if len(entries) > _FEW else (list(entries), _Tables())
        self.tested = [(entry.number, tuple(entry.tests.items())) for entry in rest]
        self.branches = [
            _Branch(way, {place: _Node(among) for place, among in table.items()})
            for way, table in tables.items()
        ]


class _Branch:
    """The nodes to which one way leads."""

    __slots__ = ("_kind", "_lengths", "_nodes", "name")

    def __init__(self, way: _Way, nodes: dict[Hashable, _Node]) -> None:
        self._kind, self.name = way
        self._nodes = nodes
        self._lengths: Any = ()
        """Of texts: how many characters they have. Of networks: version and cut."""
        places: Any = nodes  # as `_ways` made them
        if self._kind in ("begins", "ends"):
            self._lengths = sorted({len(text) for text in places})
        elif self._kind == "network":
            self._lengths = {length for length, _ in places}

    def follow(self, value: str, nodes: list[_Node]) -> None:
        """Add the nodes that a value of the attribute leads to."""
        for place in self._places(value):
            node = self._nodes.get(place)
            if node is not None:
                nodes.append(node)

    def _places(self, value: str) -> Sequence[Hashable]:
        """Return every place in which a value may stand: one for each length."""
        if self._kind == "exact":
            return (value,)
        if self._kind == "network":
            address = read_address(value)
            if address is None:
                return ()
            version, number = address
            return [
                ((version, cut), number >> cut)
                for of_version, cut in self._lengths
                if of_version == version
            ]
        size = len(value)
        if self._kind == "begins":
            return [value[:length] for length in self._lengths if length <= size]
        return [value[size - length :] for length in self._lengths if length <= size]


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
    is_decided = way.kind in ("exact", "network") and tests[way.name].not_ is None
    return {name: of for name, of in tests.items() if name != way.name} if is_decided else tests


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
            # Every text begins and ends with nothing: by that, rules cannot be told apart.
            begins = {*values.exact, *(glob.prefix for glob in values.globs)}
            ends = {*values.exact, *(glob.suffix for glob in values.globs)}
            found[_Way("begins", name)] = [] if "" in begins else list(begins)
            found[_Way("ends", name)] = [] if "" in ends else list(ends)
    return {way: places for way, places in found.items() if 0 < len(places) <= _MAX_VALUES}
