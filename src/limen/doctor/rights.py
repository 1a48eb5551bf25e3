"""The rights a limiter needs, read off the script itself. Pure: asks nobody."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from limen.backends.redis import script
from limen.connect.address import Kind

USER = "limen"
"""Whom the line is for. Never the user of the URL: the line would take that one's other rights."""

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
    """Return how to find out whether a command may be run, such that nothing is changed.

    A server looks at the number of arguments, then at the rights, then at what the arguments say.
    So a command of the script is tried with more arguments than it takes, then with fewer: the
    first number that fits tells the rights, and `key` in every place makes no sense as a number or
    an option. This needs no table of commands, which could go stale.
    """
    known: dict[str, tuple[str, ...]] = {
        "EVALSHA": ("0" * 40, "1", key),
        "EVAL": ("return 1", "1", key),
        "SCRIPT EXISTS": ("0" * 40,),
        "SCRIPT LOAD": (script.text(),),
        "CLUSTER SLOTS": (),
        "ASKING": (),
        "SELECT": (str(database),),
    }
    if command in known:
        return [(*command.split(), *known[command])]
    return [(command, *[key] * count) for count in range(_MOST_ARGUMENTS, -1, -1)]


def refusal(replies: Sequence[str]) -> str:
    """Return what the attempts say of the right: the refusal, or nothing where there is none.

    `replies` are the errors, with an empty text where there was none.
    """
    for reply in replies:
        if "wrong number of arg" in reply.lower():
            continue
        if reply.startswith("NOPERM") or "unknown command" in reply or "unknown subc" in reply:
            return reply
        return ""
    return ""


def is_about_keys(refused: str) -> bool:
    """Return whether a refusal is for the key, not for the command."""
    return refused.startswith("NOPERM") and " access " in refused


def _allowing(commands: Iterable[str]) -> str:
    return " ".join(f"+{command.lower().replace(' ', '|')}" for command in commands)
