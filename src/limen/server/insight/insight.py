"""`Insight`: all that one worker knows of decisions, its own and those of the others.

Decisions tell the watch. What takes longer is done once a second, beside them: slices end and are
shared, others' are read, alerts are judged and told, figures are written for `/metrics`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from limen.backends import Vitals
from limen.connect import target_of
from limen.errors import StoreError
from limen.limiter import AsyncLimiter
from limen.observe.alerts import Thresholds
from limen.observe.board import Board
from limen.observe.figures import Figures, fresh, merged, servers_of
from limen.observe.hiding import Hider, hashed, plain
from limen.observe.prometheus import exposition
from limen.observe.recent import DecisionRecord, Recent, encode
from limen.observe.ring import SHORT_S, Ring, start_of
from limen.observe.slices import Slice
from limen.observe.usage import Usage
from limen.observe.view import View
from limen.server.insight.alerting import Alerting
from limen.server.insight.decision_log import DecisionLog
from limen.server.insight.deliver import Delivery
from limen.server.insight.watch import Watch
from limen.server.insight.webhook import Webhook
from limen.server.insight.workers import Workers
from limen.server.settings import Settings
from limen.server.settings.webhook_url import valid_webhook

TURN_S = 1.0
_VITALS_S = 10.0
_SHARE_OF_TIME = 0.02
"""How much of its time a worker may spend on telling others of a slice that is not over."""
_logger = logging.getLogger("limen.server")

_Totals = list[tuple[int, ...]]
Rules = Callable[[Figures], object]
"""Writes into figures what there is to tell of the rules."""


class Insight:
    """What one worker sees."""

    def __init__(
        self,
        settings: Settings,
        instance: str,
        limiter: AsyncLimiter,
        secret: str,
        *,
        redis: str | None,
        folder: Path | None,
        tell_rules: Rules,
    ) -> None:
        kept = settings.insight
        self.instance: str = instance
        self.hide: Hider = hashed(secret.encode()) if kept.keys == "hashed" else plain
        """Turns a key into what viewers are shown."""
        a_second = 100 if kept.enabled else 0
        recent = Recent(a_second=a_second, sample=kept.sample)
        self.watch: Watch = Watch(instance, hide=self.hide, recent=recent, keeps_keys=kept.enabled)
        self.board: Board | None = None
        if redis is not None:
            target = target_of(redis, asynchronous=True)
            self.board = Board(target, settings.namespace, instance)
        self._ring = Ring()
        self.view: View = View(self._ring, self.board, instance)
        self.alerts: Alerting = Alerting(
            msgspec.convert(settings.alerts, Thresholds, from_attributes=True),
            self.view,
            self.board,
            Delivery(settings.namespace, _webhook(settings)),
            self._is_first,
        )
        # What is hashed already stays as it is, so that one finds in the log what one was shown.
        hashes = kept.log_keys == "hashed" and kept.keys == "plain"
        hides_in_log = hashed(secret.encode()) if hashes else plain
        self._log = DecisionLog(kept.log, hides_in_log) if kept.log else None
        self._workers = Workers(folder, instance)
        self._limiter = limiter
        self._tell_rules = tell_rules
        self._vitals: dict[str, Vitals] = {}
        self._start = start_of(time.time(), SHORT_S)
        self._before = self._totals()
        self._next_partial = 0.0
        self._cpu = (time.monotonic(), time.process_time(), 0.0)
        self._tasks: list[asyncio.Task[None]] = []
        self._turning = asyncio.Lock()

    def start(self) -> None:
        """Begin to look, once a second."""
        self._tasks = [asyncio.create_task(each) for each in (self._run(), self._ask_servers())]

    async def close(self) -> None:
        """Tell what is yet to be told, and let go of everything."""
        try:
            # A turn that runs is let end: what it does in threads cannot be called off.
            async with asyncio.timeout(2 * TURN_S), self._turning:
                self._next_partial = 0.0
                await self.turn()
        except TimeoutError:
            pass  # of a disk, or of Redis: nobody waits longer to end
        except Exception:  # whatever it is: the rest is let go of all the same
            _logger.exception("the last look at the decisions failed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.board is not None:
            self.board.close()
        if self._log is not None:
            self._log.close()
        self.alerts.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TURN_S)
            try:
                async with self._turning:
                    await self.turn()
            except Exception:  # whatever it is: who looks no more is blind for ever
                _logger.exception("a look at the decisions failed; it goes on")

    async def turn(self) -> None:
        """Do what is due."""
        now = time.time()
        await self._take_slices(now)
        seen = self.watch.recent.tick()
        if self._log is not None and seen:
            await asyncio.to_thread(self._log.write, seen)
        # Before Redis is asked: these are needed most when it does not answer.
        await asyncio.to_thread(self._workers.write, self.own_figures(now))
        await self._share(seen)
        await self.alerts.turn(now)

    async def _ask_servers(self) -> None:
        """Ask the servers of the store how they are, every 10 s."""
        while True:
            try:
                self._vitals = await self._limiter.vitals()
            except Exception:  # whatever it is: it is tried again
                _logger.exception("the servers of the store cannot be asked how they are")
            await asyncio.sleep(_VITALS_S)

    def own_figures(self, now: float) -> Figures:
        """Return the numbers of this worker."""
        watch = self.watch
        then, cpu_then, _ = self._cpu
        elapsed, cpu_s = time.monotonic() - then, time.process_time()
        if elapsed >= TURN_S / 2:
            self._cpu = (then + elapsed, cpu_s, min(1.0, (cpu_s - cpu_then) / elapsed))
        figures = Figures(
            self.instance,
            now,
            decisions=watch.decisions,
            requests=[watch.allowed, watch.refused],
            fallback={source: list(counts) for source, counts in watch.fallback.items()},
            undelivered={surface: list(counts) for surface, counts in watch.undelivered.items()},
            durations={name: each.spread for name, each in watch.durations.items()},
            servers=servers_of(self._limiter.shards, self._vitals),
            lost_refunds=self._limiter.lost_refunds,
            tables=self._limiter.tables,
            alerts=len(self.alerts.open) + self.alerts.more,
            cpu_s=cpu_s,
            busy=self._cpu[2],
        )
        self._tell_rules(figures)
        return figures

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics of all workers of this host, and their content type.

        `accept` is the header of the scrape. The figures of the others may be a second old. Our own
        are as of now, and written down first: the next answer of any worker must not show less. In
        a thread: to read files, and to write down many rules, takes a while.
        """
        now = time.time()
        return await asyncio.to_thread(self._metrics, self.own_figures(now), now, accept)

    def _metrics(self, own: Figures, now: float, accept: str) -> tuple[bytes, str]:
        figures = self._workers.exchange(own)
        return exposition(merged(figures, now), len(fresh(figures, now)), accept)

    async def _take_slices(self, now: float) -> None:
        """Keep what was seen: as a whole slice, if one is over, and else as far as it got."""
        start = start_of(now, SHORT_S)
        is_over = start != self._start
        if not is_over and time.monotonic() < self._next_partial:
            return
        totals, since = self._totals(), self._start
        grown = [_less(now, then) for now, then in zip(totals, self._before, strict=True)]
        usages = self.watch.usages
        if is_over:
            usages = self.watch.begin()
            self._start, self._before = start, totals
        # Beside the loop, which has others to serve: with a thousand rules it takes a while.
        began = time.perf_counter()
        await asyncio.to_thread(self._keep, since, grown, usages, is_over)
        took = time.perf_counter() - began
        self._next_partial = time.monotonic() + took / _SHARE_OF_TIME - TURN_S / 2

    def _keep(self, start: int, grown: _Totals, usages: Mapping[str, Usage], is_over: bool) -> None:
        (allowed, denied, degraded), trips, durations = grown
        rules = self.watch.taken(usages)
        slice_ = Slice(start, SHORT_S, allowed, denied, degraded, trips, durations, rules)
        self._ring.put(slice_, is_over=is_over)

    def _totals(self) -> _Totals:
        watch = self.watch
        trips = _summed(shard.trips.counts for shard in self._limiter.shards)
        durations = _summed(each.spread.counts for each in watch.durations.values())
        return [(watch.allowed, watch.refused, watch.degraded), trips, durations]

    async def _share(self, seen: Sequence[DecisionRecord]) -> None:
        if self.board is None or not self.view.is_shared:
            return
        unsent = self._ring.unsent()
        try:
            await self.alerts.hand_over()
            await self.board.write(unsent, [encode(each) for each in seen])
        except StoreError as error:
            self.view.rest(error)
        else:
            self._ring.sent(unsent)

    async def _is_first(self, now: float) -> bool:
        """Return whether this worker is the first of its host."""
        found = fresh(await asyncio.to_thread(self._workers.read), now)
        return self.instance == min([self.instance, *[each.instance for each in found]])


def _webhook(settings: Settings) -> Webhook | None:
    alerts = settings.alerts
    if not alerts.webhook:
        return None
    return Webhook(
        valid_webhook(alerts.webhook.get_secret_value(), private=alerts.webhook_private),
        secret=alerts.webhook_secret.get_secret_value(),
        private=alerts.webhook_private,
    )


def _summed(rows: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*[row for row in rows if row], strict=True)))


def _less(now: Sequence[int], then: Sequence[int]) -> tuple[int, ...]:
    """Return by how much numbers grew. One that shrank began anew: it is all new."""
    before = [*then, *[0] * (len(now) - len(then))]
    return tuple(a - b if a >= b else a for a, b in zip(now, before[: len(now)], strict=True))
