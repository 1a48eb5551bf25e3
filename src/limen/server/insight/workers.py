"""The figures of all workers of one host, as small files in a folder that their parent makes.

Not by way of the store: figures matter most when it is away. Each worker writes one file, whole,
once a second. When a worker has ended its parent adds its counters to the file `ended`, which also
names those that it has taken in, and then deletes the worker's file. Who reads takes the files
first and `ended` last, and leaves out the files of those named there: a worker that ends meanwhile
is counted once, whichever of the two is seen.

Nothing here raises for the sake of a file: what cannot be written or read is logged, once a minute.
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
from typing import NamedTuple

import msgspec
from msgspec import Struct

from limen.backends.sampled import SampledLog
from limen.observe.figures import Figures, counters, decode, encode, is_sound

_ENDED, _LOCK = "ended", "lock"
_PREFIX = "workers-"
# The number of the process first, by which its parent knows whose file it is.
_NAME = re.compile(r"(\d{1,10})-\w{1,64}")
_MOST_BYTES = 4 * 2**20
_MOST_NAMED = 256
"""More than can end while somebody reads."""
_OVERTAKEN_S = 2.0
_WARN_S = 60.0
_TRIES = 10
_logger = logging.getLogger("limen.server")


class Workers:
    """What one worker tells the others of itself, and knows of them."""

    def __init__(self, folder: Path | None, instance: str) -> None:
        """Take the folder that the parent made; without one there are no others."""
        self._folder = folder
        self._name = f"{os.getpid()}-{instance}"
        self._own: Figures | None = None
        self._seen = _Seen({}, _Ended())
        self._lock = threading.Lock()
        self._log = SampledLog(_WARN_S)

    def write(self, figures: Figures) -> None:
        """Let the others know these figures. Blocks for as long as a small file takes."""
        with self._lock:
            # Threads may overtake each other; counters that fell would look like a new start. Who
            # is older by more than that comes from a clock that was set back.
            if self._own is not None and 0 < self._own.at - figures.at < _OVERTAKEN_S:
                return
            self._own = figures
            if self._folder is None:
                return
            try:
                _replace(self._folder / self._name, encode(figures))
            except (OSError, ValueError) as error:
                self._log.warn("write", f"other workers do not see this one's figures: {error}")

    def exchange(self, figures: Figures) -> list[Figures]:
        """Write these figures, and read those of all.

        For whoever answers a scrape: what it tells of itself must be in its file first. Else the
        next scrape, which another worker answers, would show less than this one.
        """
        self.write(figures)
        return self.read()

    def read(self) -> list[Figures]:
        """Return the figures of all workers, in the same order whoever reads.

        Those that this worker wrote last are among them in any case; behind the living ones is what
        remains of all that ended. What cannot be read is as it was when it could be: counters that
        fell would look as if the service had started anew. Blocks for as long as a few small files
        take.
        """
        seen = self._look(self._folder) if self._folder is not None else self._seen
        files, ended = self._seen = seen
        found = {name: each for name, each in files.items() if name not in ended.taken}
        if self._own is not None:
            found[self._name] = self._own
        figures = [found[name] for name in sorted(found, key=_number)]
        return [*figures, ended.figures] if ended.taken else figures

    def _look(self, folder: Path) -> _Seen:
        """Read all files; return what is in them, or was when they could be read."""
        files: dict[str, Figures] = {}
        try:
            for name in _names(folder):
                try:
                    files[name] = _read(folder / name)
                except FileNotFoundError:
                    continue  # it has ended meanwhile, and is in the other file
                except (OSError, ValueError) as error:
                    self._warn_of_old(error)
                    if name in self._seen.files:
                        files[name] = self._seen.files[name]
            return _Seen(files, _read_ended(folder))
        except (OSError, ValueError) as error:  # who has ended cannot be told
            self._warn_of_old(error)
            return self._seen

    def _warn_of_old(self, error: Exception) -> None:
        self._log.warn("read", f"/metrics shows old figures of other workers: {error}")


class Gathering:
    """The parent's side of the folder: it makes it, adds up who has ended, and removes it."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        self._ended = _Ended()
        self._log = SampledLog(_WARN_S)

    def take_in(self, living: Collection[int]) -> None:
        """Add up the counters of all workers but those with these process ids."""
        try:
            gone = [name for name in _names(self.path) if _number(name) not in living]
            left = [name for name in gone if name not in self._ended.taken]
            if left:
                self._add(left)
            for name in [*gone, *_half_written(self.path, living)]:
                (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            # The files stay, and are counted as they are.
            self._log.warn("end", f"the figures of a worker that ended stay in its file: {error}")

    def _add(self, names: list[str]) -> None:
        figures = [self._ended.figures]
        for name in names:
            try:
                figures.append(_read(self.path / name))
            except ValueError as error:
                _logger.warning("what a worker that ended has counted is lost: %s", error)
        ended = _Ended(counters(figures), [*self._ended.taken, *names][-_MOST_NAMED:])
        _replace(self.path / _ENDED, msgspec.msgpack.encode(ended))
        self._ended = ended


@contextlib.contextmanager
def gathering(data_dir: Path) -> Iterator[Gathering | None]:
    """Make a folder for the figures of workers; remove it at the end.

    Folders of parents that were killed are removed first. None when there can be no folder: then
    each worker shows its own figures alone, and the log says so.
    """
    made = None
    try:
        _sweep(data_dir)
        made = _make(data_dir)
    except OSError as error:
        _logger.warning("/metrics shows one worker at a time: %s", error)
    if made is None:
        yield None
        return
    path, lock = made
    try:
        yield Gathering(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


class _Ended(Struct):
    figures: Figures = msgspec.field(default_factory=lambda: Figures("", 0.0))
    taken: list[str] = []
    """Whose counters are in there; the last of them."""


class _Seen(NamedTuple):
    """What was in the folder. One value, because several threads may look."""

    files: dict[str, Figures]
    ended: _Ended


_decoder = msgspec.msgpack.Decoder(_Ended)


def _make(data_dir: Path) -> tuple[Path, int]:
    """Make a folder with a lock that is held; return the folder and the lock's descriptor.

    Somebody who sweeps may be faster than we lock: then another folder is made.
    """
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=data_dir.resolve()))  # mode 0700
        lock = _locked(path)
        if lock is not None:
            return path, lock
        shutil.rmtree(path, ignore_errors=True)
    raise OSError(f"the folder for the figures of workers in {data_dir} cannot be locked")


