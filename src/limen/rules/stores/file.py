"""Rules in a file: for those who keep them in git. Read only."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from limen.errors import ConfigurationError, InvalidRules
from limen.rules.document import parse_bytes, read_file
from limen.rules.ruleset import RuleSet
from limen.rules.stores import Snapshot

_YOUNG_NS = 2_000_000_000


class FileStore:
    """The rules in one YAML or JSON file, which may be replaced at any time."""

    def __init__(self, path: str | Path) -> None:
        if "://" in str(path):
            # Not repeated: a password may be in it.
            raise ConfigurationError("that is an address, not a file; a database is for SqlStore")
        self.path: Path = Path(path)
        self._stamp: tuple[int, ...] | None = None
        self._raw: bytes | None = None
        self._found: RuleSet | InvalidRules | None = None

    @property
    def source(self) -> str:
        """The absolute path of the file: the identity of these rules."""
        # Symbolic links are kept: deployments point them at each new version of the file.
        return f"file:{os.path.normpath(self.path.absolute())}"

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
        if self._stamp is None or self._stamp != stamp:
            raw = read_file(self.path)
            if raw != self._raw:
                self._raw, self._found = raw, self._parse(raw)
            self._stamp = stamp
        if isinstance(self._found, InvalidRules):
            raise InvalidRules(self._found.problems)
        assert self._found is not None
        return self._found

    def _parse(self, raw: bytes) -> RuleSet | InvalidRules:
        try:
            return parse_bytes(raw, is_json=self.path.suffix == ".json")
        except InvalidRules as error:
            # It stays as bad as it is until it changes, and need not be read again.
            return error

    def __repr__(self) -> str:
        return f"FileStore({str(self.path)!r})"


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return what tells one state of a file from another without reading it; None is no telling.

    Clocks of file systems are coarse: one that was written a moment ago may be written again, with
    as many bytes, and look the same.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    is_young = time.time_ns() - found.st_mtime_ns < _YOUNG_NS
    return None if is_young else (found.st_mtime_ns, found.st_size, found.st_ino)
