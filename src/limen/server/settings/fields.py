"""The settings as a list, with their names in a file, the environment and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import NamedTuple, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from limen.errors import shown
from limen.masking import masked
from limen.server.settings.model import Settings, SettingsGroup
from limen.server.settings.values import Secret, SecretAddress

PREFIX = "LIMEN_"
_FLAGS = {"store.url": "--store", "auth.checks": "--checks"}
"""Flags that are shorter than the names of their settings."""
_SYNONYMS = {
    **dict.fromkeys(("address", "host", "listen", "port"), "bind"),
    "redis": "store_url",
    "token": "auth_admin_token",
}
"""Names that other programs use."""


class Field(NamedTuple):
    """One setting."""

    group: str
    """The table of the setting: `store`; empty for none."""
    key: str
    """The name inside the table: `url`."""
    info: FieldInfo
    """The type, the default and the description, as pydantic has them."""

    @property
    def name(self) -> str:
        """The name in a file, with the table: `store.url`."""
        return f"{self.group}.{self.key}" if self.group else self.key

    @property
    def variable(self) -> str:
        """The environment variable: `LIMEN_STORE__URL`."""
        return PREFIX + self.name.replace(".", "__").upper()

    @property
    def file_variable(self) -> str | None:
        """The variable that names a file with the value: `LIMEN_STORE__URL_FILE`; None for most."""
        return f"{self.variable}_FILE" if self.is_secret else None

    @property
    def flag(self) -> str:
        """The flag on the command line, if there is one: `--store`, `--log-level`."""
        dashed = self.name.replace(".", "-").replace("_", "-")
        return _FLAGS.get(self.name, f"--{dashed}")

    @property
    def is_secret(self) -> bool:
        """Whether the value is a secret, or may contain one."""
        return self.info.annotation in (Secret, SecretAddress)

    @property
    def is_list(self) -> bool:
        """Whether the value is a list, which a variable has with commas."""
        return get_origin(self.info.annotation) is tuple

    @property
    def sentence(self) -> str:
        """The description, on one line."""
        return " ".join((self.info.description or "").split())


def _fields_of(model: type[BaseModel], group: str = "") -> Iterator[Field]:
    for key, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, SettingsGroup):
            yield from _fields_of(info.annotation, key)
        else:
            yield Field(group, key, info)


FIELDS: tuple[Field, ...] = tuple(_fields_of(Settings))
BY_NAME: dict[str, Field] = {field.name: field for field in FIELDS}
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(field.group for field in FIELDS if field.group))


def unknown(name: str, place: str, known: Iterable[str]) -> str:
    """Return the error for a name that is not a setting, with a similar name if there is one."""
    names = {_plain(each): each for each in known}
    plain = _SYNONYMS.get(_plain(name), _plain(name))
    similar = get_close_matches(plain, names, 1)
    hint = f"did you mean '{names[similar[0]]}'?" if similar else "see `limen config example`"
    return f"unknown setting {masked(shown(name))} in {place}; {hint}"


def _plain(name: str) -> str:
    """Return a name without the differences between a file and the environment."""
    return name.lower().removeprefix(PREFIX.lower()).replace("__", "_").replace(".", "_")
