"""The command `limen`: arguments, errors and exit codes.

typer and rich belong to the extra `cli`, but the command is always installed. So they are imported
after `main` can report a missing package. Rules need more packages: their commands import them when
they run.
"""

import contextlib
import errno
import io
import os
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
    ("pydantic_settings",): ("settings need {}", "cli,sql"),
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
        # Also during an import, which takes a while.
        exit_code = _INTERRUPTED
    except ModuleNotFoundError as error:
        message = _missing(error)
        if message is None:
            raise
        exit_code = _fail(message, 1)
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does.
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
            # Characters that a terminal cannot show are escaped.
            stream.reconfigure(errors="backslashreplace")
    app = build_app()

    import typer

    # typer exports only this usage error; its parent covers all of them.
    usage_error: type[typer.BadParameter] = typer.BadParameter.__mro__[1]
    try:
        return int(app(prog_name="limen", standalone_mode=False) or 0)
    except usage_error as error:
        where = error.ctx.command_path if error.ctx is not None else "limen"
        return _fail(f"{_usage_message(error)} (see {where} --help)", 2)
    except LimenError as error:
        missing = _missing(error.__cause__ or error.__context__)
        if missing is not None:
            return _fail(missing, 1)
        return _fail(str(error), 2 if isinstance(error, ConfigurationError | InvalidInput) else 1)
    except typer.Abort:
        return _INTERRUPTED


def _missing(error: BaseException | None) -> str | None:
    """Return the install command for a missing package; None for any other error."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    for packages, (message, extra) in _EXTRAS.items():
        if package in packages:
            install = f"pip install 'limen[{extra}]' (from a clone: pip install '.[{extra}]')"
            return f"{message.format(package)}: {install}"
    return None


def _usage_message(error: "BadParameter") -> str:
    """Return the error of an argument in the wording of limen."""
    # Since typer 0.29, pydantic reads numbers and keeps the input. Before, the error is typer's.
    details: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if details and details[0]["type"] in _EXPECTED:
        expected = _EXPECTED[details[0]["type"]].format(**details[0].get("ctx", {}))
        message = f"expected {expected}, got {shown(details[0]['input'])}"
        return error.format_message().replace(error.message, message)
    return error.format_message()


def _fail(message: str, exit_code: int) -> int:
    with contextlib.suppress(OSError):  # the disk may be full
        print(f"limen: {masked(message)}", file=sys.stderr)
    return exit_code


def _give_up_writing() -> int:
    """Discard pending output; otherwise Python prints an error when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 1


def build_app() -> "Typer":
    """Return the commands. Raises `ModuleNotFoundError` without the extra `cli`."""
    import typer

    from limen.cli import config, kill_switch, rules, tokens
    from limen.cli.doctor import examine_store
    from limen.cli.explain import explain_request
    from limen.cli.serve import serve

    app = typer.Typer(
        pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
    )

    @app.callback(invoke_without_command=True)
    def limen(
        context: typer.Context,
        version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    ) -> None:
        """Decide, for every request, whether it may pass.

        limen is a rate limiter: a service for gateways and programs, and a library.

            limen serve                 decide over HTTP, at http://localhost:8080,
                                        with a dashboard at http://localhost:8082
            limen config show           its settings, and the source of each
            limen token create --help   give access to decisions or administration

        It applies rules, which set limits for requests:

            limen rules --help          write, check, apply and undo rules
            limen explain user=42       the rules of a request, and its remaining quota
            limen kill-switch on        allow all requests at once, in an emergency

        As a library, it is one line:

            Limiter().check("user:42", "100/minute").allowed

        Two commands need no service:

            limen demo                  every algorithm under the same traffic
            limen doctor URL            test whether a store on Redis is fit for limits
        """
        if version:
            print(f"limen {__version__}")
            raise typer.Exit
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
        from limen.cli.demo import run

        run(animated=not no_animation, speed=speed)

    app.command("doctor")(examine_store)
    app.add_typer(rules.app, name="rules")
    app.add_typer(kill_switch.app, name="kill-switch")
    app.add_typer(tokens.app, name="token")
    app.add_typer(config.app, name="config")
    app.command("explain")(explain_request)
    app.command("serve")(serve)
    return app
