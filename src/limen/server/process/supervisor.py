"""The parent of several workers, which share one listening socket that it made.

Owns when a worker is started, replaced and ended, and what passes between the two: the sockets, a
line by which a worker says that it is ready, and each learns that the other has gone. Knows
nothing of HTTP: a worker is a command.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from limen.errors import ConfigurationError, shown
from limen.server.insight.workers import Gathering

INHERITED = "LIMEN_INHERITED"
"""The environment variable with what a worker inherits from its parent, as JSON."""
_STOPS = (signal.SIGTERM, signal.SIGINT)
_STEADY_S = 10.0
_MAX_DELAY_S = 5.0
_logger = logging.getLogger("limen.server")


class _Inheritance(Struct):
    listeners: dict[str, int]
    """File descriptors of the listening sockets, by their names."""
    line: int
    """The file descriptor of the worker's end of the line to its parent."""
    folder: str | None
    others_serve: bool


class Parent(Struct, frozen=True):
    """A worker's parent, as the worker sees it."""

    listeners: dict[str, socket.socket]
    """By the names that the parent gave them."""
    line: socket.socket
    """Can be read when the parent has gone: the parent writes nothing to it."""
    folder: Path | None = None
    """The folder that all workers share. The parent made it, and removes it."""
    others_serve: bool = False
    """Whether other workers answer until this one is ready."""

    def tell_ready(self) -> None:
        """Tell the parent that requests are accepted now."""
        with contextlib.suppress(OSError):
            self.line.send(b"ready\n")


def parent() -> Parent | None:
    """Return the parent of this process; None when it is not a worker.

    The variable is removed from the environment: the children of a worker are no workers.
    """
    text = os.environ.pop(INHERITED, None)
    if text is None:
        return None
    try:
        inherited = msgspec.json.decode(text, type=_Inheritance)
        listeners = {name: socket.socket(fileno=fd) for name, fd in inherited.listeners.items()}
        line = socket.socket(fileno=inherited.line)
    except (msgspec.DecodeError, OSError):
        raise ConfigurationError(
            f"{INHERITED}={shown(text)} names no open sockets: it is set for workers, by their "
            "parent; unset it"
        ) from None
    folder = Path(inherited.folder) if inherited.folder else None
    return Parent(listeners, line, folder, inherited.others_serve)


def supervise(
    command: list[str],
    listeners: Mapping[str, socket.socket],
    workers: int,
    *,
    shared: Gathering | None = None,
    ready_timeout: float = 30.0,
    stop_timeout: float = 40.0,
) -> int:
    """Run so many workers until SIGTERM or SIGINT; return the exit code of the process.

    The first is started alone: when it does not get ready, the code is 1 and it has said why. A
    worker that dies is replaced. SIGHUP replaces all of them, one after the other, and an old one
    ends only when the new one is ready. SIGUSR1 goes to one of them. A stop lets them drain; a
    worker that takes longer than `stop_timeout` seconds is killed, and so are all at a second
    signal. The listeners are closed at the end. The counters of each worker that has ended are
    added up in the `shared` folder.
    """
    supervisor = _Supervisor(command, listeners, workers, shared, ready_timeout, stop_timeout)
    return asyncio.run(supervisor.main())


class _Worker:
    """One worker process."""

    def __init__(self, process: asyncio.subprocess.Process, line: socket.socket) -> None:
        self.process = process
        self.line = line
        self.started_at = asyncio.get_running_loop().time()
        self.ended = asyncio.Event()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    @property
    def end(self) -> str:
        """How the process has ended."""
        code = self.process.returncode
        if code is None or code >= 0:
            return f"ended with code {code}"
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"


class _Place:
    """A place for a worker, in which one follows the other."""

    def __init__(self, worker: _Worker | None = None) -> None:
        self.worker = worker
        self.lock = asyncio.Lock()
        """Held while another worker is put there."""


