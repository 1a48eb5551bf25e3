"""Rules in a file: for those who keep them in git. Read only."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from limen.errors import ConfigurationError, InvalidRules
from limen.rules.document import parse_bytes, read_file
from limen.rules.ruleset import RuleSet
from limen.rules.stores import Snapshot


class FileStore:
    """The rules in one YAML or JSON file, which may be replaced at any time."""

    def __init__(self, path: str | Path) -> None:
        if "://" in str(path):
            # Not repeated: a password may be in it.
            raise ConfigurationError("that is an address, not a file; a database is for SqlStore")
        self.path: Path = Path(path)
        self._raw: bytes | None = None
        self._parsed: RuleSet | InvalidRules | None = None

    @property
    def source(self) -> str:
        """The absolute path of the file: the identity of these rules."""
        # Symbolic links are kept: deployments point them at each new version of the file.
        return f"file:{os.path.normpath(self.path.absolute())}"

    async def version(self) -> str:
        """Return the digest of what the file says. Parses it only when it has changed.

        Raises `InvalidRules` or `ConfigurationError` when there are no good rules in it.
        """
        return (await self._read()).version

    async def load(self) -> Snapshot:
        """Return what the file says. Raises as `version` does."""
        rules = await self._read()
        return Snapshot(rules.version, dict(rules.document))

    async def _read(self) -> RuleSet:
        return await asyncio.to_thread(self._parse_if_changed)

    def _parse_if_changed(self) -> RuleSet:
        # Always read: the size and time of a file may stay the same when its content changes.
        raw = read_file(self.path)
        if self._parsed is None or raw != self._raw:
            self._raw, self._parsed = raw, self._parse(raw)
        if isinstance(self._parsed, InvalidRules):
            raise InvalidRules(self._parsed.problems)
        return self._parsed

    def _parse(self, raw: bytes) -> RuleSet | InvalidRules:
        try:
            return parse_bytes(raw, is_json=self.path.suffix == ".json")
        except InvalidRules as error:
            return error

    def __repr__(self) -> str:
        return f"FileStore({str(self.path)!r})"
