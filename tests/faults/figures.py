"""The figures that runs of faults leave behind: a line of JSON for each, to keep and to compare."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

said: list[str] = []
"""What was said in this run; `conftest` prints it at the end."""


def say(name: str, **figures: object) -> None:
    """Print the figures of one run, and append them to the file that LIMEN_FIGURES names, if any.

    Seconds are rounded to the tenth of a millisecond.
    """
    rounded = {
        key: round(each, 4) if isinstance(each, float) else each for key, each in figures.items()
    }
    line = json.dumps({"name": name, **rounded})
    said.append(line)
    sys.stdout.write(line + "\n")
    file = os.environ.get("LIMEN_FIGURES")
    if file:
        with Path(file).open("a") as figures_file:
            figures_file.write(line + "\n")
