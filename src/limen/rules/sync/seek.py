"""`Seeker`: looks for newer rules, in the cache, in the store, in the last good file.

Whatever is found is checked before it is used, and nothing that is wrong with it takes the rules in
force away. Knows no threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from limen.errors import LimenError, StoreError
from limen.rules.document import parse
from limen.rules.ruleset import RuleSet
from limen.rules.stores import RuleStore, Snapshot
from limen.rules.sync.cache import CLAIM_S, Found, RuleCache
from limen.rules.sync.entry import Poisoned
from limen.rules.sync.files import LastGood
from limen.rules.sync.switch import Switch

Source = Literal["none", "cache", "store", "last-good"]
T = TypeVar("T")
_STORE_S = 3.0
_FIRST_STORE_S = 1.0
"""How long to wait for the store at the start, where the last good rules can be used instead."""
_DISK_S = 0.2
_logger = logging.getLogger("limen")


class Notes:
    """The open problems by topic, as `Status` lists them."""

    def __init__(self) -> None:
        self._trouble: dict[str, str] = {}

    @property
    def trouble(self) -> dict[str, str]:
        """What does not work now."""
        return dict(self._trouble)

    def complain(self, about: str, reason: str) -> None:
        """Note a problem, and log it unless it is the same as before."""
        if self._trouble.get(about) != reason:
            self._trouble = {**self._trouble, about: reason}
            _logger.error("rules, %s: %s", about, reason)

    def settle(self, about: str) -> None:
        """Note that something works again."""
        if about in self._trouble:
            rest = {name: reason for name, reason in self._trouble.items() if name != about}
            self._trouble = rest
            _logger.info("rules, %s: works again", about)

    @contextmanager
    def watch(self, about: str) -> Iterator[None]:
        """Note an error that is raised inside, and continue after the block."""
        try:
            yield
        except TimeoutError:
            self.complain(about, "no answer in time")
        except LimenError as error:
            self.complain(about, str(error))
        except Exception as error:  # of a driver, or of a callback of the program
            self.complain(about, f"{type(error).__name__}: {error}")
        else:
            self.settle(about)


class Seeker:
    """Looks for rules, and puts those that are new and good in force."""

    def __init__(
        self,
        store: RuleStore | None,
        last_good: LastGood | None,
        use: Callable[[RuleSet], object],
        notes: Notes,
    ) -> None:
        self._store = store
        self._last_good = last_good
        self._use = use
        self._notes = notes
        self._rules: RuleSet | None = None
        self._is_confirmed = False
        """Whether the store has said these very rules. A number alone may be another database's."""
        self._cached: tuple[bytes, bytes] | None = None
        """The version and stamp in the cache under which the rules in force are there."""
        self._doubted: tuple[bytes, bytes] | None = None
        """The version and stamp in the cache of what is wrong, or not what the store says: it is
        not taken again."""
        self._refused: tuple[str, LimenError] | None = None
        """The version in the store that was found wrong, and what is wrong with it."""
        self._asked_at = 0.0
        self._late: set[asyncio.Task[Any]] = set()
        self._writing = asyncio.Lock()
        self._switch = Switch()
        self._covers = self._switch.covers
        """What of the rules in force is in shadow."""
        self.is_loaded: bool = False
        """Whether rules are in force, or the store has answered that there are none."""
        self.source: Source = "none"
        self.written_at: float = 0.0
        self.used_at: float = 0.0

    @property
    def version(self) -> str:
        """The rules in force; empty when there are none."""
        return "" if self._rules is None else self._rules.version

    def turn(self, switch: Switch) -> None:
        """Put what the kill switch covers into shadow, and the rest back in force."""
        # Rules that come from now on are under it, also if those in force cannot be turned.
        self._switch = switch
        if self._rules is not None and self._covers != switch.covers:
            self._use(self._rules.in_shadow(switch.covers))
            self._covers = switch.covers
            _logger.warning("the kill switch is %s", switch)

    async def look(self, cache: RuleCache) -> Found | None:
        """Return what is in the cache; None without an answer. Changes nothing."""
        with self._notes.watch("cache"):
            return await cache.look()
        return None

    async def take(self, cache: RuleCache, found: Found) -> None:
        """Use what is in the cache if it is new."""
        seen = (found.version, found.stamp)
        if seen in (self._cached, self._doubted) or self._is_behind(found.version):
            return
        with self._notes.watch("rules"):
            if found.is_foreign:
                raise Poisoned("what is in their place in Redis is something else")
            if found.version:
                await self._take_cached(cache, seen)

    async def _take_cached(self, cache: RuleCache, seen: tuple[bytes, bytes]) -> None:
        try:
            entry, stamp = await cache.read()
            held = (entry.version.encode(), stamp)
            if held == self._doubted or self._is_behind(held[0]):
                return  # it is not what was there when we looked, or the store has spoken since
            is_new = not self._is_same(entry.snapshot)
            if is_new:
                self._put(entry.snapshot, "cache", entry.written_at)
        except StoreError:
            raise  # which says nothing about the rules
        except LimenError:
            self._doubted = seen
            raise
        self._cached, self._doubted = held, None
        if is_new:
            await self._keep(entry.snapshot)
        elif self.source == "last-good":
            self.source, self.written_at = "cache", entry.written_at

    async def ask(self, cache: RuleCache | None, who: str, found: Found | None) -> None:
        """Use what is in the store if it is new, or what was kept if nobody has any rules.

        In the cache, one asks for all, as long as what it holds is good.
        """
        if self._store is not None and not await self._is_anothers_turn(cache, who, found):
            await self._take_stored(self._store, cache, found)
        if self._last_good is None:
            return
        if self._rules is None:
            with self._notes.watch("last-good"):
                kept = self._last_good.read()
                if kept is not None:
                    self._put(kept.snapshot, "last-good", kept.written_at)
        elif "last-good" in self._notes.trouble and not self._writing.locked():
            # The rules could not be written when they came, as on a full disk.
            await self._keep(Snapshot(self.version, dict(self._rules.document)))

    def forget_tasks(self) -> None:
        """Let go of what belongs to a loop that is not there any more, as after a fork."""
        self._late = set()
        self._writing = asyncio.Lock()

    async def close(self) -> None:
        """Wait for what is yet to end: a file, or a driver, which complains if it is disturbed."""
        if self._late:
            await asyncio.wait(self._late, timeout=_STORE_S)

    async def _is_anothers_turn(
        self, cache: RuleCache | None, who: str, found: Found | None
    ) -> bool:
        if cache is None or found is None or not self._is_in_force(found):
            return False
        if "store" in self._notes.trouble:
            # Others may have a way to the store: they ask for all, and we whether it is back.
            return time.monotonic() < self._asked_at + CLAIM_S
        claimed = True
        with self._notes.watch("sharing"):
            claimed = await cache.claim(who)
        return not claimed

    async def _take_stored(
        self, store: RuleStore, cache: RuleCache | None, found: Found | None
    ) -> None:
        before, snapshot = self._rules, None
        self._asked_at = time.monotonic()
        with self._notes.watch("store"):
            snapshot = await self._in_time(self._load(store, found), self._patience_s())
            self.is_loaded = self.is_loaded or snapshot is None
            if snapshot is None or self._rules is not before:
                return  # nothing new; or the cache had something meanwhile, and that is newer
            if not self._is_same(snapshot):
                try:
                    self._put(snapshot, "store", time.time())
                except LimenError as error:
                    self._refused = (snapshot.version, error)
                    raise
                if found is not None and found.version:
                    # It is there until we have written: no look in between goes back to it.
                    self._doubted = (found.version, found.stamp)
                self._is_confirmed = True
                await self._keep(snapshot)
            else:
                self._is_confirmed = True
                if self.source == "last-good":
                    self.source, self.written_at = "store", time.time()
        if cache is None or found is None or self._is_in_force(found):
            return
        if self._is_same(snapshot) and snapshot is not None:
            with self._notes.watch("sharing"):
                await cache.write(snapshot, seen=found.version, stamp=found.stamp)

    def _patience_s(self) -> float:
        if self._rules is None and self._last_good is not None and self._last_good.is_usable:
            return _FIRST_STORE_S
        return _STORE_S

    async def _in_time(self, work: Coroutine[Any, Any, T], patience_s: float) -> T:
        """Return what comes of it, or raise `TimeoutError`: at once, however long its end takes."""
        task = self._begin(work)
        try:
            done, _ = await asyncio.wait([task], timeout=patience_s)
        finally:
            task.cancel()
        if not done:
            raise TimeoutError
        return task.result()

    async def _load(self, store: RuleStore, found: Found | None) -> Snapshot | None:
        """Return what is in the store, if that is news to us or to the cache."""
        version = await store.version()
        if self._refused is not None and version == self._refused[0]:
            # Without the frames of the last time, to which each time would add its own.
            raise self._refused[1].with_traceback(None)
        is_cached = found is None or self._is_in_force(found)
        if version == self.version and self._is_confirmed and is_cached:
            return None
        return await store.load()

    def _is_in_force(self, found: Found) -> bool:
        """Return whether the cache holds what is in force."""
        return self._cached == (found.version, found.stamp)

    def _is_behind(self, version: bytes) -> bool:
        """Return whether it was written by somebody held up, or is from before a failover."""
        # Older rules may be meant as well; then the store says so.
        return self._store is not None and _is_older(version, self.version)

    def _is_same(self, snapshot: Snapshot | None) -> bool:
        """Return whether these are the rules in force."""
        return (
            snapshot is not None
            and self._rules is not None
            and snapshot.version == self.version
            and snapshot.document == self._rules.document
        )

    def _put(self, snapshot: Snapshot, source: Source, written_at: float) -> None:
        """Put rules in force, or raise `InvalidRules` and leave those in force that are."""
        rules = parse(snapshot.document, version=snapshot.version)
        covers = self._switch.covers
        self._use(rules.in_shadow(covers))
        self._covers = covers
        self._rules, self._is_confirmed, self._cached, self._refused = rules, False, None, None
        self.is_loaded = True
        self.source, self.written_at, self.used_at = source, written_at, time.time()
        _logger.info("rules %s are in force: %d rules", rules.version, len(rules.rules))

    async def _keep(self, snapshot: Snapshot) -> None:
        """Have rules written down that are in force.

        A disk that hangs is not waited for any longer than this: it holds up neither the next rules
        nor the switch.
        """
        if self._last_good is not None:
            writing = self._begin(self._write_down(self._last_good, snapshot))
            await asyncio.wait([writing], timeout=_DISK_S)

    async def _write_down(self, last_good: LastGood, snapshot: Snapshot) -> None:
        # One after the other, and none that has been replaced: the last one stays.
        async with self._writing:
            if self._is_same(snapshot):
                with self._notes.watch("last-good"):
                    await asyncio.to_thread(last_good.write, snapshot)

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something that `close` waits for."""
        task = asyncio.create_task(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        # So that asyncio does not complain that nobody has asked for its error.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task


def _is_older(version: bytes, than: str) -> bool:
    """Return whether a number is below another. Versions that are no numbers have no order."""
    numbers = version.isdigit() and len(version) < 20 and than.isdecimal()
    return numbers and int(version) < int(than)
