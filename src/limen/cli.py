"""The command `limen`: reads the arguments, and leaves the work to the modules it calls.

typer and rich belong to the extra `cli`. Who installed the library alone has the command all the
same, so nothing here imports them before `main` can say what is missing.
"""

import sys
from typing import TYPE_CHECKING, Annotated

from limen import __version__

if TYPE_CHECKING:
    from typer import Typer


def main() -> None:
    """Run the command line. A mistake is one line on stderr and exit code 2."""
    try:
        app = build_app()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("rich", "typer"):
            raise
        sys.exit("limen: the command line needs typer and rich: pip install 'limen[cli]'")

    import typer

    # Of all the mistakes in typing a command, typer names only this one. Its parent is any of them.
    usage_error: type[typer.BadParameter] = typer.BadParameter.__mro__[1]
    try:
        sys.exit(app(prog_name="limen", standalone_mode=False))
    except usage_error as error:
        print(f"limen: {error.format_message()} (see limen --help)", file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        sys.exit(130)


def build_app() -> "Typer":
    """Return the commands. Raises `ModuleNotFoundError` without the extra `cli`."""
    import typer

    from limen import demo, doctor
    from limen.errors import ConfigurationError

    app = typer.Typer(
        pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
    )

    def show_version(asked: bool) -> None:
        if asked:
            print(f"limen {__version__}")
            raise typer.Exit

    @app.callback(invoke_without_command=True)
    def limen(
        context: typer.Context,
        version: Annotated[
            bool,
            typer.Option(
                "--version", callback=show_version, is_eager=True, help="Print the version."
            ),
        ] = False,
    ) -> None:
        """Decide, for every request, whether it may pass.

        limen is a rate limiter, and a library first:

            from limen import Limiter
            Limiter().check("user:42", "100/minute").allowed

        This command shows what it does:

            limen demo                  every algorithm under the same traffic
            limen demo --no-animation   the same as plain text, at once
            limen doctor URL            whether a store on Redis is fit for limits
        """
        if context.invoked_subcommand is None:
            print(context.get_help())

    @app.command("demo")
    def show_demo(
        no_animation: Annotated[
            bool, typer.Option("--no-animation", help="Print the result at once.")
        ] = False,
        speed: Annotated[
            float, typer.Option(min=0.1, max=100, help="How many times as fast to move.")
        ] = 1.0,
    ) -> None:
        """Show the same traffic through every algorithm, and compare them.

        Each may let 10 requests pass in 10 seconds. A few come quietly, then
        10 right before a fixed window ends and 10 right after it, then twice
        as many as the rate allows. It ends by itself after ten seconds.

            limen demo --speed 2        in half the time
            limen demo | less           plain text, as with --no-animation
        """
        demo.run(animated=not no_animation, speed=speed)

    @app.command("doctor")
    def show_findings(
        context: typer.Context,
        url: Annotated[
            str | None,
            typer.Argument(metavar="URL", show_default=False, help="The address of the store."),
        ] = None,
        namespace: Annotated[
            str, typer.Option(help="What the keys of the limiter begin with.")
        ] = "limen",
        as_json: Annotated[
            bool, typer.Option("--json", help="Print the findings as JSON.")
        ] = False,
    ) -> None:
        """Look at a store as a limiter would use it, and say what to do.

        Connects, tries the rights, decides on a throw-away key, measures, and
        reads the settings that matter to limits. Leaves no key and no setting.

            limen doctor redis://localhost:6379
            limen doctor rediss://user:password@host:6380/1
            limen doctor redis+sentinel://host:26379,host:26380/service
            limen doctor redis+cluster://host:7000,host:7001 --json

        The exit code is 0 when nothing failed, 1 when something did, and 2
        for a URL that cannot be read.
        """
        if url is None:
            print(context.get_help())
            return
        try:
            where, findings = doctor.examine(url, namespace)
        except ConfigurationError as error:
            print(f"limen: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        if as_json:
            print(doctor.as_json(findings))
        else:
            doctor.show(where, findings)
        raise typer.Exit(1 if doctor.has_failed(findings) else 0)

    return app
