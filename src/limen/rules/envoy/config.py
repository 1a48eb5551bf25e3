"""Reads files of envoyproxy/ratelimit into descriptors. Knows its language, and no rules of limen.

Everything that is wrong is a problem, and with one of them nothing is imported. What is right there
and has no equal here is a note. Both say where, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from limen.errors import InvalidInput, InvalidRules, Problem, did_you_mean, shown
from limen.http import OPTIONAL_WHITESPACE
from limen.rules.document import decode
from limen.rules.envoy.descriptor import EMPTY
from limen.rules.findings import got, path_text, unknown_field
from limen.rules.match import Glob
from limen.rules.text import Path, Text, read

PERIODS = {
    "second": "/second",
    "minute": "/minute",
    "hour": "/hour",
    "day": "/day",
    "week": "/week",
    "month": " per 30 days",
    "year": " per 365 days",
}
"""The units, and how a limit of one is written here."""

_MOST = 2**32 - 1
_MOST_HERE = 10**9
_YES = ("true", "yes", "on", "y")
_NO = ("false", "no", "off", "n")

_FILE = ("domain", "descriptors", "name")
_LIMIT = ("unit", "requests_per_unit", "unlimited", "name", "replaces")
_DESCRIPTOR = (
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
    "metadata",
)


class Remark(NamedTuple):
    """Something to say about a file: what is wrong with it, or is not the same here."""

    file: str
    problem: Problem

    def is_within(self, other: Remark) -> bool:
        """Return whether it is about a part of what another one is about."""
        return self.file == other.file and self.problem.path.startswith(other.problem.path)

    def __str__(self) -> str:
        path, message, line = self.problem
        where = f"{self.file}:" if line is None else f"{self.file}:{line}:"
        return f"{where} {path}: {message}" if path else f"{where} {message}"


class Place(NamedTuple):
    """Where something stands: for remarks that are made later."""

    file: str
    path: str
    line: int | None

    def remark(self, message: str) -> Remark:
        """Return what there is to say about it."""
        return Remark(self.file, Problem(self.path, message, self.line))

    def __str__(self) -> str:
        return f"{self.path} of {self.file}" + ("" if self.line is None else f", line {self.line}")


class RateLimit(Struct, frozen=True):
    """How much is allowed."""

    requests: int
    unit: str
    unlimited: bool
    name: str


class Descriptor(Struct, frozen=True):
    """One entry of the tree: what it matches, what it allows, and what lies below."""

    key: str
    value: str
    """Empty for an entry that matches any value."""
    glob: Glob | None
    """The value, when it is a pattern."""
    limit: RateLimit | None
    is_shadow: bool
    is_shared: bool
    """Whether all values that fit the pattern are counted together."""
    below: tuple[Descriptor, ...]
    place: Place

    @property
    def is_exact(self) -> bool:
        """Whether it matches one value."""
        return bool(self.value) and self.glob is None


class Config(Struct, frozen=True):
    """What one file says."""

    domain: str
    descriptors: tuple[Descriptor, ...]
    place: Place


class Reader:
    """Reads one file, and collects what there is to say about it."""

    def __init__(self, file: str) -> None:
        self.problems: list[Remark] = []
        self.notes: list[Remark] = []
        self._file = file
        self._text = Text(None, None)

    def read(self, raw: bytes) -> Config | None:
        """Return what the file says. It is good for nothing if a problem was noted."""
        try:
            self._text = read(decode(raw))
        except InvalidRules as error:
            self.problems += [Remark(self._file, problem) for problem in error.problems]
            return None
        data = self._text.data
        if not isinstance(data, Mapping):
            self._wrong((), f"expected a mapping with domain and descriptors, got {got(data)}")
            return None
        self._refuse_unknown(data, (), _FILE)
        domain = self._words(data, (), "domain")
        if not domain:
            self._wrong(("domain",), "expected the name of a domain, got nothing")
            domain = self._file
        return Config(domain, self._descriptors(data, ()), self._place(("domain",)))

    def _descriptors(self, raw: Mapping[str, Any], path: Path) -> tuple[Descriptor, ...]:
        items, path = raw.get("descriptors"), (*path, "descriptors")
        if items is None:
            return ()
        if not isinstance(items, list):
            self._wrong(path, f"expected a list, got {got(items)}")
            return ()
        found = []
        for number, item in enumerate(items):
            if isinstance(item, Mapping):
                found.append(self._descriptor(item, (*path, number)))
            else:
                self._wrong((*path, number), f"expected a mapping with a key, got {got(item)}")
        return tuple(found)

    def _descriptor(self, raw: Mapping[str, Any], path: Path) -> Descriptor:
        self._refuse_unknown(raw, path, _DESCRIPTOR)
        value = self._words(raw, path, "value")
        # A value of nothing but whitespace is not empty: an empty one matches any value.
        value = value.strip(OPTIONAL_WHITESPACE) or value
        glob = self._glob(value, path)
        limit = self._rate_limit(raw, path)
        is_shadow = self._flag(raw, path, "shadow_mode")
        if is_shadow and limit is None:
            self._note((*path, "shadow_mode"), "says nothing without a rate_limit beside it")
        is_shared = self._flag(raw, path, "share_threshold")
        if is_shared and "*" not in value:
            self._wrong(
                (*path, "share_threshold"), "is for values with a '*'; remove it, or add the star"
            )
        if self._flag(raw, path, "quota_mode") and limit is not None:
            # It never refuses there either: metadata of the response names what is over.
            is_shadow = True
            self._note(
                (*path, "quota_mode"),
                "imported as mode: shadow, which refuses nobody, as there; responses carry no "
                "quotaModeViolations",
            )
        if limit is not None and limit.requests == 0 and not limit.unlimited:
            self._note(
                (*path, "rate_limit", "requests_per_unit"),
                "no rule: it would refuse everybody, and in this mode refuses nobody"
                if is_shadow
                else "imported as mode: block",
            )
        for field in ("detailed_metric", "value_to_metric"):
            if self._flag(raw, path, field):
                self._note(
                    (*path, field), "left out: verdicts name the rule and the key in any case"
                )
        if raw.get("metadata") is not None:
            self._note((*path, "metadata"), "left out: verdicts carry no metadata")
        return Descriptor(
            self._key(raw, path),
            value,
            glob,
            limit,
            is_shadow,
            is_shared,
            self._descriptors(raw, path),
            self._place(path),
        )

    def _key(self, raw: Mapping[str, Any], path: Path) -> str:
        key, path = self._words(raw, path, "key"), (*path, "key")
        if not key:
            self._wrong(path, "expected the key of an entry, got nothing")
        elif "*" in key:
            self._wrong(path, "a '*' in a key stands for many keys; name each of them")
        return key

    def _glob(self, value: str, path: Path) -> Glob | None:
        """Return the pattern that a value is, or None when it is plain."""
        if "*" not in value:
            return None
        path = (*path, "value")
        if "\\*" in value or EMPTY in value:
            self._wrong(path, f"a pattern with '\\' before '*', or with '{EMPTY}', cannot be kept")
            return None
        if "*" in value[:-1]:
            self._note(
                path,
                "every '*' stands for any characters, as in envoyproxy/ratelimit since 2026; "
                "before, only one at the end did",
            )
        try:
            return Glob(value)
        except InvalidInput as error:
            self._wrong(path, str(error))
            return None

    def _rate_limit(self, within: Mapping[str, Any], path: Path) -> RateLimit | None:
        raw, path = within.get("rate_limit"), (*path, "rate_limit")
        if raw is None:
            return None
        if not isinstance(raw, Mapping):
            self._wrong(path, f"expected a mapping with unit and requests_per_unit, got {got(raw)}")
            return None
        self._refuse_unknown(raw, path, _LIMIT)
        name = self._words(raw, path, "name")
        self._replaces(raw, path, name)
        unlimited = self._flag(raw, path, "unlimited")
        unit = self._unit(raw, (*path, "unit"), unlimited)
        if unlimited:
            self._note((*path, "unlimited"), "an exemption: what it matches is not limited")
            return RateLimit(0, unit, True, name)
        return RateLimit(self._requests(raw, (*path, "requests_per_unit")), unit, False, name)

    def _unit(self, raw: Mapping[str, Any], path: Path, unlimited: bool) -> str:
        said = raw.get("unit")
        unit = said.lower() if isinstance(said, str) else ""
        if unlimited and unit in PERIODS:
            self._wrong(path, "what is unlimited has no unit; remove one of the two")
        elif not unlimited and unit not in PERIODS:
            expected = ", ".join(PERIODS)
            self._wrong(path, f"expected {expected}, got {got(said)}{did_you_mean(unit, PERIODS)}")
        elif unit == "month":
            self._note(path, "30 days, as there; write N/month for months of the calendar")
        elif unit == "year":
            self._note(path, "365 days, as there, counted from 1970-01-01")
        return unit if unit in PERIODS else "second"

    def _requests(self, raw: Mapping[str, Any], path: Path) -> int:
        requests = raw.get("requests_per_unit")
        if type(requests) is not int or not 0 <= requests <= _MOST:
            hint = "; 0 refuses everybody" if requests is None else ""
            self._wrong(path, f"expected a number from 0 to {_MOST:,}, got {got(requests)}{hint}")
            return 1
        if requests > _MOST_HERE:
            self._note(path, f"imported as {_MOST_HERE:,}, the most that a limit holds")
        return min(requests, _MOST_HERE)

    def _replaces(self, raw: Mapping[str, Any], path: Path, name: str) -> None:
        items, path = raw.get("replaces"), (*path, "replaces")
        if items is None:
            return
        names = []
        for number, item in enumerate(items if isinstance(items, list) else [None]):
            if isinstance(item, Mapping) and tuple(item) == ("name",) and item["name"]:
                names.append(self._words(item, (*path, number), "name"))
                continue
            self._wrong(path, f"expected a list of names such as '- name: a', got {got(items)}")
            return
        if name and name in names:
            self._wrong(path, f"{shown(name)} cannot replace itself")
        elif names:
            self._note(
                path,
                f"left out: {', '.join(map(shown, names))} will apply beside this one, and the "
                "stricter of them refuses; let Envoy send one descriptor instead of both",
            )

    def _words(self, raw: Mapping[str, Any], path: Path, field: str) -> str:
        """Return a text, as Go reads one: what is no text is as it is written."""
        value = raw.get(field)
        if isinstance(value, bool):
            return "true" if value else "false"
        if value is None or isinstance(value, str | int):
            return "" if value is None else str(value)
        self._wrong((*path, field), f"expected text, got {got(value)}")
        return ""

    def _flag(self, raw: Mapping[str, Any], path: Path, field: str) -> bool:
        """Return a truth, as YAML 1.1 writes it."""
        value = raw.get(field)
        if value is None or isinstance(value, bool):
            return bool(value)
        word = value.lower() if isinstance(value, str) else ""
        if word not in _YES and word not in _NO:
            self._wrong((*path, field), f"expected true or false, got {shown(value)}")
        return word in _YES

    def _refuse_unknown(self, raw: Mapping[str, Any], path: Path, fields: Iterable[str]) -> None:
        for name in raw:
            if name in fields:
                continue
            message = unknown_field(name, fields)
            for home, known in (("rate_limit", _LIMIT), ("the descriptor", _DESCRIPTOR)):
                if name in known and fields is not known:
                    message = f"{name!r} belongs to {home}, and has no effect here"
            if name == "<<":
                message = "merging by '<<' is not read; write out what it stands for"
            self._wrong((*path, name), message)

    def _place(self, path: Path) -> Place:
        return Place(self._file, path_text(path), self._text.line(path))

    def _wrong(self, path: Path, message: str) -> None:
        self.problems.append(self._place(path).remark(message))

    def _note(self, path: Path, message: str) -> None:
        self.notes.append(self._place(path).remark(message))
