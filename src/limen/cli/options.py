"""Options that several commands about rules have."""

from pathlib import Path
from typing import Annotated

import typer

WHERE = "sqlite:///.limen/rules.db"
FOLDER = Path(".limen")

Where = Annotated[
    str,
    typer.Option(
        "--rules",
        envvar="LIMEN_RULES",
        metavar="WHERE",
        help="Where rules live: sqlite:///FILE, postgresql://..., or a YAML or JSON file.",
    ),
]
Database = Annotated[
    str,
    typer.Option(
        "--rules",
        envvar="LIMEN_RULES",
        metavar="WHERE",
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
        envvar="LIMEN_STORE__URL",
        metavar="URL",
        show_default="none",
        help="The Redis by which running processes hear of it.",
    ),
]
Namespace = Annotated[str, typer.Option(help="What the keys of the limiter begin with.")]
Folder = Annotated[
    Path,
    typer.Option(
        "--folder",
        envvar="LIMEN_DATA_DIR",
        metavar="DIR",
        help="The data folder of the processes on this host.",
    ),
]
Comment = Annotated[str, typer.Option(metavar="TEXT", help="Why, for the history.")]
Rows = Annotated[int, typer.Option("--limit", min=1, max=1000, metavar="N", help="How many.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")]