class _Supervisor:
    """One run of a parent."""

    def __init__(
        self,
        command: list[str],
        listeners: Mapping[str, socket.socket],
        workers: int,
        shared: Gathering | None,
        ready_timeout: float,
        stop_timeout: float,
    ) -> None:
        self._command = command
        self._listeners = listeners
        self._count = workers
        self._shared = shared
        self._ready_timeout = ready_timeout
        self._stop_timeout = stop_timeout
        self._workers: dict[_Worker, asyncio.Task[None]] = {}
        """All that live, also those that start or drain, with the tasks that wait for their end."""
        self._places: list[_Place] = []
        self._stop = asyncio.Event()
        self._hangup = asyncio.Event()
        self._code = 0

    async def main(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._hangup.set)
        loop.add_signal_handler(signal.SIGUSR1, self._pass_on, signal.SIGUSR1)
        for number in _STOPS:
            loop.add_signal_handler(number, self._on_stop, number)
        working = asyncio.create_task(self._work())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        failed = working.done()
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
        await self._end()
        if failed:
            working.result()
        return 1 if failed else self._code

    def _on_stop(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            self._code = 128 + number
            for worker in self._workers:
                worker.send(signal.SIGKILL)
        self._stop.set()

    def _pass_on(self, number: signal.Signals) -> None:
        for place in self._places:
            if place.worker is not None and place.worker.process.returncode is None:
                place.worker.send(number)
                return
        _logger.warning("%s came while no worker runs, and is lost", number.name)

    async def _work(self) -> None:
        """Keep all places filled; return when the first worker does not get ready."""
        first = await self._start()
        if first is None:
            return
        self._places = [_Place(first), *(_Place() for _ in range(self._count - 1))]
        async with asyncio.TaskGroup() as group:
            for place in self._places:
                group.create_task(self._keep(place))
            group.create_task(self._roll())

    async def _keep(self, place: _Place) -> None:
        """Put another worker in the place of one that died, ever later if they die at once."""
        delay = 0.0
        while True:
            async with place.lock:
                if place.worker is None:
                    place.worker = await self._start()
                worker = place.worker
            lived = 0.0
            if worker is not None:
                await worker.ended.wait()
                if place.worker is not worker:
                    continue  # it was replaced
                place.worker = None
                _logger.error("worker %d %s", worker.process.pid, worker.end)
                lived = asyncio.get_running_loop().time() - worker.started_at
            delay = 0.0 if lived > _STEADY_S else min(max(2 * delay, 0.1), _MAX_DELAY_S)
            await asyncio.sleep(delay)

    async def _roll(self) -> None:
        """Replace all workers, as often as that is asked for."""
        while True:
            await self._hangup.wait()
            self._hangup.clear()
            for place in self._places:
                async with place.lock:
                    worker = await self._start()
                    if worker is None:
                        _logger.error("the restart was given up; the old workers stay")
                        break
                    old, place.worker = place.worker, worker
                if old is not None:
                    old.send(signal.SIGTERM)
                    loop = asyncio.get_running_loop()
                    loop.call_later(self._stop_timeout, old.send, signal.SIGKILL)
            else:
                _logger.info("all workers were replaced")

    async def _start(self) -> _Worker | None:
        """Start a worker; return it when it is ready, and None if it fails."""
        line, theirs = socket.socketpair()
        line.setblocking(False)
        try:
            with theirs:
                process = await self._open(theirs)
        except OSError as error:
            line.close()
            self._complain(f"cannot start {self._command[0]}: {error.strerror}")
            return None
        worker = _Worker(process, line)
        self._workers[worker] = asyncio.create_task(self._wait_for_end(worker))
        try:
            async with asyncio.timeout(self._ready_timeout):
                if await asyncio.get_running_loop().sock_recv(line, 64):
                    return worker
                await worker.ended.wait()
        except TimeoutError:
            self._complain(f"worker {process.pid} was not ready in {self._ready_timeout:g} s")
            worker.send(signal.SIGKILL)
            return None
        if process.returncode != 1:  # else it has said why
            self._complain(f"worker {process.pid} {worker.end}")
        return None

    async def _open(self, line: socket.socket) -> asyncio.subprocess.Process:
        """Start the command with the listeners and its end of the line."""
        fds = {name: listener.fileno() for name, listener in self._listeners.items()}
        folder = None if self._shared is None else str(self._shared.path)
        others_serve = any(place.worker is not None for place in self._places)
        inherited = _Inheritance(fds, line.fileno(), folder, others_serve)
        # In a session of its own: the signals of a terminal are for the parent, which passes them
        # on.
        return await asyncio.create_subprocess_exec(
            *self._command,
            env={**os.environ, INHERITED: msgspec.json.encode(inherited).decode()},
            pass_fds=[*fds.values(), line.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    async def _wait_for_end(self, worker: _Worker) -> None:
        await worker.process.wait()
        worker.line.close()
        worker.ended.set()
        del self._workers[worker]
        if self._shared is not None:
            self._shared.take_in({each.process.pid for each in self._workers})

    def _complain(self, text: str) -> None:
        if self._places:
            _logger.error("%s", text)
        else:
            sys.stderr.write(f"limen: {text}\n")

    async def _end(self) -> None:
        """End all workers, and kill those that take too long."""
        # New clients are refused, instead of waiting until a worker accepts them.
        for listener in self._listeners.values():
            listener.close()
        for worker in self._workers:
            worker.send(signal.SIGTERM)
        ends = asyncio.gather(*self._workers.values())
        await asyncio.wait([ends], timeout=self._stop_timeout)
        for worker in self._workers:
            worker.send(signal.SIGKILL)
        await ends
