"""Where settings are said: a TOML file, the environment, flags. Each is read, and none is judged.

What is no setting is a problem here, with the name that was probably meant. Secrets and paths that
may be secrets by mistake are never repeated.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from limen.errors import shown
from limen.masking import masked
from limen.server.settings.fields import BY_NAME, FIELDS, GROUPS, PREFIX, Field, nearest
from limen.server.settings.paths import is_address

FILE = "limen.toml"
"""What is read from the working directory when no file is named."""
CONFIG = "LIMEN_CONFIG"
"""The variable that names the file."""
OTHERS = (CONFIG, "LIMEN_FAULTS", "LIMEN_FIGURES")
"""Variables that are no settings: the first names the file, the others are for the tests."""
_MAX_FILE = 1_048_576
_MAX_VALUE = 65_536
_BARE = re.compile(r"[A-Za-z0-9_-]+")
# What Kubernetes sets in every pod for a service whose name begins with "limen".
_OF_KUBERNETES = re.compile(
    r"LIMEN_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)"
)
_PORT_OF_KUBERNETES = re.compile(r"(tcp|udp|sctp)://")


class Given(NamedTuple):
    """What one source says about one setting."""

    field: Field
    value: Any
    source: str
    """What `limen config show` calls it: `limen.toml`, `LIMEN_BIND`, `--bind`."""
    where: str
    """How a message about it begins: the source, and the name if that does not say it."""


def of_file(
    named: object, environ: Mapping[str, str], problems: list[str], flag_problems: list[str]
) -> list[Given]:
    """Return what the file says: the one of the flag, of the variable, or `limen.toml` if there.

    A file that the flag names and that cannot be read is a problem of the flag.
    """
    path, by = FILE, ""
    if named is not None:
        path, by = str(named), "--config: "
    elif environ.get(CONFIG):
        path, by = environ[CONFIG], f"{CONFIG}: "
    if is_address(path):
        problems.append(f"{by}expected the path of a TOML file, got an address")
        return []
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_FILE + 1)
    except (OSError, ValueError) as error:
        if by or not isinstance(error, FileNotFoundError):
            why = error.strerror if isinstance(error, OSError) else "no path"
            unread = flag_problems if named is not None else problems
            unread.append(f"{by}cannot read {shown(path)}: {why}")
        return []
    called = path if path.isprintable() else shown(path)
    document = _parsed(called, content, problems)
    return [
        Given(field, value, called, f"{called}: {field.name}")
        for field, value in _of_table(document, (), called, problems)
    ]


def _parsed(file: str, content: bytes, problems: list[str]) -> dict[str, Any]:
    if len(content) > _MAX_FILE:
        problems.append(f"{file}: expected at most {_MAX_FILE} bytes, got more")
        return {}
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError:
        problems.append(f"{file}: expected UTF-8, got other bytes")
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{file} is not TOML: {error}")
    except (ValueError, RecursionError):
        problems.append(f"{file} is not TOML: a number is too long, or something too deep")
    return {}


def _of_table(
    table: Mapping[str, Any], path: tuple[str, ...], file: str, problems: list[str]
) -> Iterator[tuple[Field, Any]]:
    for key, value in table.items():
        here = (*path, key)
        name = ".".join(word if _BARE.fullmatch(word) else f'"{word}"' for word in here)
        if name in BY_NAME:
            yield BY_NAME[name], value
        elif name in GROUPS and not isinstance(value, dict):
            inside = ", ".join(field.name for field in FIELDS if field.group == name)
            problems.append(f"{file}: {name}: expected a table with {inside}; got a value")
        elif name in GROUPS or (isinstance(value, dict) and value and len(here) == 1):
            yield from _of_table(value, here, file, problems)
        else:
            problems.append(_unknown(name, file, (*BY_NAME, *GROUPS)))


def of_environment(environ: Mapping[str, str], problems: list[str]) -> Iterator[Given]:
    """Yield what variables say, or the files that they name."""
    for field in FIELDS:
        variable, file_variable = field.variable, field.file_variable or ""
        if variable in environ and file_variable in environ:
            problems.append(f"{variable} and {file_variable} are both set; keep one")
        elif variable in environ:
            yield Given(field, field.kind.of_text(environ[variable]), variable, variable)
        elif file_variable in environ:
            text = _content(file_variable, environ[file_variable], problems)
            if text is not None:
                yield Given(field, field.kind.of_text(text), file_variable, file_variable)
    known = {each for field in FIELDS for each in (field.variable, field.file_variable) if each}
    problems += [
        _unknown(name, "the environment", known)
        for name in sorted(environ)
        if name.startswith(PREFIX)
        and name not in known
        and name not in OTHERS
        and not _is_of_kubernetes(name, environ[name])
    ]


def _content(variable: str, path: str, problems: list[str]) -> str | None:
    # The path is not repeated: it may be the secret itself, by mistake.
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_VALUE + 1)
        if len(content) > _MAX_VALUE:
            problems.append(
                f"{variable}: expected at most {_MAX_VALUE} bytes in the file it names, got more"
            )
            return None
        return content.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        problems.append(f"{variable}: cannot read the file it names: {error.strerror}")
    except ValueError:
        problems.append(f"{variable}: expected UTF-8 in the file it names, got other bytes")
    return None


def _is_of_kubernetes(name: str, value: str) -> bool:
    if name.endswith("_PORT") and _PORT_OF_KUBERNETES.match(value):
        return True
    return _OF_KUBERNETES.fullmatch(name) is not None


def of_flags(flags: Mapping[str, Any], problems: list[str]) -> Iterator[Given]:
    """Yield what flags say; None is a flag that was not given."""
    for name, value in flags.items():
        field = BY_NAME.get(name)
        if field is None:
            problems.append(_unknown(name, "the flags", BY_NAME))
        elif value is not None:
            said = os.fspath(value) if isinstance(value, os.PathLike) else value
            if isinstance(said, str):
                said = field.kind.of_text(said)
            yield Given(field, said, field.flag, field.flag)


def _unknown(name: str, where: str, known: Iterable[str]) -> str:
    meant = nearest(name, known)
    hint = f"did you mean '{meant}'?" if meant else "`limen config example` prints all there are"
    return f"unknown setting {masked(shown(name))} in {where}; {hint}"
