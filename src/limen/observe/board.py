"""What instances tell each other by way of Redis: slices, decisions of late, and who does what.

Every key is `<namespace>:{insight}...`, so that in a cluster one node has them all; each has a TTL,
and a bound on what it holds. Knows nothing of what is in a slice or a decision. Redis may hold
anything in their place: what is of another type, too many or too long is left out, and gives way.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from limen.backends.sampled import SampledLog
from limen.connect import Target
from limen.observe.recent import MAX_BYTES as MAX_SEEN_BYTES

if TYPE_CHECKING:
    from limen.backends.redis.link import Words

KEPT = 60
"""How many slices of a length are kept: those of 5 s for 5 minutes, those of 60 s for an hour."""
MAX_INSTANCES = 256
MAX_NOTICE_BYTES = 524_288
"""How long a notice for all may be."""
MAX_SLICE_BYTES = 65_536
"""How long an encoded slice may be."""
MAX_READ_BYTES = 64 * 2**20
"""How much is read at once, the same for each stretch of time: 1 MiB when it is 60 of them."""
MAX_SEEN = 5_000
SEEN_S = 3_600

_MAX_WRITTEN = 1_000
_MAX_ID = 64

# Puts an instance's slice beside those of the others.
# KEYS[1]: the slices of one stretch of time, a hash by instance.
# ARGV: instance, slice, TTL in seconds, how many instances fit.
# Reply: 1, or 0 when there is no room for another instance.
_PUT = """
local count = redis.pcall('HLEN', KEYS[1])
if type(count) == 'table' then
  redis.call('DEL', KEYS[1])
  count = 0
