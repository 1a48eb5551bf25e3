"""`limen rules import-envoy`: converts files to one document, with notes on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from limen.cli import output, rules_file
from limen.cli.arguments import refuse_address
from limen.errors import ConfigurationError, InvalidInput, did_you_mean
from limen.model import ALGORITHMS
from limen.rules import text
from limen.rules.envoy import import_files

_YAML = (".yaml", ".yml")


def convert(paths: Iterable[str], target: str | None, algorithm: str, *, overwrite: bool) -> int:
    """Write a configuration of envoyproxy/ratelimit as rules; return the exit code."""
    if target is not None:
        refuse_address(target)
    if algorithm not in ALGORITHMS:
        hint = did_you_mean(algorithm, ALGORITHMS) or f"; there are: {', '.join(ALGORITHMS)}"
        raise InvalidInput(f"there is no algorithm {algorithm!r}{hint}")
    files = dict(file for path in paths for file in _files(path))
    imported = import_files(files.items(), algorithm)
    for warning in imported.problems or imported.notes:
        output.print_error(str(warning))
    if imported.problems:
        output.print_error(
            f"limen: nothing was written: {output.pluralize(len(imported.problems), 'error')}"
        )
        return 1
    document = text.write(imported.document)
    if target is None:
        output.print_document(document)
    else:
        rules_file.write(target, document, overwrite=overwrite)
    rules = output.pluralize(len(imported.document["rules"]), "rule")
    notes = f", {output.pluralize(len(imported.notes), 'note')}" if imported.notes else ""
    output.print_error(f"limen: {rules} from {output.pluralize(len(files), 'file')}{notes}")
    return 0


def _files(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of a file, or of those in a folder, in order of their names.

    What begins with a dot is left out: where Kubernetes puts the files, it keeps copies there.
    """
    if path == rules_file.STDIN:
        yield rules_file.name_of(path), rules_file.read_bytes(path)
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
