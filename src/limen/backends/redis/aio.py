"""The driver for asyncio: a lane for each server and each loop. The twin for threads is `sync`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, TypeVar

from limen import fork
from limen.backends import Change, Correct, Fault, Reset
from limen.backends.redis import across, route, script
from limen.backends.redis.aio_lane import Lane
from limen.backends.redis.batch import Again, Packer, Request, greet
from limen.backends.redis.protocol import NO_REPLY, fault_of, new_reader, pack_command
from limen.connect import Address, Opened, Target, open_stream
from limen.model import Check, Reading, receipt_ids

T = TypeVar("T")
_CONNECT_S = 1.0
_LOOK_S = 0.002
_CHUNK = 65_536
_logger = logging.getLogger("limen")


class Home:
    """What belongs to one loop: its lanes, and the tasks that nobody waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.lanes: dict[Address, Lane] = {}
        self.tasks: set[asyncio.Task[Any]] = set()


class AsyncRedisBackend:
    """Decides on Redis: one server, a primary that sentinels name, or a cluster. For asyncio."""

    def __init__(self, target: Target, namespace: str, deadline: float) -> None:
        self._target = target
        self._deadline = deadline
        self._router = route.Router(target)
        self._packer = Packer(namespace, clustered=self._router.clustered)
        self._receipt_ids = receipt_ids()
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
        self._router.refreshed(float("-inf"))

    async def run_all(
        self,
        checks: tuple[Check, ...],
        charge: bool,
        holder: str = "",
        within: float | None = None,
    ) -> tuple[Reading, ...] | Fault:
        """Decide some checks together, all or nothing; return a reading for each, or why not."""
        home = self._home()
        ends = home.loop.time() + (within or self._deadline)
        if self._packer.is_together(checks):
            reply = await self._ask(home, self._packer.checks(checks, charge, holder), ends)
            return reply if isinstance(reply, Fault) else script.readings(reply)
        receipt_id = f"{next(self._receipt_ids):016x}"
        steps = across.decide(self._packer, checks, charge, holder, receipt_id)
        return await self._drive(home, steps, ends)

    async def change(self, change: Change) -> bool | Fault:
        """Carry out a change; return whether there was anything to change, or why not."""
        home = self._home()
        ends = home.loop.time() + self._deadline
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
        for request in self._router.probes(self._packer):
            answer = await self._ask(home, request, home.loop.time() + 2 * _CONNECT_S)
            if isinstance(answer, Fault):
                return answer
        return None

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
                home = self._homes[loop] = Home(loop)
            self._last_home = home
        return home

    async def _ask(self, home: Home, request: Request, ends: float) -> bytes | Fault:
        tries, again = 0, Again()
        while tries < route.MAX_TRIES:
            if self._router.clustered:
                await self._know_shape(home, ends)
            lane = self._lane(home, request)
            if isinstance(lane, Fault):
                return lane
            answer = await lane.ask(request, ends)
            if isinstance(answer, bytes):
                return answer
            if isinstance(answer, Again):
                again = answer
                tries += self._router.weight(again)
                if again.pause_s:
                    await asyncio.sleep(min(again.pause_s, max(ends - home.loop.time(), 0)))
                request = self._router.follow(request, again, lane.address)
                if home.loop.time() >= ends:
                    break
            else:
                self._router.suspect(answer)
                return answer
        return self._router.no_end(again)

    async def _drive(
        self, home: Home, steps: Generator[across.Step, Sequence[bytes | Fault], T], ends: float
    ) -> T:
        try:
            step = next(steps)
            while True:
                if step.behind:
                    later = home.loop.time() + self._deadline
                    self._leave_behind(home, self._carry_out(home, step, later))
                    step = steps.send(())
                elif step.undoes:
                    # Whoever cancels the caller has not thereby given anything back.
                    undo = self._leave_behind(home, self._carry_out(home, step, ends))
                    step = steps.send(await asyncio.shield(undo))
                else:
                    step = steps.send(await self._carry_out(home, step, ends))
        except StopIteration as done:
            result: T = done.value
            return result

    async def _carry_out(self, home: Home, step: across.Step, ends: float) -> list[bytes | Fault]:
        asked = [self._ask(home, request, ends) for request in step.requests]
        replies = list(await asyncio.gather(*asked))
        lost = step.lost(replies)
        if lost:
            self.lost_refunds += len(lost)
            _logger.warning("%d charges were not given back: %s", len(lost), lost[0])
        return replies

    def _leave_behind(self, home: Home, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = home.loop.create_task(work)
        home.tasks.add(task)
        task.add_done_callback(home.tasks.discard)
        return task

    async def _know_shape(self, home: Home, ends: float) -> None:
        """Have the cluster's shape looked up, if it is time to; wait only if it was never known."""
        if self._router.should_refresh(home.loop.time()):
            self._leave_behind(home, self._refresh_behind(home))
        # Not an event: it may be another loop that is looking it up.
        while self._router.is_unknown_yet and home.loop.time() < ends:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    def _lane(self, home: Home, request: Request) -> Lane | Fault:
        address = self._router.address(request)
        if address is None:
            return self._router.nobody_owns(request)
        lane = home.lanes.get(address)
        if lane is None:
            where = self._router.where(address)
            lane = home.lanes[address] = Lane(
                home.loop, lambda: self._open(address), address, where, self._deadline
            )
        return lane

    async def _refresh_behind(self, home: Home) -> None:
        trouble = None
        try:
            await self._learn_shape(home)
        except Exception as error:
            trouble = fault_of(error, self._target.shown)
        finally:
            self._router.refreshed(home.loop.time(), trouble)

    async def _learn_shape(self, home: Home) -> None:
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

    async def _ask_about(
        self, address: Address, command: tuple[str, ...], sentinel: bool
    ) -> object:
        try:
            opened = await open_stream(self._target, address, _CONNECT_S / 2, sentinel=sentinel)
            try:
                return await _ask_once(opened, command)
            finally:
                opened[1].close()
        except Exception as error:
            return error

    async def _open(self, address: Address) -> Opened:
        """Return a connection to a server that knows the script."""
        target = self._target
        if target.kind == "sentinel":
            finder = route.find_primary(target.addresses, target.service)
            address = await self._find(finder, sentinel=True)
        opened = await open_stream(target, address, _CONNECT_S)
        try:
            greeting = greet(must_lead=target.kind == "sentinel")
            command = next(greeting)
            while True:
                command = greeting.send(await _ask_once(opened, command))
        except StopIteration:
            return opened
        except BaseException:
            opened[1].close()
            raise


async def _ask_once(opened: Opened, command: tuple[str, ...]) -> object:
    """Send one command on a stream that nobody else uses, and return its reply."""
    stream, writer = opened
    reader = new_reader()
    async with asyncio.timeout(_CONNECT_S):
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
