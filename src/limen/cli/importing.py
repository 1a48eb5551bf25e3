"""`limen rules import-envoy`: files in, one document out, and what there is to say on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from limen.cli import draw, source
from limen.cli.misplaced import refuse_address
from limen.errors import ConfigurationError, InvalidInput, did_you_mean
from limen.model.grammar import ALGORITHMS
from limen.rules import text
from limen.rules.envoy import import_files

_YAML = (".yaml", ".yml")


def envoy(paths: Iterable[str], output: str | None, algorithm: str, *, overwrite: bool) -> int:
    """Write the rules that a configuration of envoyproxy/ratelimit stands for; return the exit
    code.
    """
    if output is not None:
        refuse_address(output)
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
        source.write(output, document, overwrite=overwrite)
    rules = draw.counted(len(found.document["rules"]), "rule")
    notes = f", {draw.counted(len(found.notes), 'note')}" if found.notes else ""
    draw.complain(f"limen: {rules} from {draw.counted(len(files), 'file')}{notes}")
    return 0


def _files(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of a file, or of those in a folder, in order of their names.

    What begins with a dot is left out: where Kubernetes puts the files, it keeps copies there.
    """
    if path == source.STDIN:
        yield source.name_of(path), source.read_bytes(path)
        return
    refuse_address(path)
    try:
        for file in _named(Path(path)):
            yield str(file), file.read_bytes()
    except OSError as error:
        where = error.filename or path
        raise ConfigurationError(f"cannot read {where}: {error.strerror}") from None


def _named(root: Path) -> list[Path]:
    if not root.is_dir():
        return [root]
    names = sorted(
        file
        for file in root.rglob("*")
        if file.suffix in _YAML
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(root).parts)
    )
    if not names:
        raise ConfigurationError(f"there is no file in {root} that ends in .yaml or .yml")
    return names
