"""Forms of the script for tests: one that is told the time, and one that numbers its replies."""

from __future__ import annotations

from struct import Struct

from limen.backends.redis import script

_TOLD_TIME = """\
local REQUESTS = #ARGV - 1
local now_us = tonumber(ARGV[#ARGV])
local TTL_MARGIN_MS = 3600000
"""
_NUMBER = """\
  local number = struct.pack(">i8i8", now_us, redis.call("INCR", KEYS[#KEYS]))
  if type(reply) == "table" then reply[3] = number else reply = reply .. number end
"""
_NUMBERED = Struct(">qq")


def timed() -> str:
    """Return the script whose last argument is the time in microseconds.

    Keys live an hour longer, so that the clock of the server has no influence.
    """
    return script.text(_TOLD_TIME)


def numbered() -> str:
    """Return the script whose last key is a counter, and whose replies end with time and number."""
    return script.text(at_reply=_NUMBER)


def split_number(reply: script.Reply) -> tuple[script.Reply, int, int]:
    """Return a reply of the numbered script without these; its time in µs; its number."""
    if isinstance(reply, list):
        return reply[:2], *_NUMBERED.unpack(reply[2])
    return reply[: -_NUMBERED.size], *_NUMBERED.unpack(reply[-_NUMBERED.size :])
