"""Options that several commands about rules have."""

from typing import Annotated

import typer

WHERE = "sqlite:///.limen/rules.db"

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
Comment = Annotated[str, typer.Option(metavar="TEXT", help="Why, for the history.")]
Rows = Annotated[int, typer.Option("--limit", min=1, max=1000, metavar="N", help="How many.")]
