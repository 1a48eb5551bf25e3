"""`limen explain`: what a user types. How it is asked and shown is in `account`."""

import sys
from typing import Annotated

import typer

from limen.cli import serving
from limen.cli.options import AsJson, Namespace, Rules, Store, Version
from limen.cli.serving import Config


def show_explanation(  # noqa: PLR0913  # each is something a user may type
    context: typer.Context,
    attributes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", show_default=False, help="What the request has."),
    ] = None,
    cost: Annotated[int, typer.Option(min=0, help="What the request costs.")] = 1,
    rules: Rules = None,
    version: Version = None,
    store: Store = None,
    namespace: Namespace = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also why each other rule does not apply.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", show_default="now", help="When the rules are asked."),
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Say which rules a request meets and why, and what is left of each limit.

    Nothing is counted. With the store memory:// there are no counters to look
    at: then it says what the first request of all would meet. The exit code
    is 0 also when the request would be refused.

        limen explain user=42 path=/search/a method=GET
        limen explain user=42 path=/search/a --store redis://localhost:6379
        limen explain ip=203.0.113.7 path=/login --all
        limen explain user=42 --rules rules.yaml --at 2026-12-24T18:00Z
    """
    if _is_bare(context) and any(stream and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        print(context.get_help())
        return
    from limen.cli import account, told

    settings = serving.settings_of(context)
    asked = account.Question(
        attributes or [], cost, at, settings.store.url.reveal(), settings.namespace
    )
    answer = account.answer(asked, settings.rules_place.reveal(), version)
    if as_json:
        told.show_json(answer)
    else:
        told.show(answer, show_all=show_all)


def _is_bare(context: typer.Context) -> bool:
    """Return whether nothing at all was typed: no attribute, and no option."""
    sources = [context.get_parameter_source(name) for name in context.params]
    return not any(source is not None and source.name == "COMMANDLINE" for source in sources)
