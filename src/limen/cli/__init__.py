"""The command `limen`: reads the arguments, and leaves the work to the modules it calls.

typer and rich belong to the extra `cli`. Who installed the library alone has the command all the
same, so nothing here imports them before `main` can say what is missing. Rules need more packages
still: their commands import them when they run.
"""

import contextlib
import errno
import io
import os
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

from limen import __version__
from limen.errors import ConfigurationError, InvalidInput, LimenError, shown
from limen.masking import masked

if TYPE_CHECKING:
    from typer import BadParameter, Typer

_EXTRAS = {
    ("rich", "typer"): ("the command line needs typer and rich", "cli"),
    ("pydantic", "yaml"): ("rules need pydantic and PyYAML", "cli,sql"),
    ("aiosqlite", "alembic", "asyncpg", "sqlalchemy"): ("rules in a database need {}", "cli,sql"),
    ("hiredis", "redis"): ("a store on Redis needs {}", "cli,redis"),
    ("fastapi", "httptools", "starlette", "uvicorn"): ("the service needs {}", "server"),
}
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_INTERRUPTED = 130
_EXPECTED = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
}


def main() -> None:
    """Run the command line. A mistake is one line on stderr and exit code 2; a failure, 1."""
    try:
        exit_code = _run()
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        # Also in the middle of an import, which takes longer than a finger.
        exit_code = _INTERRUPTED
    except ModuleNotFoundError as error:
        message = _missing(error)
        if message is None:
            raise
        exit_code = _fail(message, 1)
    except BrokenPipeError:
        # Whoever read has enough, as `head` does.
        exit_code = _give_up_writing()
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _fail(f"cannot write: {error.strerror}", 1)
        exit_code = _give_up_writing()
    sys.exit(exit_code)


def _run() -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that a terminal cannot show is no reason to fail.
            stream.reconfigure(errors="backslashreplace")
    app = build_app()

    import typer

    # Of all the mistakes in typing a command, typer names only this one. Its parent is any of them.
    usage_error: type[typer.BadParameter] = typer.BadParameter.__mro__[1]
    try:
        return int(app(prog_name="limen", standalone_mode=False) or 0)
    except usage_error as error:
        where = error.ctx.command_path if error.ctx is not None else "limen"
        return _fail(f"{_in_our_words(error)} (see {where} --help)", 2)
    except LimenError as error:
        missing = _missing(error.__cause__ or error.__context__)
        if missing is not None:
            return _fail(missing, 1)
        return _fail(str(error), 2 if isinstance(error, ConfigurationError | InvalidInput) else 1)
    except typer.Abort:
        return _INTERRUPTED


def _missing(error: BaseException | None) -> str | None:
    """Return what to do about a package that is not installed; None for any other error."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    for packages, (message, extra) in _EXTRAS.items():
        if package in packages:
            install = f"pip install 'limen[{extra}]' (from a clone: pip install '.[{extra}]')"
            return f"{message.format(package)}: {install}"
    return None


def _in_our_words(error: "BadParameter") -> str:
    """Return what was wrong with an argument as limen says it elsewhere."""
    # typer 0.29 has numbers read by pydantic, which knows what it got; before, it was in the text.
    details: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if details and details[0]["type"] in _EXPECTED:
        expected = _EXPECTED[details[0]["type"]].format(**details[0].get("ctx", {}))
        told = f"expected {expected}, got {shown(details[0]['input'])}"
        return error.format_message().replace(error.message, told)
    return re.sub(
        r"('.*') is not a valid (int|float)[a-z ]*\.",
        lambda found: f"expected {_EXPECTED[f'{found[2]}_parsing']}, got {found[1]}",
        error.format_message(),
    )


def _fail(message: str, exit_code: int) -> int:
    with contextlib.suppress(OSError):  # there may be no room for this either
        print(f"limen: {masked(message)}", file=sys.stderr)
    return exit_code


def _give_up_writing() -> int:
    """Let what is still to be written go nowhere: else Python complains of it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 1


def build_app() -> "Typer":
    """Return the commands. Raises `ModuleNotFoundError` without the extra `cli`."""
    import typer

    from limen.cli import doctor_options
    from limen.cli.config import app as config_commands
    from limen.cli.explain import show_explanation
    from limen.cli.kill_switch import app as kill_switch
    from limen.cli.rules import app as rules
    from limen.cli.serve import serve
    from limen.cli.serving import Config
    from limen.cli.tokens import app as tokens

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

        limen is a rate limiter: a service that anybody can ask, and a library.

            limen serve                 decide over HTTP, at http://localhost:8080
            limen config show           its settings, and where each comes from
            limen token create --help   let somebody ask, or manage

        It keeps rules, which say who may do how much of what:

            limen rules --help          write, check, apply and undo them
            limen explain user=42       which rules a request meets, and what is left
            limen kill-switch on        refuse nobody, at once, whatever is broken

        As a library, it is one line:

            Limiter().check("user:42", "100/minute").allowed

        And it shows what there is:

            limen demo                  every algorithm under the same traffic
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
        from limen import demo

        demo.run(animated=not no_animation, speed=speed)

    @app.command("doctor")
    def show_findings(
        context: typer.Context,
        url: Annotated[
            str | None,
            typer.Argument(metavar="URL", show_default=False, help="The address of the store."),
        ] = None,
        role: Annotated[
            str | None,
            typer.Option(
                "--for",
                metavar="library|service",
                show_default="library; without URL, service",
                help="The user of the store: a program, or limen serve.",
            ),
        ] = None,
        namespace: Annotated[
            str | None,
            typer.Option(
                metavar="NAME",
                show_default="limen; for a service, as for limen serve",
                help="What the keys of the limiter begin with.",
            ),
        ] = None,
        config: Config = None,
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
            limen doctor redis://localhost:6379 --for service
            limen doctor                the store in the settings of limen serve

        Rights are those of the library, or with --for service those of
        limen serve, which also shares rules and insight by way of the store.

        The exit code is 0 when nothing failed, 1 when something did, and 2
        for a URL that cannot be read.
        """
        store = doctor_options.chosen(context, url, role, namespace)
        if store is None:
            print(context.get_help())
            return
        from limen import doctor

        where, findings = doctor.examine(*store)
        if as_json:
            print(doctor.as_json(findings))
        else:
            doctor.show(where, findings)
        raise typer.Exit(1 if doctor.has_failed(findings) else 0)

    app.add_typer(rules, name="rules")
    app.add_typer(kill_switch, name="kill-switch")
    app.add_typer(tokens, name="token")
    app.add_typer(config_commands, name="config")
    app.command("explain")(show_explanation)
    app.command("serve")(serve)
    return app
