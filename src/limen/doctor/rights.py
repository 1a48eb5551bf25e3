"""The rights that a user of the store needs, read from the scripts. Pure.

They are those of the library, or those of `limen serve`, which also shares rules, the kill switch
and insight over the store.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

from limen.backends.redis import script
from limen.connect.address import Kind
from limen.keys import rules_channel

Role = Literal["library", "service"]
"""The user of the store: a limiter in a program, or `limen serve`."""

USER = "limen"
"""The user in the line. Not the user of the URL, because the line resets all rights."""
SENTINEL_LINE = f"ACL SETUSER {USER} reset on >PASSWORD +sentinel|get-master-addr-by-name"
"""The command that makes a user with the right to ask a sentinel for the primary."""

_INSIDE = re.compile(r"""redis\.p?call\(\s*["']([A-Za-z]+)["']""")
_SENT_BY_SERVICE = (
    "PING",
    "PUBLISH",
    "SUBSCRIBE",
    "GETRANGE",
    "HDEL",
    "HMGET",
    "HSTRLEN",
    "HVALS",
    "SET",
    "ZREM",
)
"""Commands that `limen serve` sends besides decisions, outside of its scripts."""
_MOST_ARGUMENTS = 4
_TRY_LPUSH = """
redis.call('SET', KEYS[1], '1', 'PX', 1000)
return redis.pcall('LPUSH', KEYS[1], '1')
"""


def inner_commands() -> list[str]:
    """Return the commands in the script: `["DEL", "EXISTS", ...]`."""
    return sorted(set(_INSIDE.findall(script.text())))


def needed_commands(kind: Kind, database: int, role: Role = "library") -> list[str]:
    """Return every command that a limiter or a service sends to such a store, and those of scripts.

    For a service, this needs the packages of rules.
    """
    sent = ["EVALSHA", "EVAL", "SCRIPT EXISTS", "SCRIPT LOAD", "INFO"]
    if kind == "cluster":
        sent += ["CLUSTER SLOTS", "ASKING"]
    if kind == "sentinel":
        sent.append("ROLE")
    if database:
        sent.append("SELECT")
    if role == "library":
        return sent + inner_commands()
    from limen.observe import board
    from limen.rules.sync import cache

    scripts = "".join((*cache.SCRIPTS, *board.SCRIPTS))
    inside = {*inner_commands(), *_INSIDE.findall(scripts), *_SENT_BY_SERVICE}
    return sent + sorted(inside)


def acl_line(namespace: str, commands: Collection[str]) -> str:
    """Return the command that makes a user with these rights and no others."""
    # In Redis 6.2, `reset` leaves all channels open.
    return f"ACL SETUSER {USER} reset resetchannels on >PASSWORD {_allowing(namespace, commands)}"


def grant_line(user: str, namespace: str, commands: Collection[str]) -> str:
    """Return the command that gives a user these rights, and leaves it the others."""
    return f"ACL SETUSER {user} {_allowing(namespace, commands)}"


def attempts(command: str, key: str, database: int, channel: str) -> list[tuple[str, ...]]:
    """Return the calls that test the right to a command, to be sent until one gives a result.

    A server validates the number of arguments, then the rights, then the arguments. So a command of
    the script is sent with more arguments than it takes, then with fewer: the first number that
    fits shows the rights. Nothing is changed, because `key` is not a valid number or option. This
    needs no table of commands, which could become outdated.
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
        "INFO": ("memory",),
        "PING": (),
        "PUBLISH": (channel, "limen-doctor"),
        "SUBSCRIBE": (channel,),
        # An odd number of fields is refused after the rights, and before the write.
        "HSET": (key, key, key, key),
    }
    if command == "LPUSH":
        # Any argument is valid, so it is sent to a key of another type, which soon expires.
        return [("EVAL", _TRY_LPUSH, "1", key)]
    if command in known:
        return [(*command.split(), *known[command])]
    return [(command, *[key] * count) for count in range(_MOST_ARGUMENTS, -1, -1)]


def refusal(error: str) -> str | None:
    """Return the error if a right was refused, else an empty text; None if that is not known.

    `error` is the error of the server; empty if there was none.
    """
    if "wrong number of arg" in error.lower():
        return None
    is_refused = error.startswith("NOPERM") or "unknown command" in error or "unknown sub" in error
    # A script without the right to one of its commands has other errors.
    is_refused = is_refused or "ACL failure" in error or "can't run this command" in error
    return error if is_refused else ""


def consequence(refused: Collection[str]) -> str | None:
    """Return the consequence of these refusals; None if no decision can be made."""
    if not refused:
        return ""
    if set(refused) == {"INFO"}:
        return "it is not noticed when the server evicts limits"
    if set(refused) <= {"SCRIPT EXISTS", "SCRIPT LOAD"}:
        return "after each restart the whole script is sent along with a decision"
    if set(refused) == {"EVAL"}:
        return "after SCRIPT FLUSH decisions fail"
    return None


def is_about_keys(refused: str) -> bool:
    """Return whether a refusal is for the key, not for the command or the channel."""
    return refused.startswith("NOPERM") and " access " in refused and "channel" not in refused


def _allowing(namespace: str, commands: Collection[str]) -> str:
    words = [f"~{namespace}:*"]
    if not {"PUBLISH", "SUBSCRIBE"}.isdisjoint(commands):
        words.append(f"&{rules_channel(namespace)}")
    return " ".join([*words, *(f"+{command.lower().replace(' ', '|')}" for command in commands)])