def _sweep(data_dir: Path) -> None:
    """Remove the folders that nobody holds."""
    for path in data_dir.glob(f"{_PREFIX}*"):
        lock = _locked(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """Lock a folder, for as long as what is returned is open; None when somebody else has it."""
    path = folder / _LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It may have been swept between the two steps; then what we hold is no file any more.
        if os.path.samestat(os.fstat(lock), path.stat()):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir() if _NAME.fullmatch(each.name)]


def _half_written(folder: Path, living: Collection[int]) -> list[str]:
    """Return the files that a worker began to write and will not finish."""
    hidden = [each.name for each in folder.iterdir() if _NAME.fullmatch(each.name[1:])]
    return [name for name in hidden if name[0] == "." and _number(name[1:]) not in living]


def _number(name: str) -> int:
    return int(name.partition("-")[0])


def _read(path: Path) -> Figures:
    """Return the figures in a file. Raises `ValueError` when there are none, or `OSError`."""
    figures = decode(_content(path))
    if figures is None:
        raise ValueError(f"{path} holds no figures")
    return figures


def _read_ended(folder: Path) -> _Ended:
    path = folder / _ENDED
    try:
        ended = _decoder.decode(_content(path))
    except FileNotFoundError:
        return _Ended()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"{path} holds no figures") from None
    if not is_sound(ended.figures):
        raise ValueError(f"{path} holds no figures")
    return ended


def _content(path: Path) -> bytes:
    """Return what is in a file; the beginning, when it is longer than ours are."""
    with path.open("rb") as file:
        return file.read(_MOST_BYTES + 1)


def _replace(path: Path, written: bytes) -> None:
    """Put a file in place of another, as a whole. It need not outlive the host: no fsync."""
    fresh = path.with_name(f".{path.name}")  # each file has one writer
    try:
        fresh.write_bytes(written)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
