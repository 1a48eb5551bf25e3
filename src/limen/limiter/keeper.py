"""`Keeper` and `AsyncKeeper`: renew the slots that are held in this process."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable

from limen import fork
from limen._internal import background
from limen.backends import Change, Release, Renew
from limen.errors import LimenError
from limen.model import Check, Concurrency

_IDLE_S = 5.0
MAX_RENEWALS = 16
"""How many slots are renewed at the same time, each in a thread of its own."""
_logger = logging.getLogger("limen")

Place = tuple[str, int]
"""Who holds, and which of the places that it holds."""


class Keeper:
    """Renews the slots that are held in this process, each three times a lease.

    One thread waits for all of them, and starts a short-lived one for each renewal. It ends when no
    slot was held for a while.
    """

    def __init__(self, change: Callable[[Change], bool]) -> None:
        self._change = change
        self.after_fork()
        fork.watch(self)

    def after_fork(self) -> None:
        """Start without slots: the child of a fork has neither the thread nor the slots."""
        self._changed = threading.Condition()
        self._held: dict[Place, tuple[Check, float]] = {}
        """The check of each slot, and when to renew it."""
        self._is_running = False
        self._is_closed = False
        self._renewals = threading.Semaphore(MAX_RENEWALS)

    def keep(self, check: Check, place: Place) -> None:
        """Go on renewing until dropped."""
        with self._changed:
            self._is_closed = False
            self._held[place] = (check, time.monotonic() + renewal_interval(check))
            if self._is_running:
                self._changed.notify()
            else:
                background.start(self._run)
                self._is_running = True

    def drop(self, place: Place) -> bool:
        """Stop renewing; return whether it was kept."""
        with self._changed:
            return self._held.pop(place, None) is not None

    def close(self) -> None:
        """Stop renewing anything; what is held ends with its lease."""
        with self._changed:
            self._is_closed = True
            self._held.clear()
            self._changed.notify()

    def _run(self) -> None:
        try:
            while due := self._wait_for_due():
                for place, check in due:
                    self._start_renewal(place, check)
        except BaseException:
            with self._changed:
                self._is_running = False
            raise

    def _start_renewal(self, place: Place, check: Check) -> None:
        """Renew a slot in another thread: a server that hangs does not delay other renewals."""
        self._renewals.acquire()
        try:
            background.start(self._renew, place, check)
        except RuntimeError:  # the system has no more threads
            self._renew(place, check)

    def _renew(self, place: Place, check: Check) -> None:
        holder = place[0]
        try:
            renewed = self._change(Renew(check, holder))
            if renewed and place not in self._held and not self._is_closed:
                # It was let go meanwhile, and the store may have granted it anew behind that.
                self._change(Release(check, holder))
        except Exception as error:
            log_not_renewed(check, holder, error)
            return
        finally:
            self._renewals.release()
        # A slot that was released meanwhile is not lost.
        if not renewed and self.drop(place):
            log_lost(check, holder)

    def _wait_for_due(self) -> list[tuple[Place, Check]]:
        """Return the slots to renew now; none means that the thread ends."""
        with self._changed:
            idle_until = time.monotonic() + _IDLE_S
            while True:
                now = time.monotonic()
                due = [(place, check) for place, (check, at) in self._held.items() if at <= now]
                for place, check in due:
                    self._held[place] = (check, now + renewal_interval(check))
                if due:
                    return due
                if not self._held and now >= idle_until:
                    self._is_running = False
                    return []
                next_at = min((at for _, at in self._held.values()), default=idle_until)
                self._changed.wait(next_at - now)


class AsyncKeeper:
    """Renews what an `AsyncSlot` holds, each place in a task of its own."""

    def __init__(self, change: Callable[[Change], Awaitable[bool]]) -> None:
        self._change = change
        self._tasks: dict[Place, asyncio.Task[None]] = {}

    def keep(self, check: Check, place: Place) -> None:
        """Go on renewing until dropped."""
        self._tasks[place] = asyncio.create_task(self._renew(check, place[0]))

    def drop(self, place: Place) -> None:
        """Stop renewing."""
        task = self._tasks.pop(place, None)
        if task is not None:
            task.cancel()

    async def _renew(self, check: Check, holder: str) -> None:
        while True:
            await asyncio.sleep(renewal_interval(check))
            try:
                renewed = await self._change(Renew(check, holder))
            except LimenError as error:
                log_not_renewed(check, holder, error)
                continue
            if not renewed:
                log_lost(check, holder)
                return


def renewal_interval(check: Check) -> float:
    """Return the seconds between two renewals: two may fail before the lease ends."""
    limit = check.limit
    assert isinstance(limit, Concurrency)
    return limit.lease / 3


def log_not_renewed(check: Check, holder: str, error: Exception) -> None:
    """Say that a lease was not lengthened. It is tried again, twice before the lease ends."""
    _logger.warning("slot %s (%s) was not renewed: %s", holder, check.limit, error)


def log_lost(check: Check, holder: str) -> None:
    """Say that a slot ended while it was held: the process stood still for longer than that."""
    _logger.warning(
        "slot %s (%s) was lost: its lease ended before it was renewed", holder, check.limit
    )
