"""`Follower`: keeps a process on the newest good rules, from a thread of its own.

It looks every second, listens to announcements, shows that it is there, and watches the kill
switch. What goes wrong is logged and told by `status`; the last good rules stay in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Self

from msgspec import Struct

from limen import fork
from limen.connect import Target, target_of
from limen.errors import ConfigurationError, LimenError, StoreError, shown
from limen.rules.ruleset import RuleSet
from limen.rules.stores import RuleStore, source_of
from limen.rules.stores.file import FileStore
from limen.rules.sync.cache import ALIVE_S, Found, Instance, RuleCache
from limen.rules.sync.files import InstanceFile, LastGood
from limen.rules.sync.seek import Notes, Seeker, Source
from limen.rules.sync.switch import Switch, SwitchFile, decode

_BEAT_S = 2.0
_SWITCH_S = 0.5
_RETRY_S = 0.5
_GRACE_S = 1.0


class Status(Struct, frozen=True):
    """What a follower does at the moment."""

    version: str
    """The rules in force; empty when there are none yet."""
    is_loaded: bool
    """Whether rules are in force, or the store has answered that there are none."""
    source: Source
    """Where they were taken from: `cache`, `store` or `last-good`."""
    written_at: float
    """When they were written there, in seconds since 1970; how old a last good file is."""
    used_at: float
    """Since when they are in force."""
    switch: Switch
    """The kill switch of this host."""
    is_listening: bool
    """Whether announcements are heard."""
    instances: int
    """How many processes enforce rules, as far as is known."""
    trouble: dict[str, str]
    """What does not work now, by what it is about.

    `cache`: Redis does not answer. `sharing`: it takes no writes. `rules`: what is there is not
    believed. `news`: announcements are not heard. `store`, `last-good`, `switch`: as they say.
    `instance-file`: the file with the last known number of processes cannot be read or written.
    `instances`, `callback`: a function of the program's own raised, the one for that or `use`.
    """


class Follower:
    """Keeps a program on the newest rules of a store.

    ```python
    with Follower(FileStore("rules.yaml"), engine.use):
        ...
    ```

    With `redis` the rules of a database are shared by way of it: one process asks the database, the
    others follow within a second. With `folder` the last good rules outlive both, and the kill
    switch works. `on_instances` is told how many processes there are; at a start without Redis, how
    many there were according to a file in `folder`.
    """

    def __init__(
        self,
        store: RuleStore | None,
        use: Callable[[RuleSet], object],
        *,
        redis: str | None = None,
        namespace: str = "limen",
        folder: str | Path | None = None,
        interval: float = 1.0,
        ping_interval: float = 2.0,
        on_instances: Callable[[int], object] | None = None,
    ) -> None:
        for name, value in (("interval", interval), ("ping_interval", ping_interval)):
            if not 0 < value < 86_400:
                raise ConfigurationError(
                    f"{name} must be seconds above 0 and below a day, got {shown(value)}"
                )
        if store is None and redis is None:
            raise ConfigurationError("rules come from a store, from Redis, or both: give one")
        self._target: Target | None = None
        if redis is not None:
            self._target = target_of(redis, asynchronous=True)
        self._namespace = namespace
        # A file is each host's own: what one host says in it is not for the others.
        self._shares = not isinstance(store, FileStore)
        self._notes = Notes()
        source = f"redis:{namespace}" if store is None else source_of(store)
        last_good = None if folder is None else LastGood(folder, source)
        self._seeker = Seeker(store, last_good, use, self._notes)
        self.switch_file: SwitchFile | None = None if folder is None else SwitchFile(folder)
        """The kill switch of this host; None without `folder`. To turn it here takes effect in
        this process also when the file cannot be written."""
        self._switch = self._switch_seen = Switch()
        self._interval = interval
        self._ping_interval = ping_interval
        self._on_instances = on_instances
        self._instance_file: InstanceFile | None = None
        if folder is not None and redis is not None:
            self._instance_file = InstanceFile(folder)
        self._instances = 1
        self._has_counted = False
        """Whether Redis has said how many there are."""
        self._counts: list[tuple[float, int]] = []
        """How many were counted of late, and when."""
        self._told = ("", 0.0)
        """The version and the kill switch that the others were last told."""
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self.after_fork()
        fork.watch(self)

    def after_fork(self) -> None:
        """Make anew what two processes must not share, and follow on. Not for you to call."""
        was_following, is_ready = self._thread is not None, self._ready.is_set()
        self._id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._started_at = time.time()
        self._is_listening = False
        self._asking: asyncio.Task[None] | None = None
        self._seeker.forget_tasks()
        if self.switch_file is not None:
            self.switch_file.after_fork()
        self._ready = threading.Event()
        if is_ready:
            self._ready.set()
        self._closing = threading.Event()
        self._wake: Callable[[], object] | None = None
        # The thread itself did not come along.
        self._thread = None
        if was_following:
            self.start()

    @property
    def status(self) -> Status:
        """What is in force, from where, and what does not work. Any thread may ask."""
        seeker = self._seeker
        return Status(
            seeker.version,
            seeker.is_loaded,
            seeker.source,
            seeker.written_at,
            seeker.used_at,
            self._switch,
            self._is_listening,
            self._instances,
            self._notes.trouble,
        )

    def start(self) -> None:
        """Begin to follow. The first look is at once."""
        if self._thread is None:
            self._closing.clear()
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._follow()), name="limen-rules", daemon=True
            )
            self._thread.start()

    def wait(self, timeout: float = 5.0) -> Status:
        """Wait until rules are in force. Raises `StoreError` when there are none in time."""
        if not self._ready.wait(timeout):
            reasons = "; ".join(self._notes.trouble.values()) or "there are none yet"
            raise StoreError(f"no rules in {timeout:g} s: {reasons}")
        return self.status

    def close(self) -> None:
        """Stop following, and wait until the last look is over."""
        self._closing.set()
        if self._wake is not None:
            self._wake()
        if self._thread is not None:
            self._thread.join()
            self._thread = self._wake = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _follow(self) -> None:
        news, cache = asyncio.Event(), None
        if self._target is not None:
            cache = RuleCache(self._target, self._namespace)
        loops = [self._every(self._interval, lambda: self._look(cache), news)]
        if self.switch_file is not None:
            # Before the rules, as in `_look`.
            await self._watch_switch(self.switch_file)
            loops.append(self._every(_SWITCH_S, partial(self._watch_switch, self.switch_file)))
            loops.append(self._every(_SWITCH_S, partial(self._save_switch, self.switch_file)))
        if self._instance_file is not None:
            # Before the rules: the first decision may have to be made without the store.
            self._recall_instances(self._instance_file)
            loops.append(self._every(_BEAT_S, partial(self._keep_instances, self._instance_file)))
        if cache is not None:
            beat = partial(self._beat, cache)
            loops += [self._listen(cache, news), self._every(_BEAT_S, beat)]
        tasks = [asyncio.create_task(loop) for loop in loops]
        await self._until_closed()
        await _call_off(tasks)
        if self._asking is not None:
            # A database that answers does so soon; and drivers do not like to be interrupted.
            await asyncio.wait([self._asking], timeout=_GRACE_S)
            await _call_off([self._asking])
        await self._seeker.close()
        if cache is not None:
            with contextlib.suppress(LimenError):
                await cache.leave(self.instance)
            cache.close()

    async def _until_closed(self) -> None:
        closed, loop = asyncio.Event(), asyncio.get_running_loop()
        self._wake = lambda: loop.call_soon_threadsafe(closed.set)
        if not self._closing.is_set():
            await closed.wait()

    async def _every(
        self,
        seconds: float,
        work: Callable[[], Awaitable[object]],
        news: asyncio.Event | None = None,
    ) -> None:
        """Call `work` repeatedly: after so many seconds, or when there is news."""
        news, failed = news or asyncio.Event(), False
        while True:
            news.clear()
            try:
                await work()
            except Exception as error:  # unexpected, such as a reply of another type: continue
                self._notes.complain("callback", f"{type(error).__name__}: {error}")
                failed = True
            else:
                if failed:  # only by this loop: the topic is shared
                    self._notes.settle("callback")
                failed = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await news.wait()

    async def _look(self, cache: RuleCache | None) -> None:
        found = None if cache is None else await self._seeker.look(cache)
        if cache is not None and found is not None:
            # Before the rules: whoever starts with the switch on refuses nobody at all.
            switch = decode(found.switch)
            if switch is not None:
                self._take_switch(switch)
            if self._shares:
                await self._seeker.take(cache, found)
        # Not waited for: a database that hangs holds up neither the cache nor the switch.
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(cache, found))
        await self._tell(cache)

    async def _ask(self, cache: RuleCache | None, found: Found | None) -> None:
        await self._seeker.ask(cache if self._shares else None, self._id, found)
        await self._tell(cache)

    async def _tell(self, cache: RuleCache | None) -> None:
        """Announce a change of the rules in force, or of the kill switch, before the next beat."""
        before, self._told = self._told, (self._seeker.version, self._switch.at)
        if self._told == before:
            return
        if self._seeker.version:
            self._ready.set()
        if cache is not None:
            await self._beat(cache)

    async def _watch_switch(self, file: SwitchFile) -> None:
        try:
            switch = file.read()
        except LimenError as error:
            self._notes.complain("switch", str(error))
            return
        if switch != self._switch_seen:
            if not self._turn(switch):
                return
            self._switch_seen = switch
        if file.is_saved:
            self._notes.settle("switch")

    async def _save_switch(self, file: SwitchFile) -> None:
        """Write the switch if it could not be written when it was turned."""
        if not file.is_saved:
            with self._notes.watch("switch"):
                # In a thread: a disk that hangs holds up nothing else.
                await asyncio.to_thread(file.write_again)

    def _take_switch(self, switch: Switch) -> None:
        """Take over a switch that was turned for all hosts, if it is newer than our own."""
        if switch.at <= self._switch.at:
            return
        if self._turn(switch) and self.switch_file is not None:
            # It holds here also when the file cannot be written; only a restart without Redis
            # would forget it.
            with self._notes.watch("switch"):
                self.switch_file.take(switch)

    def _turn(self, switch: Switch) -> bool:
        """Return whether it is turned. If not, all else goes on, and the next look tries again."""
        with self._notes.watch("kill-switch"):
            self._seeker.turn(switch)
            self._switch = switch
        return self._switch is switch

    async def _listen(self, cache: RuleCache, news: asyncio.Event) -> None:
        """Hear announcements; notice a line that is dead although nobody has cut it."""
        while True:
            link = None
            try:
                link = await cache.listen()
                awaits_pong = False
                while True:
                    said = await link.receive(self._ping_interval)
                    if said is None and awaits_pong:
                        raise StoreError(f"{cache.where}: no answer to a ping")
                    awaits_pong = said is None
                    if awaits_pong:
                        await link.send("PING")
                        continue
                    if not isinstance(said, list) or not said:
                        raise StoreError(f"{cache.where}: this is not what a subscriber is told")
                    if not self._is_listening:
                        self._is_listening = True
                        self._notes.settle("news")
                    # The first word says that we are heard: what came before it was not.
                    if said[0] in (b"message", b"subscribe"):
                        news.set()
            except (LimenError, OSError, TimeoutError) as error:
                self._is_listening = False
                self._notes.complain("news", str(error))
            finally:
                if link is not None:
                    link.close()
            await asyncio.sleep(_RETRY_S)

    @property
    def instance(self) -> Instance:
        """This process, as the others see it."""
        seeker = self._seeker
        return Instance(
            self._id,
            socket.gethostname(),
            os.getpid(),
            seeker.version,
            seeker.source,
            self._started_at,
            self._switch.at,
        )

    async def _beat(self, cache: RuleCache) -> None:
        try:
            counted = await cache.beat(self.instance)
        except LimenError:
            # The look that comes by every second says so. Who was there then is not forgotten.
            self._counts = [(time.monotonic(), self._instances)]
            return
        # A server that has just started knows only those who have beaten since. So fewer are
        # believed when nobody can be missing any more: each share would be too large.
        now = time.monotonic()
        self._counts = [each for each in self._counts if each[0] > now - ALIVE_S]
        self._counts.append((now, counted))
        self._instances = max(count for _, count in self._counts)
        self._has_counted = True
        self._tell_instances()

    def _recall_instances(self, file: InstanceFile) -> None:
        """Assume as many processes as there were last, until Redis says how many there are."""
        with self._notes.watch("instance-file"):
            self._instances = max(self._instances, file.read())
            self._counts = [(time.monotonic(), self._instances)]
            self._tell_instances()

    async def _keep_instances(self, file: InstanceFile) -> None:
        if self._has_counted:
            with self._notes.watch("instance-file"):
                await asyncio.to_thread(file.keep, self._instances)

    def _tell_instances(self) -> None:
        if self._on_instances is not None:
            with self._notes.watch("instances"):
                self._on_instances(self._instances)


async def _call_off(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
