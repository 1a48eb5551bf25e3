"""The driver for asyncio: a lane for each server and each loop. The twin for threads is `sync`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from limen._internal.deadline import ActiveClock
from limen.backends import Change, Fault, Prepared, Vitals
from limen.backends.redis import route, script
from limen.backends.redis.aio_lane import Lane
from limen.backends.redis.batch import Again, Request
from limen.backends.redis.flows import RedisFlows
from limen.backends.redis.link import AsyncRedisConnection
from limen.backends.redis.protocol import fault_of
from limen.backends.sampled import SampledLog
from limen.connect import Address, Opened, Target, open_stream
from limen.flow import Flow, run_async
from limen.model import Reading

T = TypeVar("T")
_RARELY_S = 3_600.0


class Home:
    """The objects of one loop: its clock, its lanes, and the tasks in the background."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.clock: ActiveClock = ActiveClock(deadline)
        """The clock of all deadlines in this loop."""
        self.lanes: dict[Address, Lane] = {}
        self.tasks: set[asyncio.Task[Any]] = set()

    def close(self) -> None:
        """Close the lanes and cancel the tasks."""
        for lane in self.lanes.values():
            lane.close()
        for task in self.tasks:
            task.cancel()


class LoopDeadline(Struct, gc=False):
    """The time that one caller has, on the clock of its loop. Cheaper than a `Deadline`."""

    home: Home
    ends_s: float
    is_fixed: bool = False

    def left(self) -> float:
        """Return the seconds left; zero or less when the deadline has passed."""
        return self.ends_s - self.home.clock.tick()

    def extend(self, seconds: float) -> None:
        """Have at least so many seconds left."""
        self.ends_s = max(self.ends_s, self.home.clock.now() + seconds)


