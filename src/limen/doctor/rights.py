"""The rights a limiter needs, read off the script itself. Pure: asks nobody."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from limen.backends.redis import script
from limen.connect.address import Kind

USER = "limen"
"""Whom the line is for. Never the user of the URL: the line would take that one's other rights."""
SENTINEL_LINE = f"ACL SETUSER {USER} reset on >PASSWORD +sentinel|get-master-addr-by-name"
"""The command that makes a user who may ask a sentinel for the primary."""

_INSIDE = re.compile(r'redis\.p?call\(\s*"([A-Za-z]+)"')
_MOST_ARGUMENTS = 4


def inner_commands() -> list[str]:
    """Return what the script runs: `["DEL", "EXISTS", ...]`."""
    return sorted(set(_INSIDE.findall(script.text())))


def needed_commands(kind: Kind, database: int) -> list[str]:
    """Return every command that a limiter sends to such a store, and that its script runs."""
    sent = ["EVALSHA", "EVAL", "SCRIPT EXISTS", "SCRIPT LOAD"]
    if kind == "cluster":
        sent += ["CLUSTER SLOTS", "ASKING"]
    if kind == "sentinel":
        sent.append("ROLE")
    if database:
        sent.append("SELECT")
    return sent + inner_commands()


def acl_line(namespace: str, commands: Iterable[str]) -> str:
    """Return the command that makes a user with these rights and no others."""
    return f"ACL SETUSER {USER} reset on >PASSWORD ~{namespace}:* {_allowing(commands)}"


def grant_line(user: str, namespace: str, commands: Iterable[str]) -> str:
    """Return the command that gives a user these rights, and leaves it the others."""
    return f"ACL SETUSER {user} ~{namespace}:* {_allowing(commands)}".rstrip()


def attempts(command: str, key: str, database: int) -> list[tuple[str, ...]]:
    """Return how to find out whether a command may be run; one after the other, until one tells.

    A server looks at the number of arguments, then at the rights, then at what the arguments say.
    So a command of the script is tried with more arguments than it takes, then with fewer: the
    first number that fits tells the rights, and nothing is changed, because `key` in every place
    makes no sense as a number or an option. This needs no table of commands, which could go stale.
    """
    known: dict[str, tuple[str, ...]] = {
        "EVALSHA": ("0" * 40, "1", key),
        "EVAL": ("return 1", "1", key),
        "SCRIPT EXISTS": ("0" * 40,),
        "SCRIPT LOAD": ("return 1",),
        "CLUSTER SLOTS": (),
        "ASKING": (),
        "ROLE": (),
        "SELECT": (str(database),),
    }
    if command in known:
        return [(*command.split(), *known[command])]
    return [(command, *[key] * count) for count in range(_MOST_ARGUMENTS, -1, -1)]


def refusal(error: str) -> str | None:
    """Return how the right was refused, nothing if it was not; None when the attempt did not tell.

    `error` is what the server replied with; empty when that was no error.
    """
    if "wrong number of arg" in error.lower():
        return None
    is_refused = error.startswith("NOPERM") or "unknown command" in error or "unknown sub" in error
    return error if is_refused else ""


def consequence(refused: Collection[str]) -> str | None:
    """Return what follows when these commands are refused; None when nothing can be decided."""
    if not refused:
        return ""
    if set(refused) <= {"SCRIPT EXISTS", "SCRIPT LOAD"}:
        return "after each restart the whole script is sent along with a decision"
    if set(refused) == {"EVAL"}:
        return "after SCRIPT FLUSH decisions fail"
    return None


def is_about_keys(refused: str) -> bool:
    """Return whether a refusal is for the key, not for the command."""
    return refused.startswith("NOPERM") and " access " in refused


def _allowing(commands: Iterable[str]) -> str:
    return " ".join(f"+{command.lower().replace(' ', '|')}" for command in commands)
