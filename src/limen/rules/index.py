"""Which of many rules a request is under, without asking each of them. Pure.

Rules are sorted by what they ask for. First by exact values: all rules that name the same
attributes share one table, from their values to those rules. What is left of each is sorted by how
a text begins, then by how it ends, then by networks. Only what remains is tested one by one. So the
time depends on how many rules fit and on how differently rules are built, not on their number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod

from limen.rules.match import Condition, read_address

Conditions = Mapping[str, Condition]
Facts = Mapping[str, str]
_Entry = tuple[int, dict[str, Condition], Conditions, int]
"""A rule's number, what is yet to be sorted by, what is yet to be tested, and in how many places
it stands."""

_FEW = 4
_MAX_EXPANDED = 1_000
_MAX_PLACES = 100


class Index:
    """Finds the numbers of the rules whose conditions a request fulfils."""

    def __init__(self, rules: Iterable[Conditions]) -> None:
        entries = [(number, dict(rule), rule, 1) for number, rule in enumerate(rules)]
        self._root = _Node(entries)

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
        self._exact: list[tuple[str | tuple[str, ...], dict[object, _Node]]] = []
        self._beginnings: list[tuple[str, _Prefixes]] = []
        self._endings: list[tuple[str, _Prefixes]] = []
        self._networks: list[tuple[str, dict[tuple[int, int], dict[int, _Node]]]] = []
        rest = list(entries)
        if len(rest) > _FEW:
            rest = self._sort_by_exact_values(rest)
            rest = self._sort_by_text(rest, self._beginnings, _beginnings)
            rest = self._sort_by_text(rest, self._endings, _endings)
            rest = self._sort_by_networks(rest)
        self.tested = [(number, tuple(tests.items())) for number, _, tests, _ in rest]
        self.branches = len(rest) < len(entries)

    def follow(self, facts: Facts, nodes: list[_Node]) -> None:
        """Add the nodes below that a request leads to."""
        get = facts.get
        for names, table in self._exact:
            values = get(names) if type(names) is str else tuple([get(name) for name in names])
            node = table.get(values)
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
        for name, tables in self._networks:
            address = read_address(get(name, ""))
            if address is None:
                continue
            version, number = address
            for (of_version, cut), starts in tables.items():
                node = starts.get(number >> cut) if of_version == version else None
                if node is not None:
                    nodes.append(node)

    def _sort_by_exact_values(self, entries: list[_Entry]) -> list[_Entry]:
        rest: list[_Entry] = []
        shapes: dict[tuple[str, ...], dict[object, list[_Entry]]] = {}
        for entry in entries:
            number, sortable, tests, places = entry
            exact = _exact_values(sortable, places)
            if not exact:
                rest.append(entry)
                continue
            names = tuple(exact)
            # These hold by the place in the table, and need no other test.
            left = {name: sortable[name] for name in sortable if name not in exact}
            tests = {name: tests[name] for name in tests if name not in exact}
            table = shapes.setdefault(names, {})
            grown = places * prod(map(len, exact.values()))
            for values in product(*exact.values()):
                place: object = values[0] if len(names) == 1 else values
                table.setdefault(place, []).append((number, left, tests, grown))
        self._exact = [
            (names[0] if len(names) == 1 else names, _nodes(table))
            for names, table in shapes.items()
        ]
        return rest

    def _sort_by_text(
        self, entries: list[_Entry], into: list[tuple[str, _Prefixes]], texts: _TextsOf
    ) -> list[_Entry]:
        rest: list[_Entry] = []
        tables: dict[str, dict[object, list[_Entry]]] = {}
        for entry in entries:
            number, sortable, tests, places = entry
            found = {name: texts(condition) for name, condition in sortable.items()}
            # The attribute whose shortest text is longest tells most.
            name = max(found, key=lambda name: min(map(len, found[name]), default=0), default="")
            grown = places * len(set(found.get(name, ())))
            too_many = places > 1 and grown > _MAX_PLACES
            if not name or not found[name] or "" in found[name] or too_many:
                rest.append(entry)
                continue
            left = {other: sortable[other] for other in sortable if other != name}
            if texts.say_all_of(sortable[name]):
                tests = {other: tests[other] for other in tests if other != name}
            table = tables.setdefault(name, {})
            for text in set(found[name]):
                table.setdefault(text, []).append((number, left, tests, grown))
        into.extend((name, _Prefixes(_nodes(table))) for name, table in tables.items())
        return rest

    def _sort_by_networks(self, entries: list[_Entry]) -> list[_Entry]:
        rest: list[_Entry] = []
        found: dict[str, dict[tuple[int, int], dict[object, list[_Entry]]]] = {}
        for entry in entries:
            number, sortable, tests, places = entry
            networks = {
                name: of.is_.networks
                for name, of in sortable.items()
                if of.is_ is not None and of.is_.networks is not None
            }
            if not networks:
                rest.append(entry)
                continue
            name, of = networks.popitem()
            left = {other: sortable[other] for other in sortable if other != name}
            if sortable[name].not_ is None:
                tests = {other: tests[other] for other in tests if other != name}
            tables = found.setdefault(name, {})
            for length, starts in of.tables.items():
                for start in starts:
                    table = tables.setdefault(length, {})
                    table.setdefault(start, []).append(
                        (number, left, tests, places * len(of.texts))
                    )
        self._networks = [
            (name, {length: _nodes(table) for length, table in tables.items()})  # type: ignore[misc]  # its places are numbers
            for name, tables in found.items()
        ]
        return rest


class _Prefixes:
    """Texts, and a node for each; finds those that a value begins with.

    In order, all texts that a value begins with stand before it, and the nearest text before it
    begins with each of them: so they are that text, or found by going from each text to the longest
    other that it begins with.
    """

    __slots__ = ("_nodes", "_shorter", "_texts")

    def __init__(self, nodes: Mapping[object, _Node]) -> None:
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


def _nodes(table: Mapping[object, Sequence[_Entry]]) -> dict[object, _Node]:
    return {place: _Node(entries) for place, entries in table.items()}


def _exact_values(conditions: Conditions, places: int) -> dict[str, frozenset[str]]:
    """Return the attributes that must be one of few exact values: as many as can be expanded."""
    found = {
        name: of.is_.exact
        for name, of in sorted(conditions.items())
        if of.is_ and not of.is_.globs and not of.is_.networks and not of.not_
    }
    while len(found) > (places == 1) and places * prod(map(len, found.values())) > _MAX_EXPANDED:
        del found[max(found, key=lambda name: len(found[name]))]
    return found


class _TextsOf:
    """What each alternative of a condition begins with; or ends with, read backwards."""

    def __init__(self, *, backwards: bool) -> None:
        self._backwards = backwards

    def __call__(self, condition: Condition) -> list[str]:
        values = condition.is_
        if values is None or not values.globs:
            return []
        if self._backwards:
            return [text[::-1] for text in (*values.exact, *(of.suffix for of in values.globs))]
        return [*values.exact, *(of.prefix for of in values.globs)]

    def say_all_of(self, condition: Condition) -> bool:
        """Return whether a condition asks for nothing but these texts."""
        values = condition.is_
        if values is None or values.exact or condition.not_ is not None:
            return False
        if self._backwards:
            return not any(of.prefix or of.middles for of in values.globs)
        return not any(of.suffix or of.middles for of in values.globs)


_beginnings = _TextsOf(backwards=False)
_endings = _TextsOf(backwards=True)
