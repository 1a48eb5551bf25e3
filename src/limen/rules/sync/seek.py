"""`Seeker`: one look for newer rules, in the cache, in the store, in the last good file.

Whatever is found is checked before it is used, and nothing that is wrong with it takes the rules in
force away. Knows no threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from limen.errors import LimenError
from limen.rules.document import parse
from limen.rules.ruleset import RuleSet
from limen.rules.stores import RuleStore, Snapshot
from limen.rules.sync.cache import Found, RuleCache
from limen.rules.sync.last_good import LastGood
from limen.rules.sync.notes import Notes
from limen.rules.sync.switch import Switch

Source = Literal["none", "cache", "store", "last-good"]
_STORE_S = 3.0
_logger = logging.getLogger("limen")


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
        self._refused: dict[Source, str] = {}
        """The version that was found wrong last, by where: it is not read again and again."""
        self._switch = Switch()
        self.source: Source = "none"
        self.written_at: float = 0.0
        self.used_at: float = 0.0

    @property
    def version(self) -> str:
        """The rules in force; empty when there are none."""
        return "" if self._rules is None else self._rules.version

    def turn(self, switch: Switch) -> None:
        """Put what the kill switch covers into shadow, and the rest back in force."""
        before, self._switch = self._switch, switch
        if self._rules is not None and before.covers != switch.covers:
            self._use(self._rules.in_shadow(switch.covers))
            _logger.warning("the kill switch is %s", switch)

    async def look(self, cache: RuleCache | None, who: str) -> Found | None:
        """Look once; return what the cache said, None without an answer."""
        found = None
        if cache is not None:
            with self._minding("cache"):
                found = await cache.look()
        is_good = found is not None and cache is not None and await self._take_cached(cache, found)
        if self._store is not None and not (is_good and await self._is_anothers_turn(cache, who)):
            await self._take_stored(self._store, cache, found, is_good=is_good)
        if self._rules is None and self._last_good is not None:
            with self._minding("last-good"):
                kept = self._last_good.read()
                if kept is not None:
                    self._put(kept.snapshot, "last-good", kept.written_at)
        return found

    async def _take_cached(self, cache: RuleCache, found: Found) -> bool:
        """Use what is in the cache if it is new; return whether it holds what is to be used."""
        version = found.version
        if version == self.version:
            return bool(version)
        if version in ("", self._refused.get("cache")) or (
            # Written by somebody who was held up meanwhile; the store knows better.
            self._store is not None and _is_older(version, self.version)
        ):
            return False
        self._refused["cache"] = version
        with self._minding("rules"):
            entry = await cache.read()
            if entry is not None and entry.version == version:
                self._put(entry.snapshot, "cache", entry.written_at)
                await self._keep(entry.snapshot)
        return self.version == version

    async def _is_anothers_turn(self, cache: RuleCache | None, who: str) -> bool:
        """Return whether somebody else asks the store at the moment, for all of us."""
        claimed = True
        with self._minding("cache"):
            claimed = cache is None or await cache.claim(who)
        return not claimed

    async def _take_stored(
        self, store: RuleStore, cache: RuleCache | None, found: Found | None, *, is_good: bool
    ) -> None:
        """Use what is in the store if it is new; put it into the cache if it is not there."""
        snapshot: Snapshot | None = None
        with self._minding("store"):
            async with asyncio.timeout(_STORE_S):
                version = await store.version()
                is_cached = found is None or (is_good and found.version == version)
                is_known = version in (self.version, self._refused.get("store"))
                if not (is_known and is_cached):
                    snapshot = await store.load()
        if snapshot is None:
            return
        if snapshot.version != self.version:
            self._refused["store"] = snapshot.version
            with self._minding("rules"):
                self._put(snapshot, "store", time.time())
                await self._keep(snapshot)
        if cache is not None and found is not None and snapshot.version == self.version:
            with self._minding("cache"):
                await cache.write(snapshot, seen=found.version)

    def _put(self, snapshot: Snapshot, source: Source, written_at: float) -> None:
        """Put rules in force, or raise `InvalidRules` and leave those in force that are."""
        rules = parse(snapshot.document, version=snapshot.version)
        self._use(rules.in_shadow(self._switch.covers))
        self._rules, self._refused = rules, {}
        self.source, self.written_at, self.used_at = source, written_at, time.time()
        _logger.info("rules %s are in force: %d rules", rules.version, len(rules.rules))

    async def _keep(self, snapshot: Snapshot) -> None:
        if self._last_good is not None:
            with self._minding("last-good"):
                await asyncio.to_thread(self._last_good.write, snapshot)

    @contextmanager
    def _minding(self, about: str) -> Iterator[None]:
        """Take note of what goes wrong inside, and go on behind it."""
        try:
            yield
        except TimeoutError:
            self._notes.complain(about, "no answer in time")
        except LimenError as error:
            self._notes.complain(about, str(error))
        except Exception as error:  # of a driver; who follows rules does not stop for it
            self._notes.complain(about, f"{type(error).__name__}: {error}")
        else:
            self._notes.settle(about)


def _is_older(version: str, than: str) -> bool:
    """Return whether a number is below another. Versions that are no numbers have no order."""
    numbers = version.isdecimal() and than.isdecimal()
    return numbers and int(version) < int(than)
