"""The kill switch: all rules, or some, report and refuse nobody, whatever else is broken.

Its home is a file in the data folder, which every process of a host looks at, and which an operator
can make with `touch`. Redis carries it from host to host; each host writes down what came, and goes
by what is newer.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from limen.errors import LimenError, StoreError, did_you_mean, shown
from limen.rules.sync.files import replace

NAME = "kill-switch"
MAX_RULES = 500
"""How many rules can be switched by name."""
_ALL, _OFF = "all", "off"
_TOUCH_S = 0.01
MAX_BYTES = 1_000_000
# A clock may be wrong, but not by so much: what comes from a later time would win for ever.
_MAX_AHEAD_S = 86_400
_logger = logging.getLogger("limen")


class Switch(msgspec.Struct, frozen=True):
    """Which rules are in shadow."""

    all: bool = False
    """Whether it covers all rules."""
    rules: tuple[str, ...] = ()
    """The rules that it covers, if not all."""
    at: float = 0.0
    """When it was turned, in seconds since 1970; 0 for never."""
    by: str = ""
    """The name of the token, host or command that turned it."""

    @property
    def is_on(self) -> bool:
        """Whether any rule is in shadow by it."""
        return self.all or bool(self.rules)

    @property
    def covers(self) -> frozenset[str] | None:
        """The names of the rules it is about; None is all."""
        return None if self.all else frozenset(self.rules)

    def __str__(self) -> str:
        if not self.is_on:
            return "off"
        return "on for all rules" if self.all else f"on for {', '.join(self.rules)}"


def find_wrong_name(names: Sequence[str], known: Collection[str] | None) -> tuple[int, str] | None:
    """Return the index of the first name that cannot be switched, and why; None if all can.

    `known` are the names of the rules; None if they cannot be found out.
    """
    if len(names) > MAX_RULES:
        return MAX_RULES, (
            f"at most {MAX_RULES} rules can be switched by name, got {len(names)}; for all rules, "
            "leave the names out"
        )
    for index, name in enumerate(names):
        if known is not None and name not in known:
            return index, f"there is no rule {shown(name)}{did_you_mean(name, known)}"
        if name in (_ALL, _OFF):  # they have another meaning in the file
            return index, f"a rule that is called {name!r} cannot be switched by name"
    return None


def turned_on(rules: Iterable[str] = (), by: str = "") -> Switch:
    """Return a switch that is turned on now: for these rules, or for all."""
    names = tuple(dict.fromkeys(rules))
    return Switch(not names, names, time.time(), by)


def turned_off(by: str = "") -> Switch:
    """Return a switch that is turned off now."""
    return Switch(at=time.time(), by=by)


def encode(switch: Switch) -> bytes:
    """Write a switch for Redis."""
    return msgspec.json.encode(switch)


def decode(written: bytes | None) -> Switch | None:
    """Read a switch from Redis; None when there is none, or none that can be read."""
    if written is None or len(written) > MAX_BYTES:
        return None
    try:
        switch = msgspec.json.decode(written, type=Switch)
    except (msgspec.DecodeError, UnicodeError):
        return None
    return switch if 0 <= switch.at <= time.time() + _MAX_AHEAD_S else None


def _written_at(comment: str) -> float:
    """Return when the file says that it was written; without sense, never."""
    try:
        return float(comment.split()[2])
    except (IndexError, ValueError):
        return math.inf


class SwitchFile:
    """The switch of one host.

    The file says `all`, `off`, or the names of rules, a line each; lines that begin with `#` are
    for people. An empty one means all, and so does one that was touched after it was turned off.
    Without a file the switch is off.

    A switch that could not be written, as on a full disk, holds for those who share this object,
    until the file says something newer. It may be shared between threads.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path: Path = Path(folder) / NAME
        self._was_there = False
        """Whether the last `read` found the file."""
        self._removed = Switch()
        """The switch without a file: off since the file was removed."""
        self._unwritten: Switch | None = None
        self.after_fork()

    def after_fork(self) -> None:
        """Replace the lock, which another thread of the parent may have held."""
        # A signal handler writes, too, and may interrupt another one.
        self._writing = threading.RLock()

    @property
    def is_saved(self) -> bool:
        """Whether the file says all that was written."""
        return self._unwritten is None

    def read(self) -> Switch:
        """Return the switch. Raises `StoreError` when the file cannot be read."""
        unwritten = self._unwritten
        try:
            known = self._read()
        except StoreError:
            if unwritten is None:
                raise
            return unwritten
        return known if unwritten is None or unwritten.at <= known.at else unwritten

    def write(self, switch: Switch) -> None:
        """Turn the switch.

        Raises `StoreError` when the file cannot be written. The switch holds in memory then, and
        `write_again` tries again.
        """
        # In force before the lock: another thread may hold it while the disk hangs.
        self._unwritten = switch
        with self._writing:
            self._write(switch)

    def write_again(self) -> None:
        """Write what could not be written, unless the file is newer. Raises `StoreError`."""
        with self._writing:
            unwritten = self._unwritten
            if unwritten is None:
                return
            if self.read() is unwritten:
                self._write(unwritten)
            elif self._unwritten is unwritten:
                self._unwritten = None

    def take(self, other: Switch) -> bool:
        """Write down a switch from elsewhere if it is newer than ours; return whether it was."""
        if other.at <= self.read().at:
            return False
        self.write(other)
        return True

    def toggle_on(self, signal_number: int = signal.SIGUSR1) -> None:
        """Turn the switch, for all rules, whenever this process gets a signal.

        Only the main thread may say so, as always with signals.
        """

        def toggle(number: int, frame: object) -> None:
            by = f"{signal.Signals(number).name} at {socket.gethostname()}"
            try:
                # Whoever has some rules in shadow and calls for help wants all of them there.
                self.write(turned_off(by) if self.read().all else turned_on(by=by))
            except LimenError as error:
                # Not raised: it would strike whatever the program was doing.
                _logger.error("the kill switch is not saved: %s", error)

        signal.signal(signal_number, toggle)

    def _write(self, switch: Switch) -> None:
        words = [_ALL] if switch.all else list(switch.rules) or [_OFF]
        by = switch.by.replace("\n", " ")
        text = "\n".join([f"# at {switch.at:.6f} by {by}", *words, ""])
        replace(self.path, text.encode(), switch.at)
        # Another thread may have turned it meanwhile, and waits.
        if self._unwritten is switch:
            self._unwritten = None

    def _read(self) -> Switch:
        try:
            with self.path.open("rb") as file:
                text = file.read(MAX_BYTES).decode("utf-8", "replace")
                at = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            if self._was_there:
                self._removed, self._was_there = Switch(at=time.time()), False
            return self._removed
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error.strerror}") from None
        self._was_there = True
        lines = [line.strip() for line in text.splitlines()]
        words = [line for line in lines if line and not line.startswith("#")]
        comment = next((line for line in lines if line.startswith("# at ")), "")
        by = comment.partition(" by ")[2]
        if words == [_OFF]:
            # Whoever touches what was turned off by us wants it on: `touch` is all they know.
            is_touched = bool(comment) and at > _written_at(comment) + _TOUCH_S
            return Switch(is_touched, (), at, "touch" if is_touched else by)
        if not words or _ALL in words:
            return Switch(True, (), at, by)
        return Switch(False, tuple(words), at, by)
