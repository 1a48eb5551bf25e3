"""The rules in Redis: the set that holds, its announcement, and who runs which version.

The database is where rules live; this is how they get everywhere. Every key has the tag `{rules}`,
so that in a cluster one node has them all.
"""

from __future__ import annotations

from typing import Any

import msgspec

from limen.connect import Target
from limen.rules.stores import Snapshot
from limen.rules.sync.entry import MAX_BYTES, Entry, Poisoned, decode, encode
from limen.rules.sync.link import Link

TTL_S = 86_400
CLAIM_S = 3
ALIVE_S = 15

# Writes the set if the version there is the one that the writer saw before it asked the database,
# or (without one) an older one: a writer who was held up does not undo what came meanwhile.
_WRITE = """
local there = redis.call('HGET', KEYS[1], 'version') or ''
local seen, version = ARGV[1], ARGV[2]
if seen ~= there then
  local newer = tonumber(version) and tonumber(there) and tonumber(version) > tonumber(there)
  if seen ~= '*' or not (there == '' or newer) then return 0 end
end
redis.call('HSET', KEYS[1], 'version', version, 'entry', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
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


class Found(msgspec.Struct, frozen=True):
    """What a look at the cache brought."""

    version: str
    """The version there; empty when there is none."""
    switch: bytes | None
    """The kill switch, as it was written."""


class RuleCache:
    """The rules of one namespace in one Redis."""

    def __init__(self, target: Target, namespace: str) -> None:
        self._link = Link(target)
        self._target = target
        key = f"{namespace}:{{rules}}"
        self._entry, self._claim, self._switch = f"{key}entry", f"{key}claim", f"{key}switch"
        self._alive, self._instances = f"{key}alive", f"{key}instances"
        self._channel = f"{key}news"

    @property
    def where(self) -> str:
        """The address, without a password."""
        return self._target.shown

    async def look(self) -> Found:
        """Return which version is there, and the kill switch. Cheap."""
        version, switch = await self._link.call_all(
            ("HGET", self._entry, "version"), ("GET", self._switch)
        )
        return Found(_text(version), switch)

    async def read(self) -> Entry | None:
        """Return the rules that are there. Raises `Poisoned` when they are not to be believed."""
        # Its length first: what somebody made too large is not even fetched.
        size = await self._link.call("HSTRLEN", self._entry, "entry")
        if not size:
            return None
        if size > MAX_BYTES:
            raise Poisoned(f"it has {size:,} bytes, expected at most {MAX_BYTES:,}")
        written = await self._link.call("HGET", self._entry, "entry")
        return None if written is None else decode(written)

    async def write(self, snapshot: Snapshot, seen: str | None = None) -> bool:
        """Put rules there and announce them; return whether they were written.

        `seen` is the version that was there before the database was asked: if it is another one by
        now, nothing is written. Without it, whatever is older gives way.
        """
        done = await self._link.call(
            "EVAL",
            _WRITE,
            "1",
            self._entry,
            "*" if seen is None else seen,
            snapshot.version,
            encode(snapshot),
            str(TTL_S),
        )
        if done:
            await self.announce(snapshot.version)
        return bool(done)

    async def announce(self, what: str) -> None:
        """Tell everybody who listens that there is something new."""
        await self._link.call("PUBLISH", self._channel, what)

    async def claim(self, who: str) -> bool:
        """Return whether it is our turn to ask the database; everybody else relies on us."""
        said = await self._link.call("SET", self._claim, who, "NX", "PX", str(CLAIM_S * 1_000))
        return said is not None

    async def turn_switch(self, written: bytes) -> None:
        """Write the kill switch for every host, and announce it."""
        await self._link.call("SET", self._switch, written)
        await self.announce("switch")

    async def beat(self, instance: Instance) -> int:
        """Say that we are alive, and with which rules; return how many are."""
        return int(
            await self._link.call(
                "EVAL",
                _BEAT,
                "2",
                self._alive,
                self._instances,
                instance.id,
                msgspec.json.encode(instance),
                str(ALIVE_S * 1_000),
            )
        )

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
        link = Link(self._target)
        await link.send("SUBSCRIBE", self._channel)
        return link

    def close(self) -> None:
        """Let go of the connection."""
        self._link.close()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
