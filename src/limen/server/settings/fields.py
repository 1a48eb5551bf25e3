"""The settings as a list: what each is called in a file, in the environment and as a flag.

Taken from the structs themselves, so that a setting that is there is known everywhere.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from typing import Any, get_type_hints

from msgspec import Struct
from msgspec.structs import fields as struct_fields

from limen.server.settings.kinds import Kind
from limen.server.settings.model import Settings

PREFIX = "LIMEN_"
_FLAGS = {"store.url": "--store", "auth.checks": "--checks"}
"""Those that are shorter than their names."""
_MEANT = {
    "address": "bind",
    "host": "bind",
    "listen": "bind",
    "port": "bind",
    "redis": "store.url",
    "token": "auth.admin_token",
}
"""What other programs call it."""


class Field(Struct, frozen=True):
    """One setting."""

    name: str
    """What it is called in a file, with its table: `store.url`."""
    kind: Kind
    default: Any

    @property
    def group(self) -> str:
        """The table it stands in: `store`; empty for none."""
        return self.name.rpartition(".")[0]

    @property
    def variable(self) -> str:
        """What it is called in the environment: `LIMEN_STORE__URL`."""
        return PREFIX + self.name.replace(".", "__").upper()

    @property
    def file_variable(self) -> str | None:
        """The variable that names a file with the value: `LIMEN_STORE__URL_FILE`; None for most."""
        return f"{self.variable}_FILE" if self.kind.takes_file else None

    @property
    def flag(self) -> str:
        """What it is called on the command line, if it is there: `--store`, `--log-level`."""
        dashed = self.name.replace(".", "-").replace("_", "-")
        return _FLAGS.get(self.name, f"--{dashed}")

    @property
    def sentence(self) -> str:
        """What it means, on one line."""
        return _sentences()[self.name]


def _fields_of(model: type[Struct], prefix: str = "") -> Iterator[Field]:
    hints = get_type_hints(model, include_extras=True)
    for field in struct_fields(model):
        name = f"{prefix}{field.name}"
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, Struct):
            yield from _fields_of(hint, f"{name}.")
        else:
            yield Field(name, hint.__metadata__[0], field.default)


FIELDS: tuple[Field, ...] = tuple(_fields_of(Settings))
BY_NAME: dict[str, Field] = {field.name: field for field in FIELDS}
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(field.group for field in FIELDS if field.group))


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the name that was probably meant, or nothing. Case and separators do not matter."""
    names = {_plain(name): name for name in known}
    meant = names.get(_plain(_MEANT.get(_plain(word), "")))
    if meant is not None:
        return meant
    close = get_close_matches(_plain(word), names, 1)
    return names[close[0]] if close else ""


def _plain(name: str) -> str:
    words = name.lower().removeprefix(PREFIX.lower())
    return words.replace("__", "_").replace(".", "_").replace("-", "_").strip("\"'")


@cache
def _sentences() -> dict[str, str]:
    """Return the docstrings under the fields, which Python itself does not keep."""
    found = dict(_docstrings(Settings))
    for group in GROUPS:
        model = type(getattr(Settings(), group))
        found |= {f"{group}.{name}": text for name, text in _docstrings(model)}
    return found


def _docstrings(model: type[Struct]) -> Iterator[tuple[str, str]]:
    (body,) = (node for node in ast.parse(inspect.getsource(model)).body)
    assert isinstance(body, ast.ClassDef)
    for field, text in pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            yield ast.unparse(field.target), " ".join(ast.literal_eval(text.value).split())
