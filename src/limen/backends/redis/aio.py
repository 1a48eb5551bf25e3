"""The driver for asyncio: a lane for each server and each loop. The twin for threads is `sync`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, TypeVar

from limen import fork
from limen._internal.deadline import ActiveClock
from limen.backends import Change, Correct, Fault, Prepared, Reset, Shard, Vitals
from limen.backends.circuit_breaker import PASSING
from limen.backends.redis import across, route, script
from limen.backends.redis.aio_lane import Lane
from limen.backends.redis.batch import Again, Packer, Request, greet
from limen.backends.redis.protocol import NO_REPLY, fault_of, new_reader, pack_command
from limen.backends.sampled import SampledLog
from limen.connect import Address, Opened, Target, open_stream
from limen.model import Check, Reading, receipt_ids

T = TypeVar("T")
_LOOK_S = 0.002
_LEAST_REST_S = 0.05
_RARELY_S = 3_600.0
_CHUNK = 65_536


class Home:
    """What belongs to one loop: its clock, its lanes, and the tasks that nobody waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.clock: ActiveClock = ActiveClock(deadline)
        """The clock of all deadlines in this loop."""
        self.lanes: dict[Address, Lane] = {}
        self.tasks: set[asyncio.Task[Any]] = set()


class AsyncRedisBackend:
    """Decides on Redis: one server, a primary that sentinels name, or a cluster. For asyncio."""

    def __init__(self, target: Target, namespace: str, deadline: float) -> None:
        self._target = target
        self._deadline = deadline
        self._router = route.Router(target, deadline)
        self._packer = Packer(namespace, clustered=self._router.clustered)
        self._receipt_ids = receipt_ids()
        self._log, self._rare_log = SampledLog(), SampledLog(_RARELY_S)
        self.lost_refunds: int = 0
        """How many reservations could not be given back, and stay charged for their period."""
        self._homes: dict[asyncio.AbstractEventLoop, Home] = {}
        self._last_home: Home | None = None
        fork.watch(self)

    def after_fork(self) -> None:
        """Leave the other process its connections, and begin with none."""
        self._homes = {}
        self._last_home = None
        self._receipt_ids = receipt_ids()
        self._router.begin()

    def prepare(self, checks: tuple[Check, ...], charge: bool = True, holder: str = "") -> Prepared:
        """Encode checks for the script."""
        return self._packer.prepare(checks, charge, holder)

    async def run(
        self, prepared: Prepared, within: float | None = None
    ) -> tuple[Reading, ...] | Fault:
        """Decide the checks together, all or nothing; return a reading for each, or a fault."""
        home = self._home()
        ends, strict = home.clock.now() + (within or self._deadline), within is not None
        if prepared.request is not None:
            reply = await self._ask(home, prepared.request, ends, strict=strict)
            return reply if isinstance(reply, Fault) else script.readings(reply)
        steps = across.decide(self._packer, prepared, f"{next(self._receipt_ids):016x}")
        return await self._drive(home, steps, ends, strict=strict)

    async def change(self, change: Change) -> bool | Fault:
        """Carry out a change; return whether there was anything to change, or why not."""
        home = self._home()
        ends = home.clock.now() + self._deadline
        if isinstance(change, Correct | Reset):
            return await self._drive(home, across.change(self._packer, change), ends)
        reply = await self._ask(home, self._packer.change(change), ends)
        return reply if isinstance(reply, Fault) else bool(reply[1])

    async def ping(self) -> Fault | None:
        """Connect to every server there is, and let the script write there; return why not."""
        try:
            if self._router.clustered:
                await self._learn_shape(self._home())
        except Exception as error:
            return fault_of(error, self._target.shown)
        home = self._home()
        for address in self._router.servers():
            fault = await self._probe(home, address, (self._router.patient_s,), charge=False)
            if fault is not None:
                return fault
            breaker = self._router.breaker(address)
            if breaker.is_open and not await self._probe(home, address, (breaker.slow_s,)):
                breaker.close()
        return None

    def shards(self) -> tuple[Shard, ...]:
        """Return how each server is doing."""
        return self._router.shards()

    async def vitals(self) -> dict[str, Vitals]:
        """Return what each server that answers says of itself."""
        found: dict[str, Vitals] = {}
        for address in self._router.servers():
            try:
                asked = address
                if self._target.kind == "sentinel":
                    asked = await self._named_primary()
                vitals = await self._vitals_of(asked)
            except Exception as error:
                # Nothing hangs on it; whether the server is well, decisions find out.
                fault = fault_of(error, self._router.where(address))
                self._rare_log.warn("vitals", f"its memory and load are not known: {fault}")
                continue
            found[self._router.where(address)] = vitals
        return found

    async def _vitals_of(self, address: Address) -> Vitals:
        seconds = self._router.connect_s
        opened = await open_stream(self._target, address, seconds)
        try:
            start = time.perf_counter()
            await _ask_once(opened, ("PING",), seconds)
            ping_s = time.perf_counter() - start
            return route.vitals_of(await _ask_once(opened, ("INFO",), seconds), ping_s)
        finally:
            opened[1].close()

    async def close(self) -> None:
        """Let go of every connection, of other loops too."""
        here = asyncio.get_running_loop()
        for loop, home in list(self._homes.items()):
            if loop is here:
                _close(home)
                # The loop closes sockets at its next turn; without one they would be left open.
                await asyncio.sleep(0)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(_close, home)
        self.after_fork()

    def _home(self) -> Home:
        loop = asyncio.get_running_loop()
        home = self._last_home
        if home is None or home.loop is not loop:
            home = self._homes.get(loop)
            if home is None:
                for ended in [each for each in list(self._homes) if each.is_closed()]:
                    self._homes.pop(ended, None)
                home = self._homes[loop] = Home(loop, self._deadline)
            self._last_home = home
        return home

    def _first_ends(self, home: Home, address: Address | None, ends: float) -> float:
        """Return the end of the wait for a first connection, if that is later than `ends`."""
        return max(ends, home.clock.now() + self._router.first_s(address, time.monotonic()))

    async def _ask(
        self,
        home: Home,
        request: Request,
        ends: float,
        *,
        insist: bool = False,
        strict: bool = False,
    ) -> bytes | Fault:
        """Have a request carried out. A `strict` end is not extended for a first connection."""
        tries, again = 0, Again()
        while tries < route.MAX_TRIES:
            if self._router.moves:
                await self._know_shape(home, ends, strict=strict)
            address = self._router.address(request)
            if address is None:
                return self._router.nobody_owns(request)
            lane = home.lanes.get(address) or self._lane_to(home, address)
            breaker, tries_it = lane.breaker, False
            if breaker.is_open and not insist:
                refusal = self._refusal(home, lane)
                if refusal is not None:
                    # Who asks without end would otherwise hold up the loop, and with it the one
                    # who finds out that the server is back.
                    await asyncio.sleep(0)
                    return refusal
                tries_it = True
            if address not in self._router.connected and not strict:
                ends = self._first_ends(home, address, ends)
            answer = await lane.ask(request, ends)
            if isinstance(answer, bytes):
                if tries_it:
                    breaker.close()
                return answer
            if isinstance(answer, Again):
                again = answer
                tries += self._router.weight(again)
                if again.pause_s:
                    await asyncio.sleep(min(again.pause_s, max(ends - home.clock.now(), 0)))
                request = self._router.follow(request, again, lane.address)
                if home.clock.now() >= ends:
                    break
            else:
                self._router.suspect(answer)
                return answer
        return self._router.no_end(again)

    async def _drive(
        self,
        home: Home,
        steps: Generator[across.Step, Sequence[bytes | Fault], T],
        ends: float,
        *,
        strict: bool = False,
    ) -> T:
        try:
            step = next(steps)
            while True:
                later = home.clock.now() + self._deadline
                if later >= ends + self._deadline and not strict:
                    # The step before had to wait for a first connection, and was carried out.
                    ends = later
                if step.behind:
                    self._leave_behind(home, self._carry_out(home, step, later))
                    step = steps.send(())
                    continue
                carried_out = self._carry_out(home, step, ends, strict=strict)
                if step.undoes:
                    # Whoever cancels the caller has not thereby given anything back.
                    undo = self._leave_behind(home, carried_out)
                    step = steps.send(await asyncio.shield(undo))
                else:
                    step = steps.send(await carried_out)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _carry_out(
        self, home: Home, step: across.Step, ends: float, *, strict: bool = False
    ) -> list[bytes | Fault]:
        refusal = self._foreseen(home, step) if step.reserves else None
        if refusal is not None:
            return [refusal] * len(step.requests)
        asked = [self._ask(home, request, ends, strict=strict) for request in step.requests]
        replies = list(await asyncio.gather(*asked))
        lost = step.lost(replies)
        if lost:
            self.lost_refunds += len(lost)
            self._log.warn("lost", f"{len(lost)} charges were not given back: {lost[0]}")
        return replies

    def _foreseen(self, home: Home, step: across.Step) -> Fault | None:
        """Return the fault of a server that is left alone: nobody else is to be charged then."""
        for request in step.requests:
            address = self._router.address(request)
            lane = None if address is None else home.lanes.get(address)
            if lane is not None and lane.breaker.is_open:
                return self._refusal(home, lane)
        return None

    def _leave_behind(self, home: Home, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = home.loop.create_task(work)
        home.tasks.add(task)
        task.add_done_callback(home.tasks.discard)
        return task

    async def _know_shape(self, home: Home, ends: float, *, strict: bool) -> None:
        """Have the cluster's shape looked up, if it is time to; wait only if it was never known."""
        if self._router.should_refresh(home.loop.time()):
            self._leave_behind(home, self._refresh_behind(home))
        if self._router.is_unknown_yet and not strict:
            ends = self._first_ends(home, None, ends)
        # Not an event: it may be another loop that is looking it up.
        while self._router.is_unknown_yet and home.clock.tick() < ends:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    def _lane_to(self, home: Home, address: Address) -> Lane:
        lane = home.lanes.get(address)
        if lane is None:
            lane = home.lanes[address] = Lane(
                home.loop,
                lambda: self._open(address),
                address,
                self._router.where(address),
                self._deadline,
                home.clock,
                self._router.breaker(address),
                lambda opened: self._tend(home, opened),
            )
        return lane

    def _refusal(self, home: Home, lane: Lane) -> Fault | None:
        """Return what is told to who would ask a server that is left alone; None lets it try."""
        breaker, now = lane.breaker, home.loop.time()
        self._tend(home, lane)
        self._router.suspect(breaker.refusal)
        return None if breaker.may_try(now) else breaker.refusal

    def _tend(self, home: Home, lane: Lane) -> None:
        """See to it that a server which is left alone is asked again, when it answers."""
        number = lane.breaker.should_tend(home.loop.time())
        if number:
            self._leave_behind(home, self._tend_behind(home, lane, number))

    async def _tend_behind(self, home: Home, lane: Lane, number: int) -> None:
        breaker, took_s, now = lane.breaker, 0.0, home.loop.time
        try:
            while home.lanes.get(lane.address) is lane and (rest := breaker.rest(now(), number)):
                await asyncio.sleep(max(rest - took_s, _LEAST_REST_S))
                start = now()
                # Once to connect, for which no caller has the time, and once as a caller would.
                patience_s = (self._router.patient_s, breaker.slow_s)
                fault = await self._probe(home, lane.address, patience_s)
                if fault is None or fault.kind in PASSING:
                    breaker.close()
                    where = self._router.where(lane.address)
                    self._log.warn(f"back {where}", f"{where}: it answers again")
                elif self._router.should_refresh(now()):
                    self._leave_behind(home, self._refresh_behind(home))
                took_s = now() - start
        except BaseException:
            breaker.abandon(now(), number)
            raise

    async def _probe(
        self, home: Home, address: Address, patience_s: Sequence[float], *, charge: bool = True
    ) -> Fault | None:
        """Have something decided, once for each of these patiences; return why it was not."""
        request = self._router.probe(self._packer, address, charge=charge)
        if request is None:
            return self._router.owns_nothing(address)
        for seconds in patience_s:
            answer = await self._ask(home, request, home.clock.now() + seconds, insist=True)
            if isinstance(answer, Fault):
                return answer
        return None

    async def _refresh_behind(self, home: Home) -> None:
        trouble = None
        try:
            await self._learn_shape(home)
        except Exception as error:
            trouble = fault_of(error, self._target.shown)
        finally:
            self._router.refreshed(home.loop.time(), trouble)

    async def _learn_shape(self, home: Home) -> None:
        if not self._router.clustered:
            if await self._named_primary() != self._router.primary:
                for each in list(self._homes.values()):
                    for lane in list(each.lanes.values()):
                        lane.renew()
            return
        self._router.learn(await self._find(route.find_owners(self._router.candidates())))
        for gone in set(home.lanes) - set(self._router.nodes()):
            if home.lanes[gone].is_idle:
                home.lanes.pop(gone).close()

    async def _find(
        self, finder: Generator[route.Question, object, T], *, sentinel: bool = False
    ) -> T:
        try:
            address, command = next(finder)
            while True:
                address, command = finder.send(await self._ask_about(address, command, sentinel))
        except StopIteration as done:
            found: T = done.value
            return found

    async def _named_primary(self) -> Address:
        finder = route.find_primary(self._target.addresses, self._target.service)
        return await self._find(finder, sentinel=True)

    async def _ask_about(
        self, address: Address, command: tuple[str, ...], sentinel: bool
    ) -> object:
        seconds = self._router.connect_s
        try:
            opened = await open_stream(self._target, address, seconds, sentinel=sentinel)
            try:
                return await _ask_once(opened, command, seconds)
            finally:
                opened[1].close()
        except Exception as error:
            return error

    async def _open(self, address: Address) -> Opened:
        """Return a connection to a server that knows the script."""
        target = self._target
        if target.kind == "sentinel":
            address = await self._named_primary()
        opened = await open_stream(target, address, self._router.connect_s)
        try:
            greeting = greet(
                must_lead=target.kind == "sentinel", is_new=self._router.is_new(address)
            )
            command = next(greeting)
            while True:
                reply = await _ask_once(opened, command, self._router.connect_s)
                command = greeting.send(reply)
        except StopIteration as done:
            self._router.met(address)
            if done.value:
                self._log.warn("greeting", f"{self._router.where(address)}: {done.value}")
            return opened
        except BaseException:
            opened[1].close()
            raise


async def _ask_once(opened: Opened, command: tuple[str, ...], seconds: float) -> object:
    """Send one command on a stream that nobody else uses, and return its reply."""
    stream, writer = opened
    reader = new_reader()
    async with asyncio.timeout(seconds):
        writer.write(pack_command(command))
        while (reply := reader.gets()) is NO_REPLY:
            data = await stream.read(_CHUNK)
            if not data:
                raise ConnectionError("the server closed the connection")
            reader.feed(data)
    return reply


def _close(home: Home) -> None:
    for lane in home.lanes.values():
        lane.close()
    for task in home.tasks:
        task.cancel()
