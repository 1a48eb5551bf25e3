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
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from limen.errors import ConfigurationError, shown

WORKER_FD = "LIMEN_WORKER_FD"
"""The listening sockets that a worker inherits, with their names: `data=3,admin=4`."""
READY_FD = "LIMEN_READY_FD"
"""The worker's end of the line to its parent."""
FOLDER = "LIMEN_WORKERS_FOLDER"
"""The folder that workers share, if there is one."""
OTHERS_SERVE = "LIMEN_OTHERS_SERVE"
"""Set for a worker that is started while others serve."""
_STOPS = (signal.SIGTERM, signal.SIGINT)
_STEADY_S = 10.0
_MAX_DELAY_S = 5.0
_logger = logging.getLogger("limen.server")


class Parent:
    """A worker's parent, as the worker sees it."""

    def __init__(
        self,
        listeners: dict[str, socket.socket],
        line: socket.socket,
        folder: Path | None = None,
        *,
        others_serve: bool = False,
    ) -> None:
        self.listeners: dict[str, socket.socket] = listeners
        """By the names that the parent gave them."""
        self.others_serve: bool = others_serve
        """Whether other workers answer until this one is ready."""
        self.folder: Path | None = folder
        """What all workers share; the parent made it, and will remove it."""
        self.line: socket.socket = line
        """Can be read when the parent has gone."""
        line.setblocking(False)

    def tell_ready(self) -> None:
        """Tell the parent that requests are accepted now."""
        with contextlib.suppress(OSError):
            self.line.send(b"ready\n")

    def is_gone(self) -> bool:
        """Say whether the parent is dead, however it died."""
        try:
            return not self.line.recv(64)
        except BlockingIOError:
            return False
        except OSError:
            return True


def parent() -> Parent | None:
    """Return the parent of this process; None when it is not a worker.

    What told so is taken out of the environment: the children of a worker are no workers.
    """
    fds, line = os.environ.pop(WORKER_FD, None), os.environ.pop(READY_FD, None)
    folder, others_serve = os.environ.pop(FOLDER, ""), bool(os.environ.pop(OTHERS_SERVE, ""))
    if fds is None or line is None:
        return None
    try:
        named = [each.partition("=") for each in fds.split(",")]
        listeners = {name: socket.socket(fileno=int(fd)) for name, _, fd in named}
        own = socket.socket(fileno=int(line))
        shared = Path(folder) if folder else None
        return Parent(listeners, own, shared, others_serve=others_serve)
    except (ValueError, OSError):
        raise ConfigurationError(
            f"{WORKER_FD}={shown(fds)} and {READY_FD}={shown(line)} are no open sockets: "
            "they are set for workers, by their parent; unset them"
        ) from None


class Shared(Protocol):
    """A folder that workers share."""

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    def take_in(self, living: Collection[int]) -> None:
        """Look after what was left by all but the workers with these process ids."""
        ...


def supervise(
    command: list[str],
    listeners: Mapping[str, socket.socket],
    workers: int,
    *,
    shared: Shared | None = None,
    ready_timeout: float = 30.0,
    stop_timeout: float = 40.0,
) -> int:
    """Run so many workers until SIGTERM or SIGINT; return the exit code of the process.

    The first is started alone: when it does not get ready, the code is 1 and it has said why. A
    worker that dies is replaced. SIGHUP replaces all of them, one after the other, and an old one
    ends only when the new one is ready. SIGUSR1 goes to one of them. A stop lets them drain; who
    takes longer than `stop_timeout` seconds is killed, and so are all at a second signal. The
    listeners are closed at the end. What workers share is looked after whenever one has ended.
    """
    with asyncio.Runner() as runner:
        return runner.run(
            _Supervisor(command, listeners, workers, shared, ready_timeout, stop_timeout).main()
        )