class AsyncRedisBackend(RedisFlows[Lane]):
    """Decides on Redis: one server, a primary that sentinels name, or a cluster. For asyncio."""

    def __init__(self, target: Target, namespace: str, deadline: float) -> None:
        self._rare_log = SampledLog(_RARELY_S)
        super().__init__(target, namespace, deadline)

    def after_fork(self) -> None:
        """Start without connections: those of the parent process stay there."""
        super().after_fork()
        self._homes: dict[asyncio.AbstractEventLoop, Home] = {}
        self._last_home: Home | None = None

    async def run(
        self, prepared: Prepared, within: float | None = None
    ) -> tuple[Reading, ...] | Fault:
        """Decide the checks together, all or nothing; return a reading for each, or a fault."""
        home = self._home()
        ends_s = home.clock.now() + (within or self._deadline)
        deadline = LoopDeadline(home, ends_s, within is not None)
        if prepared.request is None:
            return await run_async(self._across(prepared, deadline))
        reply = await self._call(prepared.request, deadline)
        return reply if isinstance(reply, Fault) else script.readings(reply)

    async def change(self, change: Change) -> bool | Fault:
        """Carry out a change; return whether there was anything to change, or why not."""
        return await run_async(self._changed(change))

    async def ping(self) -> Fault | None:
        """Connect to every server, and let the script write there; return why not."""
        return await run_async(self._reached())

    async def vitals(self) -> dict[str, Vitals]:
        """Return what each server that answers says of itself."""
        vitals: dict[str, Vitals] = {}
        for address in self._router.servers():
            try:
                server = address
                if self._target.kind == "sentinel":
                    server = await run_async(self._named_primary())
                vitals[self._router.where(address)] = await self._vitals_of(server)
            except Exception as error:
                # Nothing depends on it; whether the server is well, decisions find out.
                fault = fault_of(error, self._router.where(address))
                self._rare_log.warn("vitals", f"its memory and load are not known: {fault}")
        return vitals

    async def _vitals_of(self, address: Address) -> Vitals:
        seconds = self._router.connect_s
        connection = await self._connect(address)
        try:
            start = time.perf_counter()
            await connection.ask("PING", seconds=seconds)
            ping_s = time.perf_counter() - start
            return route.vitals_of(await connection.ask("INFO", seconds=seconds), ping_s)
        finally:
            connection.close()

    async def close(self) -> None:
        """Close all connections, those of other loops too."""
        here = asyncio.get_running_loop()
        for loop, home in list(self._homes.items()):
            if loop is here:
                home.close()
                # The loop closes sockets at its next turn; without one they would be left open.
                await asyncio.sleep(0)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(home.close)
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

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _deadline_in(self, seconds: float) -> LoopDeadline:
        home = self._home()
        return LoopDeadline(home, home.clock.now() + seconds)

    _run = staticmethod(run_async)

    def _start(self, flow: Flow[T]) -> asyncio.Task[T]:
        home = self._home()
        task = home.loop.create_task(run_async(flow))
        home.tasks.add(task)
        task.add_done_callback(home.tasks.discard)
        return task

    def _finish(self, flow: Flow[T]) -> Awaitable[T]:
        return asyncio.shield(self._start(flow))

    def _rest(self, seconds: float, closed: threading.Event) -> Awaitable[None]:
        return asyncio.sleep(seconds)  # `close` cancels the task

    async def _connect(self, address: Address, *, sentinel: bool = False) -> AsyncRedisConnection:
        seconds = self._router.connect_s
        return AsyncRedisConnection(
            await open_stream(self._target, address, seconds, sentinel=sentinel)
        )

    async def _call(
        self, request: Request, deadline: LoopDeadline, *, insist: bool = False
    ) -> bytes | Fault:
        router, home = self._router, deadline.home
        tries, again = 0, Again()
        while tries < route.MAX_TRIES:
            if router.moves:
                self._refresh_if_due()
                if router.is_unknown_yet:
                    await run_async(self._wait_for_shape(deadline))
            address = router.address(request)
            if address is None:
                return router.nobody_owns(request)
            lane = home.lanes.get(address) or self._server_at(address)
            is_probe = lane.breaker.is_open and not insist
            if is_probe and (refusal := self._refusal(lane)) is not None:
                # A caller that asks in an endless loop must not keep this loop from the task that
                # probes the server.
                await asyncio.sleep(0)
                return refusal
            if address not in router.connected:
                self._extend_at_first(address, deadline)
            answer = await lane.ask(request, deadline.ends_s)
            if isinstance(answer, bytes):
                if is_probe:
                    lane.breaker.close()
                return answer
            if isinstance(answer, Fault):
                router.suspect(answer)
                return answer
            again = answer
            tries += router.weight(again)
            if again.pause_s:
                await asyncio.sleep(min(again.pause_s, max(deadline.left(), 0)))
            request = router.follow(request, again, lane.address)
            if deadline.left() <= 0:
                break
        return router.no_end(again)

    async def _call_all(
        self, requests: Sequence[Request], deadline: LoopDeadline, *, all_or_none: bool
    ) -> list[bytes | Fault]:
        return await asyncio.gather(*[self._call(request, deadline) for request in requests])

    def _server_at(self, address: Address) -> Lane:
        home = self._home()
        lane = home.lanes.get(address)
        if lane is None:
            lane = home.lanes[address] = Lane(
                home.loop,
                lambda: self._open_stream(address),
                address,
                self._router.where(address),
                self._deadline,
                home.clock,
                self._router.breaker(address),
                self._tend,
            )
        return lane

    async def _open_stream(self, address: Address) -> Opened:
        connection: AsyncRedisConnection = await run_async(self._open(address))
        return connection.opened

    def _is_known(self, server: Lane) -> bool:
        return self._home().lanes.get(server.address) is server

    def _renew_connections(self) -> None:
        for home in list(self._homes.values()):
            for lane in list(home.lanes.values()):
                lane.renew()

    def _forget_all_but(self, nodes: set[Address]) -> None:
        lanes = self._home().lanes
        for address in set(lanes) - nodes:
            if lanes[address].is_idle:
                lanes.pop(address).close()
