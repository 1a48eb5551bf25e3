"""`limen rules import-envoy`: files in, one document out, and what there is to say on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from limen.cli import draw, place
from limen.errors import ConfigurationError, InvalidInput
from limen.model.grammar import ALGORITHMS
from limen.rules import text
from limen.rules.envoy import import_files
from limen.rules.findings import did_you_mean

_YAML = (".yaml", ".yml")


def envoy(paths: Iterable[str], output: str | None, algorithm: str) -> int:
    """Write the rules that a configuration of envoyproxy/ratelimit stands for; return the exit
    code.
    """
    if algorithm not in ALGORITHMS:
        hint = did_you_mean(algorithm, ALGORITHMS) or f"; there are: {', '.join(ALGORITHMS)}"
        raise InvalidInput(f"there is no algorithm {algorithm!r}{hint}")
    files = dict(file for path in paths for file in _files(path))
    found = import_files(files.items(), algorithm)
    for remark in found.problems or found.notes:
        draw.complain(str(remark))
    if found.problems:
        draw.complain(f"limen: nothing was written: {draw.counted(len(found.problems), 'error')}")
        return 1
    document = text.write(found.document)
    if output is None:
        draw.document(document)
    else:
        _write(output, document)
    rules = draw.counted(len(found.document["rules"]), "rule")
    notes = f", {draw.counted(len(found.notes), 'note')}" if found.notes else ""
    draw.complain(f"limen: {rules} from {draw.counted(len(files), 'file')}{notes}")
    return 0


def _files(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of a file, or of those in a folder, in order of their names.

    What begins with a dot is left out: where Kubernetes puts the files, it keeps copies there.
    """
    if path == place.STDIN:
        yield place.name_of(path), sys.stdin.buffer.read()
        return
    root = Path(path)
    names = [root]
    if root.is_dir():
        names = sorted(
            file
            for file in root.rglob("*")
            if file.suffix in _YAML
            and file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(root).parts)
        )
        if not names:
            raise ConfigurationError(f"there is no file in {path} that ends in .yaml or .yml")
    for file in names:
        try:
            yield str(file), file.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None


def _write(output: str, document: str) -> None:
    try:
        Path(output).write_text(document, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write {output}: {error.strerror}") from None