end
local room = count < tonumber(ARGV[4]) or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1
if room then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return room and 1 or 0
"""
# Gets the slices of all instances, as far as they fit.
# KEYS[1]: as above.
# ARGV: how many instances there may be, letters in a name, bytes in a slice, bytes in all.
# Reply: how many were left out (at least 1 when there are too many), then instance and slice of
# each of the others.
_GET = """
local count = redis.pcall('HLEN', KEYS[1])
if type(count) == 'table' or count > tonumber(ARGV[1]) then return {1} end
local name_room, room, left = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local reply = {0}
for _, instance in ipairs(redis.call('HKEYS', KEYS[1])) do
  local size = redis.call('HSTRLEN', KEYS[1], instance)
  if #instance <= name_room and size <= room and size <= left then
    left = left - size
    reply[#reply + 1] = instance
    reply[#reply + 1] = redis.call('HGET', KEYS[1], instance)
  else
    reply[1] = reply[1] + 1
  end
end
return reply
"""
# Puts decisions before the older ones.
# KEYS[1]: decisions, a list, the newest first. ARGV: index of the last that is kept, TTL in
# seconds, then the decisions, the oldest first. Reply: 1.
_PUSH = """
if type(redis.pcall('LLEN', KEYS[1])) == 'table' then redis.call('DEL', KEYS[1]) end
redis.call('LPUSH', KEYS[1], unpack(ARGV, 3))
redis.call('LTRIM', KEYS[1], 0, ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""
# Gets decisions, the newest first.
# KEYS[1]: as above. ARGV: index of the last, bytes in each. Reply: those that are not longer.
_LIST = """
-- An error has no entries.
local found = redis.pcall('LRANGE', KEYS[1], 0, ARGV[1])
local room, reply = tonumber(ARGV[2]), {}
for _, written in ipairs(found) do
  if #written <= room then reply[#reply + 1] = written end
end
return reply
"""
# Takes a claim, or extends one's own. One that would never end is nobody's.
# KEYS[1]: who has it. ARGV: who asks, for how many milliseconds. Reply: whether it is theirs now.
_CLAIM = """
local holder = redis.pcall('GET', KEYS[1])
local held = type(holder) == 'string' and redis.call('PTTL', KEYS[1]) > 0
if held and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

SCRIPTS = (_PUT, _GET, _PUSH, _LIST, _CLAIM)
"""All scripts, for `limen doctor`, which reads off them what a user must be allowed."""


class Board:
    """The board of one namespace in one Redis, as one instance writes and reads it.

    Every method is one round trip, and raises `StoreError` when Redis does not answer.
    """

    def __init__(self, target: Target, namespace: str, instance: str) -> None:
        # Not before it is needed: who keeps all in one process may have no redis-py.
        from limen.backends.redis.link import Link

        self._link = Link(target)
        self._instance = instance
        self._prefix = f"{namespace}:{{insight}}"
        self._seen = f"{self._prefix}seen"
        self._log = SampledLog(3_600.0)

    async def write(
        self, slices: Sequence[tuple[int, int, bytes]], seen: Sequence[bytes] = ()
    ) -> None:
        """Tell the others slices, each as (seconds, start, encoded), and decisions, oldest first.

        A slice takes the place of the one with the same length and start. A decision that is longer
        than others would read is not written.
        """
        commands = [self._put(seconds, start, encoded) for seconds, start, encoded in slices]
        short = [each for each in seen if len(each) <= MAX_SEEN_BYTES][-_MAX_WRITTEN:]
        if short:
            ends = (str(MAX_SEEN - 1), str(SEEN_S))
            commands.append(("EVAL", _PUSH, "1", self._seen, *ends, *short))
        if not commands:
            return
        replies = await self._link.call_all(*commands)
        if 0 in replies[: len(slices)]:
            self._log.warn(
                "full",
                f"insight: {MAX_INSTANCES} instances share their figures already; those of this "
                "one are not in the sums of the others",
            )

    async def slices(self, seconds: int, starts: Sequence[int]) -> dict[int, dict[str, bytes]]:
        """Return the slices of this length that begin at `starts`, by start and instance."""
        if not starts:
            return {}
        bounds = (MAX_INSTANCES, _MAX_ID, MAX_SLICE_BYTES, MAX_READ_BYTES // len(starts))
        words = tuple(map(str, bounds))
        replies = await self._link.call_all(
            *[("EVAL", _GET, "1", self._slices_key(seconds, start), *words) for start in starts]
        )
        if any(left_out for left_out, *_ in replies):
            self._log.warn(
                "left out", "insight: some figures in Redis are none, or too many; left out"
            )
        return {
            start: _by_instance(found) for start, (_, *found) in zip(starts, replies, strict=True)
        }

    async def seen(self, most: int) -> list[bytes]:
        """Return at most so many decisions of all instances, the newest first."""
        if most <= 0:
            return []
        last = str(min(most, MAX_SEEN) - 1)
        found: list[bytes] = await self._link.call(
            "EVAL", _LIST, "1", self._seen, last, str(MAX_SEEN_BYTES)
        )
        return found

    async def claim(self, what: str, seconds: float) -> bool:
        """Return whether this instance is to do something for all of them, for so many seconds.

        Who has the claim extends it by claiming again. When Redis loses it, as in a failover, two
        may have it for a moment.
        """
        for_ms = str(max(ceil(seconds * 1_000), 1))
        key = f"{self._prefix}claim:{what}"
        return bool(await self._link.call("EVAL", _CLAIM, "1", key, self._instance, for_ms))

    async def post(
        self, what: str, written: bytes, seconds: float, *, only_first: bool = False
    ) -> None:
        """Put up a notice for all, in place of the one before; it comes down by itself.

        With `only_first`, a notice that is there already stays.
        """
        key, for_ms = f"{self._prefix}notice:{what}", str(ceil(seconds * 1_000))
        condition = ("NX",) if only_first else ()
        if len(written) <= MAX_NOTICE_BYTES:
            await self._link.call("SET", key, written, "PX", for_ms, *condition)

    async def notice(self, what: str) -> bytes | None:
        """Return a notice; None when there is none, or it is no text."""
        # One byte more than it may have: enough to see that it is none of ours.
        command = ("GETRANGE", f"{self._prefix}notice:{what}", "0", str(MAX_NOTICE_BYTES))
        [found] = await self._link.call_all(command, spare="WRONGTYPE")
        is_one = isinstance(found, bytes) and 0 < len(found) <= MAX_NOTICE_BYTES
        return found if is_one else None

    def close(self) -> None:
        """Let go of the connection."""
        self._link.close()

    def _slices_key(self, seconds: int, start: int) -> str:
        return f"{self._prefix}{seconds}:{start}"

    def _put(self, seconds: int, start: int, encoded: bytes) -> Words:
        # Two more than are kept: clocks differ, and the last one is still being written.
        ttl_s = (KEPT + 2) * seconds
        key = self._slices_key(seconds, start)
        bounds = (str(ttl_s), str(MAX_INSTANCES))
        return ("EVAL", _PUT, "1", key, self._instance, encoded, *bounds)


def _by_instance(found: Sequence[bytes]) -> dict[str, bytes]:
    """Return slices by instance; a name that is no text is replaced, not believed."""
    return {
        name.decode(errors="replace"): written
        for name, written in zip(found[::2], found[1::2], strict=True)
    }
