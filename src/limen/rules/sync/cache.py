"""The rules in Redis: the set that holds, its announcement, and who runs which version.

The database is where rules live; this is how they get everywhere. Every key has the tag `{rules}`,
so that in a cluster one node has them all.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from limen.connect import Target
from limen.errors import StoreError
from limen.keys import rules_channel
from limen.rules.stores import Snapshot
from limen.rules.sync import switch as switches
from limen.rules.sync.entry import MAX_BYTES, Entry, Poisoned, decode, encode
from limen.rules.sync.switch import MAX_BYTES as MAX_SWITCH_BYTES
from limen.rules.sync.switch import Switch

if TYPE_CHECKING:
    from limen.backends.redis.link import Link

TTL_S = 86_400
CLAIM_S = 3
ALIVE_S = 6
_LATER_S = 0.001
_TRIES = 20

# Writes the set if the version there, and its stamp, are those that the writer saw before it asked
# the database, or (without them) no newer version: a writer who was held up does not undo what came
# meanwhile, and of many who saw the same one writes. A key that holds something else gives way to
# anybody.
_WRITE = """
local there = redis.pcall('HGET', KEYS[1], 'version') or ''
local foreign = type(there) == 'table'
if foreign then there = '' end
local seen, version = ARGV[1], ARGV[2]
if seen ~= there then
  local old = tonumber(version) and tonumber(there) and tonumber(version) >= tonumber(there)
  if seen ~= '*' or not (there == '' or old) then return 0 end
end
if foreign then
  redis.call('DEL', KEYS[1])
elseif ARGV[6] ~= '*' and (redis.call('HGET', KEYS[1], 'stamp') or '') ~= ARGV[6] then
  return 0
