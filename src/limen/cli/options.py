"""Options that several commands about rules have.

What is not given is taken from the settings of `limen serve`, so that both mean the same place.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from limen.errors import ConfigurationError
from limen.masking import masked

WHERE = "sqlite:///.limen/rules.db"
FOLDER = Path(".limen")


def _where(given: str) -> str:
    if given != WHERE:
        return given
    from limen.server.settings import load

    return load({}).rules_place.reveal()


def _store(given: str | None) -> str | None:
    if given is not None:
        return given
    from limen.connect import is_shared
    from limen.server.settings import load

    url = load({}).store.url.reveal()
    return url if is_shared(url) else None


def _folder(given: Path) -> Path:
    if given != FOLDER:
        return given
    from limen.server.settings import load

    try:
        return load({}).data_dir
    except ConfigurationError as error:
        # The kill switch works whatever else is broken.
        print(f"limen: using {FOLDER}, because of: {masked(str(error))}", file=sys.stderr)
        return given


Where = Annotated[
    str,
    typer.Option(
        "--rules",
        envvar="LIMEN_RULES",
        callback=_where,
        metavar="WHERE",
        help="Where rules live: sqlite:///FILE, postgresql://..., or a YAML or JSON file.",
    ),
]
Database = Annotated[
    str,
    typer.Option(
        "--rules",
        envvar="LIMEN_RULES",
        callback=_where,
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
        callback=_store,
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
        callback=_folder,
        metavar="DIR",
        help="The data folder of the processes on this host.",
    ),
]
Comment = Annotated[str, typer.Option(metavar="TEXT", help="Why, for the history.")]
Rows = Annotated[int, typer.Option("--limit", min=1, max=1000, metavar="N", help="How many.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")]