class _Worker:
    """One worker process."""

    def __init__(
        self, command: list[str], listeners: Mapping[str, socket.socket], told: Mapping[str, str]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.started_at = self._loop.time()
        self.ready: asyncio.Future[bool] = self._loop.create_future()
        """False when it ended before it was."""
        self.ended = asyncio.Event()
        self._line, theirs = socket.socketpair()
        try:
            self.process = _popen(command, listeners, theirs, told)
        except OSError:
            self._line.close()
            raise
        finally:
            theirs.close()
        self._line.setblocking(False)
        self._loop.add_reader(self._line, self._hear)

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_ended(self) -> bool:
        """Say whether the process is no more; if so, tell whoever waits for that."""
        if self.process.poll() is None:
            return False
        self._loop.remove_reader(self._line)
        self._line.close()
        if not self.ready.done():
            self.ready.set_result(False)
        self.ended.set()
        return True

    def _hear(self) -> None:
        try:
            said = self._line.recv(64)
        except OSError:
            said = b""
        if not said:
            self._loop.remove_reader(self._line)
        elif not self.ready.done():
            self.ready.set_result(True)


class _Place:
    """A place for a worker, in which one follows the other."""

    def __init__(self, worker: _Worker | None = None) -> None:
        self.worker = worker
        self.lock = asyncio.Lock()
        """Held by who puts another worker there."""


class _Supervisor:
    """One run of a parent."""

    def __init__(
        self,
        command: list[str],
        listeners: Mapping[str, socket.socket],
        workers: int,
        shared: Shared | None,
        ready_timeout: float,
        stop_timeout: float,
    ) -> None:
        self._command = command
        self._listeners = listeners
        self._count = workers
        self._shared = shared
        self._ready_timeout = ready_timeout
        self._stop_timeout = stop_timeout
        self._workers: set[_Worker] = set()
        """All that live: also those that start, and those that drain."""
        self._places: list[_Place] = []
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._hangup = asyncio.Event()
        self._code = 0

    async def main(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
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
            self._hurry.set()
        self._stop.set()

    def _pass_on(self, number: signal.Signals) -> None:
        for place in self._places:
            if place.worker is not None and place.worker.process.poll() is None:
                place.worker.process.send_signal(number)
                return
        _logger.warning("%s came while no worker runs, and is lost", number.name)

    def _reap(self) -> None:
        # One signal may stand for several.
        ended = [each for each in self._workers if each.has_ended()]
        self._workers.difference_update(ended)
        if ended and self._shared is not None:
            self._shared.take_in({worker.pid for worker in self._workers})

    async def _work(self) -> None:
        """Keep all places filled; return when the first worker does not get ready."""
        first = await self._try()
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
                    place.worker = await self._try()
                worker = place.worker
            lived = 0.0
            if worker is not None:
                await worker.ended.wait()
                if place.worker is not worker:
                    continue  # it was replaced
                place.worker = None
                _logger.error("worker %d %s", worker.pid, _how(worker.process.returncode))
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
                    worker = await self._try()
                    if worker is None:
                        _logger.error("the restart was given up; the old workers stay")
                        break
                    old, place.worker = place.worker, worker
                if old is not None:
                    self._dismiss(old)
            else:
                _logger.info("all workers were replaced")

    async def _try(self) -> _Worker | None:
        """Start a worker; return it when it is ready, and None when it does not get so."""
        told = {} if self._shared is None else {FOLDER: str(self._shared.path)}
        if any(place.worker is not None for place in self._places):
            told[OTHERS_SERVE] = "1"
        try:
            worker = _Worker(self._command, self._listeners, told)
        except OSError as error:
            self._complain(f"cannot start {self._command[0]}: {error.strerror}")
            return None
        self._workers.add(worker)
        await asyncio.wait([worker.ready], timeout=self._ready_timeout)
        if not worker.ready.done():
            self._complain(f"worker {worker.pid} was not ready in {self._ready_timeout:g} s")
            worker.process.kill()
            return None
        if worker.ready.result():
            return worker
        if worker.process.returncode != 1:  # else it has said why
            self._complain(f"worker {worker.pid} {_how(worker.process.returncode)}")
        return None

    def _complain(self, text: str) -> None:
        if self._places:
            _logger.error("%s", text)
        else:
            sys.stderr.write(f"limen: {text}\n")

    def _dismiss(self, worker: _Worker) -> None:
        worker.process.terminate()
        # Nothing happens to one that has ended by then.
        asyncio.get_running_loop().call_later(self._stop_timeout, worker.process.kill)

    async def _end(self) -> None:
        """End all workers, first kindly; return when there are none."""
        # Whoever comes now is refused, instead of waiting for somebody to accept.
        for listener in self._listeners.values():
            listener.close()
        for worker in self._workers:
            worker.process.terminate()
        gone = asyncio.create_task(self._all_gone())
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait(
            [gone, hurry], timeout=self._stop_timeout, return_when=asyncio.FIRST_COMPLETED
        )
        hurry.cancel()
        for worker in self._workers:
            worker.process.kill()
        await gone

    async def _all_gone(self) -> bool:
        return all([await worker.ended.wait() for worker in list(self._workers)])


def _popen(
    command: list[str],
    listeners: Mapping[str, socket.socket],
    line: socket.socket,
    told: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    fds = {name: listener.fileno() for name, listener in listeners.items()}
    named = ",".join([f"{name}={fd}" for name, fd in fds.items()])
    told = {**told, WORKER_FD: named, READY_FD: str(line.fileno())}
    # In a session of its own: what a terminal tells its programs is for the parent, who tells the
    # workers.
    return subprocess.Popen(
        command,
        env={**os.environ, **told},
        pass_fds=[*fds.values(), line.fileno()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
