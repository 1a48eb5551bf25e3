"""The figures of all workers of one host, as small files in a folder that their parent makes.

Not in Redis: figures matter most when Redis is away. Each worker writes one file, whole, once a
second. When a worker has ended, its parent adds its counters to the file `ended`, which names the
files that were added, and then deletes the file of the worker. A reader takes the files first and
`ended` last, and leaves out the files that `ended` names: a worker that ends meanwhile is counted
once, whichever of the two is seen.

Nothing here raises for the sake of a file: what cannot be written or read is logged, once a minute.
ADR 0027 has the reasons against the multiprocess mode of prometheus_client.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct, msgpack

from limen.backends.sampled import SampledLog
from limen.observe.figures import Figures, counters

_ENDED, _LOCK = "ended", "lock"
_PREFIX = "workers-"
# The number of the process first, by which its parent knows whose file it is.
_NAME = re.compile(r"(\d{1,10})-\w{1,64}")
_MOST_NAMED = 256
"""More than can end while a worker reads."""
_OVERTAKEN_S = 2.0
_WARN_S = 60.0
_logger = logging.getLogger("limen.server")


class _Ended(Struct):
    """The content of the file `ended`."""

    figures: Figures = msgspec.field(default_factory=lambda: Figures("", 0.0))
    names: list[str] = []
    """The files that were added to it; the last of them."""


_read_figures = msgpack.Decoder(Figures).decode
_read_ended = msgpack.Decoder(_Ended).decode


class Workers:
    """The figures of the workers of this host, as one worker reads and writes them."""

    def __init__(self, folder: Path | None, instance: str) -> None:
        """Take the folder that the parent made; without one there are no other workers."""
        self._folder = folder
        self._name = f"{os.getpid()}-{instance}"
        self._own: Figures | None = None
        self._others: list[Figures] = []
        """The figures of the other workers, as they could be read last."""
        self._last: dict[str, Figures] = {}
        """The figures of each file, as they could be read last."""
        self._lock = threading.Lock()
        self._log = SampledLog(_WARN_S)

    def write(self, figures: Figures) -> None:
        """Let the others know these figures. Blocks for as long as a small file takes."""
        with self._lock:
            # Threads may overtake each other, and counters that fall would look like a new start.
            # Figures that are older by more than that are from a clock that was set back.
            if self._own is not None and 0 < self._own.at - figures.at < _OVERTAKEN_S:
                return
            self._own = figures
            if self._folder is None:
                return
            try:
                _replace(self._folder / self._name, msgpack.encode(figures))
            except OSError as error:
                self._log.warn("write", f"other workers do not see this one's figures: {error}")

    def exchange(self, figures: Figures) -> list[Figures]:
        """Write these figures, and return those of all workers.

        To answer a scrape: its figures must be in the file first. Else the next scrape, which
        another worker answers, would show less than this one.
        """
        self.write(figures)
        return self.read()

    def read(self) -> list[Figures]:
        """Return the figures of all workers, and those of all that ended as one.

        Blocks for as long as a few small files take. If they cannot be read, the others are as
        they were: counters that fall would look as if the service had started anew.
        """
        if self._folder is not None:
            try:
                self._others = self._read_others(self._folder)
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                self._log.warn("read", f"/metrics shows old figures of other workers: {error}")
        return self._others if self._own is None else [self._own, *self._others]

    def _read_others(self, folder: Path) -> list[Figures]:
        figures: dict[str, Figures] = {}
        for name in _names(folder):
            try:
                figures[name] = _read_figures((folder / name).read_bytes())
            except FileNotFoundError:
                continue  # it has ended, and is in the other file
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                self._log.warn("read", f"/metrics shows old figures of another worker: {error}")
                if name in self._last:
                    figures[name] = self._last[name]
        self._last = figures.copy()
        ended = _read_ended((folder / _ENDED).read_bytes())
        for name in (*ended.names, self._name):
            figures.pop(name, None)
        return [*figures.values(), ended.figures]


class Gathering:
    """The parent's side of the folder: it adds up the figures of workers that ended."""

    def __init__(self, path: Path) -> None:
        """Take an empty folder."""
        self.path: Path = path
        self._log = SampledLog(_WARN_S)
        self._write_ended(_Ended())

    def take_in(self, living: Collection[int]) -> None:
        """Add up the counters of all workers but those with these process ids."""
        try:
            gone = [name for name in _names(self.path) if int(name.partition("-")[0]) not in living]
            new = [name for name in gone if name not in self._ended.names]
            if new:
                figures = [each for name in new if (each := self._figures_of(name)) is not None]
                names = [*self._ended.names, *new][-_MOST_NAMED:]
                self._write_ended(_Ended(counters([*figures, self._ended.figures]), names))
            for name in gone:
                (self.path / name).unlink()
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            # The files stay, and are counted as they are.
            self._log.warn("end", f"the figures of a worker that ended stay in its file: {error}")

    def _figures_of(self, name: str) -> Figures | None:
        """Return the figures in a file; None, with a warning, if the file is damaged."""
        try:
            return _read_figures((self.path / name).read_bytes())
        except (ValueError, msgspec.MsgspecError) as error:
            self._log.warn("lost", f"the figures of a worker that ended are lost: {error}")
            return None

    def _write_ended(self, ended: _Ended) -> None:
        _replace(self.path / _ENDED, msgpack.encode(ended))
        self._ended = ended


@contextlib.contextmanager
def gathering(data_dir: Path) -> Iterator[Gathering | None]:
    """Make a folder for the figures of workers; remove it at the end.

    Folders of parents that were killed are removed first. None when there can be no folder: then
    each worker shows its own figures alone, and the log says so.
    """
    with contextlib.ExitStack() as stack:
        made = None
        try:
            for old in data_dir.glob(f"{_PREFIX}*"):
                _sweep(old)
            path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=data_dir.resolve()))  # mode 0700
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            stack.callback(os.close, _locked(path))
            made = Gathering(path)
        except OSError as error:
            _logger.warning("/metrics shows one worker at a time: %s", error)
        yield made


def _sweep(folder: Path) -> None:
    """Remove a folder that no parent holds."""
    with contextlib.suppress(OSError):
        lock = _locked(folder)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked(folder: Path) -> int:
    """Lock a folder for as long as the returned descriptor is open. Raises `OSError`."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir() if _NAME.fullmatch(each.name)]


def _replace(path: Path, written: bytes) -> None:
    """Put a file in place of another, as a whole. It need not outlive the host: no fsync."""
    fresh = path.with_name(f".{path.name}")  # each file has one writer
    fresh.write_bytes(written)
    fresh.replace(path)
