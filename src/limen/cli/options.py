"""Options that several commands about rules have.

Those that are settings of `limen serve` have no default here: `serving.settings_of` takes the value
from limen.toml and the environment, as the service does.
"""

from typing import Annotated

import typer

_AS_SERVED = "as for limen serve"

Rules = Annotated[
    str | None,
    typer.Option(
        "--rules",
        metavar="WHERE",
        show_default=_AS_SERVED,
        help="Where rules live: sqlite:///FILE, postgresql://..., or a YAML or JSON file.",
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--rules",
        metavar="WHERE",
        show_default=_AS_SERVED,
        help="Where rules live: sqlite:///FILE or postgresql://user:password@host/database.",
    ),
]
Version = Annotated[
    int | None,
    typer.Option("--version", min=1, metavar="N", help="Another version than the active one."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Author = Annotated[
    str | None,
    typer.Option(metavar="NAME", show_default="the login name", help="Who makes the change."),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        show_default=_AS_SERVED,
        help="The Redis that the processes share.",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAME",
        show_default=_AS_SERVED,
        help="What every key in the store begins with.",
    ),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir",
        "--folder",
        metavar="DIR",
        show_default=_AS_SERVED,
        help="The data directory of the processes on this host.",
    ),
]
Comment = Annotated[str, typer.Option(metavar="TEXT", help="Why, for the history.")]
Rows = Annotated[int, typer.Option("--limit", min=1, max=1000, metavar="N", help="How many.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")]
