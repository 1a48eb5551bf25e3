"""Text to plain data, YAML or JSON, with the line of every value. Knows no rules.

Of YAML's scalars only whole numbers, `true`, `false` and `null` are more than text: `no` is Norway,
`1.10` a version, `012` an id, and `12:30` a time of day, as the person who wrote it meant them.
A key that stands twice, a tag and a document nested without end are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml
from msgspec import Struct

from limen.errors import InvalidRules, Problem, shown

MAX_BYTES = 16 * 2**20
_MAX_DEPTH = 32
_MAX_VALUES = 2_000_000
_MAX_DIRECTIVES = 16
_LETTERS = 64
"""How many letters count as one value, so that aliases of long texts are no way around."""
_WHOLE_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})", re.ASCII)
_LINE_ENDS = re.compile("[\x85\u2028\u2029\ufeff]")
_YAML_LINES = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_QUOTES = {
    "'": "look at the quotes before it: within single quotes, ' is written ''",
    '"': 'look at the quotes before it: within double quotes, " is written \\"',
}
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}

Path = tuple[str | int, ...]
_Event = Any  # yaml's events are not typed


class Text:
    """What a text says, as plain data, and where it says it."""

    def __init__(self, data: Any, marks: _Mark | None) -> None:
        self.data = data
        self._marks = marks

    def line(self, path: Path) -> int | None:
        """Return the line, from 1, of the value at a path, or of the nearest that is there."""
        mark = self._marks
        if mark is None:
            return None
        line = mark.line
        for step in path:
            found = mark.within.get(step)
            if found is None:
                break
            line, mark = found.line, found
        return line


class _Mark(Struct):
    """The line where a value stands, and the marks of what is in it."""

    line: int
    size: int = 1
    within: dict[str | int, _Mark] = {}

    def add(self, step: str | int, mark: _Mark) -> None:
        """Add the mark of an item."""
        self.within[step] = mark
        self.size += mark.size

    def at(self, line: int) -> _Mark:
        """Return the same, standing in another line: where a name or an alias stands."""
        return _Mark(line, self.size, self.within)


def read(text: str, *, is_json: bool = False) -> Text:
    """Read YAML, or JSON. Raises `InvalidRules` with the line when it cannot be read."""
    if len(text) > MAX_BYTES:
        raise _unreadable(f"at most {MAX_BYTES:,} characters fit, got {len(text):,}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise _unreadable(f"{shown(text[error.start])} is half a letter", line) from None
    if is_json:
        return _read_json(text)
    return _read_yaml(text)


def write(data: Any) -> str:
    """Write plain data as YAML that `read` reads back the same."""
    return yaml.dump(data, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=100)


class _Writer(yaml.SafeDumper):
    """Writes in quotes what ends a line for YAML, and for nobody else."""


def _written(writer: _Writer, text: str) -> yaml.ScalarNode:
    style = '"' if _LINE_ENDS.search(text) else None
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style)


_Writer.add_representer(str, _written)


def _read_yaml(text: str) -> Text:
    if text.count("%TAG") > _MAX_DIRECTIVES and text.startswith("%"):
        # Its reader compares each with all before it.
        raise _unreadable("tags are not read, and need no %TAG", 1)
    try:
        return _Composer(text).document()
    except yaml.MarkedYAMLError as error:
        raise _explained(error, text) from None
    except yaml.reader.ReaderError as error:
        place = text.find(chr(error.character)) if isinstance(error.character, int) else -1
        line = text.count("\n", 0, place) + 1 if place >= 0 else None
        raise _unreadable(f"this is not YAML: {str(error).splitlines()[0]}", line) from None
    except yaml.YAMLError as error:
        raise _unreadable(f"this is not YAML: {str(error).splitlines()[0]}") from None


def _explained(error: yaml.MarkedYAMLError, text: str) -> InvalidRules:
    """Return what libyaml found, with what a person can do about it, at the line to look at."""
    problem, context = error.problem or "", error.context or ""
    opened = error.context_mark.line + 1 if error.context_mark else None
    if "quoted scalar" in context and "end of stream" in problem:
        return _unreadable("this is not YAML: the quote that opens here is not closed", opened)
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return _unreadable(f"this is not YAML: {problem or context}")
    lines = _YAML_LINES.split(text)
    here = lines[mark.line] if mark.line < len(lines) else ""
    hint = _hint(problem, context, here, mark.column)
    if opened is not None and opened <= mark.line:
        if problem.endswith(("']'", "'}'")):
            hint = f"the bracket of line {opened} is not closed"
        elif problem == "could not find expected ':'":
            hint = f"line {opened} has no ':' with a space after it"
    message = f"this is not YAML: {problem or context}"
    return _unreadable(f"{message}; {hint}" if hint else message, mark.line + 1)


def _hint(problem: str, context: str, line: str, column: int) -> str:
    """Return what to do about a problem at a column of a line; empty when nobody knows."""
    before, sign = line[:column], line[column : column + 1]
    is_first = not before.strip()
    if "alias" in context:
        return "to begin a text with '*', quote it"
    if sign == "\t" and is_first:
        return "use spaces, not tabs"
    if "cannot start any token" in problem or "directive" in context:
        sign = "%" if "directive" in context else sign
        return f"to begin a text with {shown(sign)}, quote it" if sign.isprintable() else ""
    if "unknown escape character" in problem:
        return "use single quotes"
    if sign == ":" and ("node content" in problem or "unexpected ':'" in problem):
        return "an address such as ::1 needs quotes here"
    if "mapping values are not allowed" in problem and ": " in before:
        return "a text with ': ' in it needs quotes"
    if "mapping values are not allowed" in problem:
        return "check the indentation of this line"
    if "expected key" in problem or "'-' indicator" in problem:
        if is_first:
            return "check the indentation of this line"
        return next((told for quote, told in _QUOTES.items() if quote in before), "")
    return ""


class _Composer:
    """Builds values and their lines from yaml's events.

    yaml's own composer has no limit on the depth, and a text that goes deep enough ends the
    process.
    """

    def __init__(self, text: str) -> None:
        self._events: Iterator[_Event] = yaml.parse(text, Loader=yaml.CBaseLoader)
        self._anchors: dict[str, tuple[Any, _Mark]] = {}
        self._size = 0

    def document(self) -> Text:
        data, mark = None, None
        for event in self._events:
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent) and mark is not None:
                raise _unreadable("expected one document, got a second after '---'", line)
            if isinstance(event, yaml.DocumentStartEvent):
                data, mark = self._value(next(self._events), 0)
        return Text(data, mark)

    def _value(self, event: _Event, depth: int) -> tuple[Any, _Mark]:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise _unreadable(f"the anchor *{event.anchor} is not defined above", line)
            value, mark = self._anchors[event.anchor]
            self._count(mark.size, line)
            return value, mark.at(line)
        _refuse_tag(event, line)
        if isinstance(event, yaml.ScalarEvent):
            is_plain = not event.style and event.tag is None
            value = _plain(event.value) if is_plain else event.value
            mark = _Mark(line, 1 + len(event.value) // _LETTERS)
            self._count(mark.size, line)
        else:
            if depth >= _MAX_DEPTH:
                raise _unreadable(f"nested deeper than {_MAX_DEPTH} levels", line)
            mark = _Mark(line)
            self._count(1, line)
            is_list = isinstance(event, yaml.SequenceStartEvent)
            value = self._list(mark, depth + 1) if is_list else self._mapping(mark, depth + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, mark
        return value, mark

    def _list(self, mark: _Mark, depth: int) -> list[Any]:
        values: list[Any] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            value, inner = self._value(event, depth)
            mark.add(len(values), inner)
            values.append(value)
        return values

    def _mapping(self, mark: _Mark, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            line = event.start_mark.line + 1
            if not isinstance(event, yaml.ScalarEvent):
                got = "an alias" if isinstance(event, yaml.AliasEvent) else "a list or a mapping"
                raise _unreadable(f"a key must be text, got {got}", line)
            _refuse_tag(event, line)
            name = event.value
            if name in values:
                first = mark.within[name].line
                raise _unreadable(f"the key {shown(name)} stands here and in line {first}", line)
            value, inner = self._value(next(self._events), depth)
            mark.add(name, inner.at(line))
            values[name] = value
        return values

    def _count(self, size: int, line: int) -> None:
        self._size += size
        if self._size > _MAX_VALUES:
            # Aliases of aliases double with every line.
            raise _unreadable(f"more than {_MAX_VALUES:,} values, aliases counted", line)


def _refuse_tag(event: _Event, line: int) -> None:
    if event.tag is not None and event.tag != "!":
        raise _unreadable(
            f"the tag {shown(event.tag)} is not known; to begin a text with '!', quote it", line
        )


def _plain(text: str) -> Any:
    """Return what a scalar without quotes stands for."""
    if text in _WORDS:
        return _WORDS[text]
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else text


def _read_json(text: str) -> Text:
    try:
        # A number with a point is text, as it is in YAML: then both say the same.
        data = json.loads(
            text, object_pairs_hook=_object, parse_float=str, parse_constant=_no_number
        )
    except json.JSONDecodeError as error:
        raise _unreadable(f"this is not JSON: {error.msg}", error.lineno) from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, InvalidRules):
            _read_yaml(text)  # which knows the line
            raise
        raise _unreadable("nested too deep, or a number too long, to be held") from None
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _unreadable(f"{shown(error.object[error.start])} is half a letter") from None
    try:
        # JSON is YAML, nearly always; and only YAML's reader tells the lines.
        return Text(data, _read_yaml(text)._marks)
    except InvalidRules:
        return Text(data, None)


def duplicate_key(pairs: list[tuple[str, Any]]) -> str | None:
    """Return the first key that a JSON object has twice; None when there is none."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return name
        seen.add(name)
    return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    duplicate = duplicate_key(pairs)
    if duplicate is not None:
        raise _unreadable(f"the key {shown(duplicate)} stands twice in one object")
    return dict(pairs)


def _no_number(word: str) -> NoReturn:
    raise _unreadable(f"{word} is not a number that JSON knows")


def _unreadable(message: str, line: int | None = None) -> InvalidRules:
    return InvalidRules([Problem("", message, line)])
