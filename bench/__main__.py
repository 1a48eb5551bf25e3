"""The command line: `python -m bench`, from the root of the repository."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import (
    footprint,
    frameworks,
    gateways,
    memory,
    observing,
    redis_store,
    report,
    rules,
    service,
)
from bench.harness import BenchError

_README = Path("README.md")
_SECTIONS: dict[str, Callable[[bool, Callable[[str], None]], str]] = {
    "memory": memory.run,
    "footprint": footprint.run,
    "redis": redis_store.run,
    "rules": rules.run,
    "frameworks": frameworks.run,
    "service": service.run,
    "gateways": gateways.run,
    "observing": observing.run,
}


def main(arguments: Sequence[str] | None = None, readme: Path = _README) -> int:
    """Measure, print the tables, and put them into README.md; return the exit status."""
    options = _options(arguments)
    # README.md holds a whole run at full length, or none.
    writes = not (options.no_write or options.quick or options.only)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.1f} s] {text}", file=sys.stderr, flush=True)

    try:
        if writes:
            # Now, because it would be a pity to learn it at the end.
            report.read_marked(readme)
        parts = [report.machine()]
        for name, run in _SECTIONS.items():
            if options.only in (None, name):
                parts.append(run(options.quick, say))
        tables = "\n\n".join(parts)
        print(tables)
        if writes:
            report.write_marked(readme, tables)
            say(f"written to {readme}")
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=main.__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds and keys; writes nothing"
    )
    parser.add_argument("--only", choices=tuple(_SECTIONS), help="one section; writes nothing")
    parser.add_argument("--no-write", action="store_true", help="leave README.md as it is")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
