"""`Follower`: asks a store again and again, and hands on every rule set that is new and good."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from limen.errors import ConfigurationError, InvalidRules, LimenError, shown
from limen.rules.document import parse
from limen.rules.ruleset import RuleSet
from limen.rules.stores import RuleStore

_logger = logging.getLogger("limen")


class Follower:
    """Keeps a program on the newest rules of a store, from a thread of its own.

    ```python
    with Follower(FileStore("rules.yaml"), engine.use):
        ...
    ```

    Whatever goes wrong, the last good rules stay: a file that cannot be understood, or a database
    that does not answer, is logged, once for each new reason.
    """

    def __init__(
        self, store: RuleStore, use: Callable[[RuleSet], object], *, interval: float = 1.0
    ) -> None:
        if not 0 < interval < 86_400:
            raise ConfigurationError(
                f"interval must be seconds above 0 and below a day, got {shown(interval)}"
            )
        self._store = store
        self._use = use
        self._interval = interval
        self._version: str | None = None
        self._refused: str | None = None
        self._complaint = ""
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to follow. The first look is at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="limen-rules", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop following, and wait until the last look is over."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                asyncio.run(self._look())
                self._complaint = ""
            except LimenError as error:
                self._complain(str(error))
            except Exception as error:  # a thread that ends here would follow no more
                self._complain(f"{type(error).__name__}: {error}")
            self._closing.wait(self._interval)

    async def _look(self) -> None:
        version = await self._store.version()
        if version in (self._version, self._refused):
            return
        snapshot = await self._store.load()
        if snapshot is None:
            return
        try:
            rules = parse(snapshot.document, version=snapshot.version)
        except InvalidRules as error:
            # Once: it stays as bad until there is another version.
            self._refused = snapshot.version
            self._complain(str(error))
            return
        self._use(rules)
        self._version, self._refused = snapshot.version, None
        _logger.info("rules %s are in force: %d rules", rules.version, len(rules.rules))

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:
            self._complaint = reason
            _logger.error(
                "the rules could not be renewed, and %s stay in force: %s",
                self._version or "those from the start",
                reason,
            )
