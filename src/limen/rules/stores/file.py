"""Rules in a file: for those who keep them in git. Read only."""

from __future__ import annotations

import asyncio
from pathlib import Path

from limen.errors import ConfigurationError, InvalidRules
from limen.rules.document import load
from limen.rules.ruleset import RuleSet
from limen.rules.stores import Snapshot


class FileStore:
    """The rules in one YAML or JSON file, which may be replaced at any time."""

    def __init__(self, path: str | Path) -> None:
        if "://" in str(path):
            # Not repeated: a password may be in it.
            raise ConfigurationError("that is an address, not a file; a database is for SqlStore")
        self.path: Path = Path(path)
        self._known: tuple[tuple[int, ...], RuleSet | InvalidRules] | None = None

    async def version(self) -> str:
        """Return the digest of what the file says. Reads it only when it has changed.

        Raises `InvalidRules` or `ConfigurationError` when there are no good rules in it.
        """
        return (await self._read()).version

    async def load(self) -> Snapshot:
        """Return what the file says. Raises as `version` does."""
        rules = await self._read()
        return Snapshot(rules.version, dict(rules.document))

    async def _read(self) -> RuleSet:
        return await asyncio.to_thread(self._read_if_changed)

    def _read_if_changed(self) -> RuleSet:
        stamp = _stamp(self.path)
        known = self._known
        if known is None or known[0] != stamp:
            # A file that is replaced while it is read has another stamp the next time.
            try:
                known = (stamp, load(self.path))
            except InvalidRules as error:
                # It stays as bad as it is until it changes, and need not be read again.
                known = (stamp, error)
            self._known = known
        if isinstance(known[1], InvalidRules):
            raise InvalidRules(known[1].problems)
        return known[1]

    def __repr__(self) -> str:
        return f"FileStore({str(self.path)!r})"


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what tells one state of a file from another without reading it."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
