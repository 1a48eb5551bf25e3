"""From the descriptors of envoyproxy/ratelimit to rules that decide the same. Pure.

There, a descriptor is looked up level by level: an entry that names the value, else the first
pattern in the file that fits, else the entry without a value; and from there down, never back, even
when nothing below fits. One limit is found, or none. Here all rules that match apply. So each rule
also says what it is not: whatever an entry beside it, or beside one above it, is looked up before.
Then at most one rule fits any descriptor, and it is the one that would have been found.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from limen.errors import InvalidRules
from limen.rules.document import parse
from limen.rules.envoy.config import PERIODS, Config, Descriptor, Place, RateLimit, Reader, Remark
from limen.rules.envoy.descriptor import DESCRIPTOR, DOMAIN, layout, value_of

_LONGEST_NAME = 64
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")
_PLACE = re.compile(r"(rules|exemptions)\[(\d+)\]")

_KNOWN = "Makes the domain known, so that limits that Envoy sends in a descriptor apply."

Condition = str | dict[str, Any] | None
Way = tuple[Descriptor, ...]


class Imported(NamedTuple):
    """What came out of an import."""

    document: dict[str, Any]
    """The rules; none when there is a problem."""
    notes: tuple[Remark, ...]
    """What is not the same here, and what to do about it."""
    problems: tuple[Remark, ...]
    """What is wrong with the files."""


def import_files(files: Iterable[tuple[str, bytes]], algorithm: str = "fixed_window") -> Imported:
    """Return the rules that these files, by name and content, stand for.

    Windows are fixed, as they are there: aligned to the clock, counted from 1970-01-01 UTC. Files
    that share a domain are put together, in the order given.
    """
    problems: list[Remark] = []
    notes: list[Remark] = []
    configs = []
    for name, raw in files:
        reader = Reader(name)
        config = reader.read(raw)
        problems += reader.problems
        notes += reader.notes
        if config is not None:
            configs.append(config)
    writer = _Writer(algorithm)
    for domain, (descriptors, place) in _by_domain(configs, notes).items():
        writer.write(domain, descriptors, place)
    problems += writer.problems
    document: dict[str, Any] = {"rules": writer.rules}
    if writer.exemptions:
        document["exemptions"] = writer.exemptions
    problems += [
        remark
        for remark in _refused(document, writer)
        if not any(problem.is_within(remark) for problem in problems)
    ]
    if problems:
        return Imported({"rules": []}, (), tuple(sorted(problems, key=_by_place)))
    return Imported(document, tuple(sorted(notes + writer.notes, key=_by_place)), ())


class _Writer:
    """Writes rules, and remembers where each came from."""

    def __init__(self, algorithm: str) -> None:
        self.rules: list[dict[str, Any]] = []
        self.exemptions: list[dict[str, Any]] = []
        self.places: dict[str, list[Place]] = {"rules": [], "exemptions": []}
        """Where each came from."""
        self.problems: list[Remark] = []
        self.notes: list[Remark] = []
        self._algorithm = algorithm
        self._names: set[str] = set()

    def write(self, domain: str, descriptors: Sequence[Descriptor], place: Place) -> None:
        """Write the rules of a domain."""
        before = len(self.rules) + len(self.exemptions)
        self._write(domain, descriptors)
        if len(self.rules) + len(self.exemptions) == before:
            # Envoy may send limits of its own for a domain. They count where a rule names it.
            match = {DOMAIN: domain.replace("*", "\\*")}
            rule = {"name": self._name(domain, ()), "description": _KNOWN, "match": match}
            self.rules.append({**rule, "mode": "off"})
            self.places["rules"].append(place)

    def _write(self, domain: str, descriptors: Sequence[Descriptor]) -> None:
        for way, conditions in self._walk(descriptors, (), ()):
            limit = way[-1].limit
            if limit is None:
                continue
            if limit.unlimited:
                # No rule is about it; but whoever asks is told that somebody meant it so.
                match, _ = _matched(domain, way, conditions)
                self.exemptions.append({"name": self._name(domain, way), "match": match})
                self.places["exemptions"].append(way[-1].place)
                continue
            if limit.requests == 0 and way[-1].is_shadow:
                continue  # it would refuse everybody, and refuses nobody
            self.rules.append(self._rule(domain, way, conditions, limit))
            self.places["rules"].append(way[-1].place)

    def _walk(
        self, level: Sequence[Descriptor], above: Way, conditions: tuple[Condition, ...]
    ) -> Iterator[tuple[Way, tuple[Condition, ...]]]:
        """Yield every entry that can be reached, with the way to it and what holds on the way."""
        first: dict[tuple[str, str], Descriptor] = {}
        for entry in level:
            same = first.setdefault((entry.key, entry.value), entry)
            if same is not entry:
                where = f"the same key and value stand in {same.place}"
                self.problems.append(entry.place.remark(where))
                continue
            before = _looked_up_before(entry, level)
            hides = next((other for other in before if _hides(other, entry)), None)
            if hides is not None:
                self.notes.append(
                    entry.place.remark(
                        f"left out: never reached, since {hides.value!r} in {hides.place} is "
                        "looked up before, and fits whatever fits this"
                    )
                )
                continue
            way = (*above, entry)
            held = (*conditions, _condition(entry, before))
            yield way, held
            yield from self._walk(entry.below, way, held)

    def _rule(
        self, domain: str, way: Way, conditions: Sequence[Condition], limit: RateLimit
    ) -> dict[str, Any]:
        match, key = _matched(domain, way, conditions)
        rule: dict[str, Any] = {"name": self._name(domain, way)}
        if limit.name:
            rule["description"] = limit.name
        rule["match"] = match
        if limit.requests == 0:
            return {**rule, "mode": "block"}
        if key:
            rule["key"] = key
        rule["limits"] = f"{limit.requests}{PERIODS[limit.unit]}"
        rule["algorithm"] = self._algorithm
        if way[-1].is_shadow:
            rule["mode"] = "shadow"
        return rule

    def _name(self, domain: str, way: Way) -> str:
        """Return a name that reads like the way to the entry, and stays while that stays."""
        steps = [_cleaned(domain)]
        for entry in way:
            pattern = entry.value.replace("*", "/any/")
            steps.append("_".join(filter(None, (_cleaned(entry.key), _cleaned(pattern)))))
        name = ".".join(filter(None, steps)) or "rule"
        identity = json.dumps([domain, *((entry.key, entry.value) for entry in way)])
        digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()
        length, found = 6, name
        while len(found) > _LONGEST_NAME or found in self._names:
            found = f"{name[: _LONGEST_NAME - 1 - length]}-{digest[:length]}"
            length += 1
        self._names.add(found)
        return found


def _matched(
    domain: str, way: Way, conditions: Sequence[Condition]
) -> tuple[dict[str, Any], list[str]]:
    """Return what a request must be to come under an entry, and what is counted apart."""
    descriptor, names = layout(tuple([entry.key for entry in way]))
    match: dict[str, Any] = {DOMAIN: domain.replace("*", "\\*"), DESCRIPTOR: descriptor}
    key = []
    for name, entry, condition in zip(names, way, conditions, strict=True):
        if condition is not None:
            # A copy, lest YAML write it once and point to it.
            match[name] = copy.deepcopy(condition)
        if not entry.value or (entry.glob is not None and not entry.is_shared):
            key.append(name)
    return match, key


def _cleaned(text: str) -> str:
    return _ODD.sub("_", text).strip("_.-")


def _by_domain(
    configs: Iterable[Config], notes: list[Remark]
) -> dict[str, tuple[list[Descriptor], Place]]:
    """Return the descriptors of each domain, and where it stands first."""
    found: dict[str, tuple[list[Descriptor], Place]] = {}
    for config in configs:
        if config.domain in found:
            first = found[config.domain][1].file
            notes.append(
                config.place.remark(
                    f"added to what {first} says of {config.domain!r}, as with MERGE_DOMAIN_CONFIG"
                )
            )
        found.setdefault(config.domain, ([], config.place))[0].extend(config.descriptors)
    return found


def _looked_up_before(entry: Descriptor, level: Iterable[Descriptor]) -> list[Descriptor]:
    """Return the entries of a level that are looked up before another one, in their order."""
    if entry.is_exact:
        return []
    found, is_earlier = [], True
    for other in level:
        is_earlier = is_earlier and other is not entry
        precedes = other.is_exact or (other.value and (is_earlier or not entry.value))
        if other.key == entry.key and precedes:
            found.append(other)
    return found


def _hides(other: Descriptor, entry: Descriptor) -> bool:
    """Return whether whatever fits an entry fits one before it: a text that ends in `*`."""
    if other.glob is None or other.glob.suffix or other.glob.middles:
        return False
    prefix = "" if entry.glob is None else entry.glob.prefix
    return prefix.startswith(other.glob.prefix)


def _condition(entry: Descriptor, before: Iterable[Descriptor]) -> Condition:
    """Return what must hold of the value: that it fits, and that nothing before it does."""
    if entry.is_exact:
        return value_of(entry.value)
    others = [
        value_of(other.value) if other.is_exact else other.value
        for other in before
        if _overlap(other, entry)
    ]
    is_ = entry.value if entry.value.strip("*") else None
    if not others:
        return is_
    not_ = others[0] if len(others) == 1 else others
    return {"not": not_} if is_ is None else {"is": is_, "not": not_}


def _overlap(other: Descriptor, entry: Descriptor) -> bool:
    """Return whether a value may fit both; of two patterns, this may say yes too often."""
    mine, its = entry.glob, other.glob
    if mine is None:
        return True
    if its is None:
        return mine.holds(other.value)
    begins = mine.prefix.startswith(its.prefix) or its.prefix.startswith(mine.prefix)
    ends = mine.suffix.endswith(its.suffix) or its.suffix.endswith(mine.suffix)
    return begins and ends


def _refused(document: dict[str, Any], writer: _Writer) -> list[Remark]:
    """Return what limen cannot hold of rules that are right there: a number or a text too long."""
    try:
        parse(document)
    except InvalidRules as error:
        found = []
        for problem in error.problems:
            at = _PLACE.match(problem.path)
            places = writer.places["rules"] + writer.places["exemptions"]
            place = Place(places[0].file, "", None)
            if at is not None:
                place = writer.places[at[1]][int(at[2])]
            found.append(place.remark(problem.message))
        return found
    return []


def _by_place(remark: Remark) -> tuple[str, int]:
    return remark.file, remark.problem.line or 0