end
redis.call('HSET', KEYS[1], 'version', version, 'stamp', ARGV[3], 'entry', ARGV[4])
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1
"""
# A claim that has no end, or a later one than it may have, is nobody's.
_CLAIM = """
local left = redis.call('PTTL', KEYS[1])
if left > 0 and left <= tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
# Turns the switch if nobody has since it was seen. What is no switch gives way.
_TURN = """
local there = redis.pcall('GETRANGE', KEYS[1], 0, ARGV[3])
if type(there) == 'string' and there ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""
# Takes note of one instance, forgets those that were silent for too long, counts the rest.
_BEAT = """
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('ZADD', KEYS[1], ms, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
local silent = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ms - ARGV[3])
for _, id in ipairs(silent) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return redis.call('ZCARD', KEYS[1])
"""

SCRIPTS = (_WRITE, _CLAIM, _TURN, _BEAT)
"""All scripts, for `limen doctor`, which reads off them what a user must be allowed."""


class Instance(msgspec.Struct, frozen=True):
    """A process that enforces rules, as it said itself."""

    id: str
    host: str
    pid: int
    version: str
    """The rules that it runs; empty when it has none."""
    source: str
    """Where it took them from."""
    started_at: float
    """Seconds since 1970."""
    switch_at: float = 0.0
    """When the kill switch that it follows was turned, in seconds since 1970; 0 for never."""


class Found(msgspec.Struct, frozen=True):
    """What a look at the cache brought."""

    version: bytes
    """The version there, as it stands; empty when there is none."""
    stamp: bytes
    """Which write it came with: the same version may be written again."""
    is_foreign: bool
    """Whether something else is in its place."""
    switch: bytes | None
    """The kill switch, as it was written."""


class RuleCache:
    """The rules of one namespace in one Redis."""

    def __init__(self, target: Target, namespace: str) -> None:
        # Not before it is needed: who follows a file, or turns a switch, may have no redis-py.
        from limen.backends.redis.link import Link

        self._open = partial(Link, target)
        self._link = self._open()
        self._target = target
        key = f"{namespace}:{{rules}}"
        self._entry, self._claim, self._switch = f"{key}entry", f"{key}claim", f"{key}switch"
        self._alive, self._instances = f"{key}alive", f"{key}instances"
        self._channel = rules_channel(namespace)

    @property
    def where(self) -> str:
        """The address, without a password."""
        return self._target.shown

    async def look(self) -> Found:
        """Return which version is there, and the kill switch. Cheap."""
        rules, switch = await self._link.call_all(
            ("HMGET", self._entry, "version", "stamp"),
            # One byte more than a switch may have: enough to see that it is none.
            ("GETRANGE", self._switch, "0", str(MAX_SWITCH_BYTES)),
            spare="WRONGTYPE",
        )
        is_foreign = isinstance(rules, Exception)
        version, stamp = (None, None) if is_foreign else rules
        written = switch if isinstance(switch, bytes) else None
        return Found(version or b"", stamp or b"", is_foreign, written or None)

    async def read(self) -> tuple[Entry, bytes]:
        """Return the rules that are there, and their stamp.

        Raises `Poisoned` when they are not to be believed, or not there.
        """
        # Its length first: what somebody made too large is not even fetched.
        size = await self._link.call("HSTRLEN", self._entry, "entry")
        if size > MAX_BYTES:
            raise Poisoned(f"it has {size:,} bytes, expected at most {MAX_BYTES:,}")
        version, stamp, written = await self._link.call(
            "HMGET", self._entry, "version", "stamp", "entry"
        )
        if written is None:
            raise Poisoned("it has a version and no rules")
        entry = decode(written)
        if entry.version.encode() != version:
            raise Poisoned("its rules are of another version")
        return entry, stamp or b""

    async def write(
        self, snapshot: Snapshot, seen: bytes | None = None, stamp: bytes | None = None
    ) -> bool:
        """Put rules there and announce them; return whether they were written.

        `seen` is the version that was there before the database was asked, and `stamp` which write
        of it: if it is another one by now, nothing is written. Without them, whatever is not newer
        gives way.
        """
        entry, write_id = encode(snapshot), secrets.token_hex(8)
        seen = b"*" if seen is None else seen
        stamp = b"*" if stamp is None else stamp
        arguments = (seen, snapshot.version, write_id, entry, str(TTL_S), stamp)
        done = await self._eval(_WRITE, [self._entry], *arguments)
        if done:
            await self.announce(snapshot.version)
        return bool(done)

    async def publish(
        self, snapshot: Snapshot, active_version: Callable[[], Awaitable[str]]
    ) -> None:
        """Write and announce rules that were activated in the database.

        An old version that was activated again replaces a newer one, if `active_version` still
        returns its version.
        """
        if await self.write(snapshot):
            return
        found = await self.look()
        if await active_version() == snapshot.version:
            await self.write(snapshot, seen=found.version, stamp=found.stamp)

    async def announce(self, what: str) -> None:
        """Tell everybody who listens that there is something new."""
        await self._link.call("PUBLISH", self._channel, what)

    async def claim(self, who: str) -> bool:
        """Return whether it is our turn to ask the database; everybody else relies on us."""
        for_ms = str(CLAIM_S * 1_000)
        return bool(await self._eval(_CLAIM, [self._claim], who, for_ms))

    async def turn_switch(self, switch: Switch) -> Switch:
        """Write the kill switch for every host, and announce it; return it with its final time."""
        for _ in range(_TRIES):
            seen = (await self.look()).switch
            before = switches.decode(seen)
            if before is not None and before.at >= switch.at:
                # Of a host whose clock is ahead: what is older would be followed by nobody.
                switch = msgspec.structs.replace(switch, at=before.at + _LATER_S)
            written, size = switches.encode(switch), str(MAX_SWITCH_BYTES)
            if await self._eval(_TURN, [self._switch], seen or b"", written, size):
                await self.announce("switch")
                return switch
        raise StoreError(f"{self.where}: others turn the kill switch at the same time; try again")

    async def beat(self, instance: Instance) -> int:
        """Say that we are alive, and with which rules; return how many are."""
        keys, said = [self._alive, self._instances], msgspec.json.encode(instance)
        return int(await self._eval(_BEAT, keys, instance.id, said, str(ALIVE_S * 1_000)))

    async def leave(self, instance: Instance) -> None:
        """Say that we are gone."""
        await self._link.call_all(
            ("ZREM", self._alive, instance.id), ("HDEL", self._instances, instance.id)
        )

    async def instances(self) -> list[Instance]:
        """Return who is alive, as they said themselves."""
        found = await self._link.call("HVALS", self._instances)
        instances = []
        for written in found:
            try:
                instances.append(msgspec.json.decode(written, type=Instance))
            except msgspec.DecodeError:
                continue  # of another limen, or not of limen at all
        return sorted(instances, key=lambda one: (one.host, one.pid))

    async def listen(self) -> Link:
        """Return a connection of its own on which the announcements come."""
        link = self._open()
        await link.send("SUBSCRIBE", self._channel)
        return link

    async def _eval(self, script: str, keys: Sequence[str], *arguments: str | bytes) -> Any:
        return await self._link.call("EVAL", script, str(len(keys)), *keys, *arguments)

    def close(self) -> None:
        """Let go of the connection."""
        self._link.close()
