"""The command as a process of its own: missing packages, terminals, pipes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.cli.acts import (
    process,
    write,
)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("pydantic", "rules need pydantic and PyYAML"),
        ("yaml", "rules need pydantic and PyYAML"),
        ("pydantic_settings", "settings need pydantic_settings"),
        ("sqlalchemy", "rules in a database need sqlalchemy"),
        ("aiosqlite", "rules in a database need aiosqlite"),
        ("alembic", "rules in a database need alembic"),
    ],
)
def test_a_missing_extra_names_the_install_command(missing: str, said: str) -> None:
    ran = process(f"sys.modules[{missing!r}] = None", "rules", "history")
    assert ran.returncode == 1
    assert ran.stderr.decode() == (
        f"limen: {said}: pip install 'limen[cli,sql]' (from a clone: pip install '.[cli,sql]')\n"
    )


@pytest.mark.parametrize("command", ["rules instances", "explain a=b --rules rules.yaml"])
def test_a_missing_client_of_redis_names_the_install_command(tmp_path: Path, command: str) -> None:
    write(tmp_path, "rules: []\n")
    asked = (*command.split(), "--store", "redis://127.0.0.1:1")
    ran = process("sys.modules['hiredis'] = None", *asked, cwd=tmp_path)
    assert ran.returncode == 1
    assert ran.stderr.decode().endswith(
        "a store on Redis needs hiredis: pip install 'limen[cli,redis]' "
        "(from a clone: pip install '.[cli,redis]')\n"
    )
    assert b"Traceback" not in ran.stderr


def test_the_kill_switch_of_a_host_needs_no_client_of_redis(tmp_path: Path) -> None:
    gone = "sys.modules['hiredis'] = sys.modules['redis'] = None"
    assert process(gone, "kill-switch", "on", cwd=tmp_path).returncode == 0
    ran = process(gone, "kill-switch", "off", "--store", "redis://127.0.0.1:1", cwd=tmp_path)
    assert ran.returncode == 1
    assert b"the kill switch is off" in ran.stdout
    assert b"other hosts were not reached: a store on Redis needs the package" in ran.stderr


def test_other_commands_need_no_packages_of_rules() -> None:
    gone = "sys.modules.update(dict.fromkeys(['yaml', 'sqlalchemy', 'redis', 'hiredis']))"
    assert process(gone, "rules", "--help").returncode == 0
    assert process(gone, "doctor", "memory://").returncode == 0


def test_what_a_terminal_cannot_show_is_written_out(tmp_path: Path) -> None:
    write(tmp_path, "rules: [{name: a, description: café, limits: 1/s, match: {path: /é}}]\n")
    place_of = ("--rules", "rules.yaml")
    shown = process("0", "rules", "show", *place_of, cwd=tmp_path, encoding="ascii")
    assert b"path is /\\xe9" in shown.stdout
    exported = process("0", "rules", "export", *place_of, cwd=tmp_path, encoding="ascii")
    assert "café" in exported.stdout.decode("utf-8")


def test_commands_about_rules_import_nothing_of_redis_unless_they_are_told_of_one(
    tmp_path: Path,
) -> None:
    write(tmp_path, "rules: []\n")
    look = "import atexit; atexit.register(lambda: print([m for m in sys.modules if 'redis' in m]))"
    for command in ("apply rules.yaml", "show", "rollback 1", "audit", "validate rules.yaml"):
        ran = process(look, "rules", *command.split(), cwd=tmp_path)
        assert ran.returncode == 0
        assert ran.stdout.splitlines()[-1] == b"[]"


def test_standard_input_that_is_closed_is_no_question_and_no_file(tmp_path: Path) -> None:
    write(tmp_path, "rules: []\n")
    closed = "sys.stdin = None"
    applied = process(closed, "rules", "apply", "rules.yaml", cwd=tmp_path)
    assert (applied.returncode, applied.stderr) == (0, b"")
    for command in ("validate", "apply", "import-envoy"):
        ran = process(closed, "rules", command, "-", cwd=tmp_path)
        assert (ran.returncode, ran.stdout) == (2, b"")
        assert ran.stderr == b"limen: standard input is closed; name a file\n"


@pytest.mark.parametrize("command", ["rules schema", "--help", "demo", "explain --all"])
def test_a_disk_that_is_full_is_one_line(tmp_path: Path, command: str) -> None:
    write(tmp_path, "rules: []\n")
    here = ("--rules", "rules.yaml") if command.startswith("explain") else ()
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-c", "from limen.cli import main; main()", *command.split(), *here],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ran.returncode == 1
    assert ran.stderr == b"limen: cannot write: No space left on device\n"


@pytest.mark.parametrize("module", ["typer", "limen.cli.serve", "limen.rules.spec", "pydantic"])
def test_control_c_in_the_middle_of_an_import_is_silent(module: str) -> None:
    code = (
        "import builtins; found = builtins.__import__\n"
        "def interrupted(name, *more):\n"
        f"    if name == {module!r}: raise KeyboardInterrupt\n"
        "    return found(name, *more)\n"
        "builtins.__import__ = interrupted\n"
    )
    ran = process(f"exec({code!r})", "rules", "schema")
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"")


def test_a_folder_that_lets_nobody_in_is_one_line(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):  # pytest closes its folders to others
        folder.chmod(0o755)
    (tmp_path / ".limen").mkdir(mode=0o700)
    # Whatever is imported late is imported now: another user may not read our packages.
    become_nobody = (
        "import os; from limen.cli import rules_source, build_app; build_app()\n"
        "import limen.server.settings\n"
        "try: rules_source.with_store('sqlite:///none.db', lambda store: store.version())\n"
        "except Exception: pass\n"
        "os.setuid(65534) if os.getuid() == 0 else os.chmod('.limen', 0)\n"
    )
    ran = process(f"exec({become_nobody!r})", "rules", "history", cwd=tmp_path)
    (tmp_path / ".limen").chmod(0o700)
    assert ran.returncode == 1
    assert ran.stderr.decode() == (
        "limen: rules at sqlite:///.limen/rules.db: Permission denied; "
        "let this user write there, or choose another place\n"
    )


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -c 'from limen.cli import main; main()' rules schema | head -c 1"
    ran = subprocess.run(command, shell=True, capture_output=True, check=True)
    assert (ran.stdout, ran.stderr) == (b"{", b"")


@pytest.mark.parametrize(
    ("answer", "exit_code", "said"),
    [
        (b"y\n", 0, b"version 1 is active now"),
        (b"n\n", 1, b"limen: nothing was changed"),
        (b"\x03", 130, b"\r\nlimen: nothing was changed"),
        (b"\x04", 130, b"\r\nlimen: nothing was changed"),
    ],
    ids=["yes", "no", "control-c", "control-d"],
)
def test_a_question_on_a_real_terminal(
    tmp_path: Path, file: str, answer: bytes, exit_code: int, said: bytes
) -> None:
    primary, secondary = pty.openpty()
    command = [sys.executable, "-c", "from limen.cli import main; main()", "rules", "apply", file]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        start_new_session=True,
        preexec_fn=_take_terminal,
    ) as running:
        os.close(secondary)
        seen, wait_s = b"", 0.3
        try:
            # The terminal ends with the process that used it last.
            while chunk := _read(primary):
                seen += chunk
                # Not once it is understood: a Ctrl-C at the very end of a process kills it.
                while b"[y/N]: " in seen and said not in seen:
                    if select.select([primary], [], [], wait_s)[0]:
                        break
                    # Once more: Python misses a Ctrl-C that comes right before it waits for a key.
                    os.write(primary, answer)
                    wait_s = 3
            running.wait(10)
        finally:
            running.kill()
    os.close(primary)
    assert running.returncode == exit_code
    assert b"Let this hold from now on? [y/N]" in seen
    assert said in seen
    assert b"Traceback" not in seen


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # A shell that runs the tests behind itself has them, and whom they start, ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""
