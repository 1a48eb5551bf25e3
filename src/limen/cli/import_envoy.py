"""`limen rules import-envoy`: converts files to one document, with notes on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from limen.cli import options, output, rules_source
from limen.errors import ConfigurationError, InvalidInput, did_you_mean
from limen.model import ALGORITHMS

_YAML = (".yaml", ".yml")


def import_envoy(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Folders of YAML files, or files; - is stdin."),
    ],
    target: options.Output = None,
    force: options.Force = False,
    algorithm: Annotated[
        str, typer.Option(metavar="NAME", help="The algorithm of all limits.")
    ] = "fixed_window",
) -> None:
    """Convert a configuration of envoyproxy/ratelimit to rules.

    The rules decide as that service does. Differences are listed on stderr,
    by file and line, with advice. The exit
    code is 1, and nothing is written, when a file is not valid.

        limen rules import-envoy config/ --output rules.yaml
        limen rules import-envoy config/ --algorithm sliding_counter
        limen rules import-envoy edge.yaml mongo.yaml | limen rules apply -
    """
    from limen.rules import text
    from limen.rules.envoy import import_files

    if target is not None:
        options.refuse_address(target)
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
        raise typer.Exit(1)
    document = text.write(imported.document)
    if target is None:
        output.print_document(document)
    else:
        rules_source.write_file(target, document, overwrite=force)
    rules = output.pluralize(len(imported.document["rules"]), "rule")
    notes = f", {output.pluralize(len(imported.notes), 'note')}" if imported.notes else ""
    output.print_error(f"limen: {rules} from {output.pluralize(len(files), 'file')}{notes}")


def _files(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of a file, or of those in a folder, in order of their names.

    What begins with a dot is left out: where Kubernetes puts the files, it keeps copies there.
    """
    if path == rules_source.STDIN:
        yield rules_source.name_of(path), rules_source.read_bytes(path)
        return
    options.refuse_address(path)
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
