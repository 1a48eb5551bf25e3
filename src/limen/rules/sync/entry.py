"""A rule set on its way between processes: written, and read with distrust. Pure.

Anybody may have written what is found in a cache or in a file. It is believed only if it has the
size, the form and the format that we write, and its digest is that of its document.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from limen.errors import LimenError, shown
from limen.rules.document import digest
from limen.rules.stores import Snapshot

FORMAT = 1
MAX_BYTES = 8 * 2**20
_MAX_VERSION = 64


class Poisoned(LimenError):
    """Say why what was found is not believed."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rule set with what proves it."""

    format: int
    version: str
    digest: str
    written_at: float
    """Seconds since 1970."""
    document: dict[str, Any]
    source: str = ""
    """The identity of the store of the rules; only in the last good file."""

    @property
    def snapshot(self) -> Snapshot:
        """The rules alone."""
        return Snapshot(self.version, self.document)


def encode(snapshot: Snapshot, source: str = "") -> bytes:
    """Write a rule set. Raises `Poisoned` when nobody would read it, for its size."""
    proof = digest(snapshot.document)
    entry = Entry(FORMAT, snapshot.version, proof, time.time(), snapshot.document, source)
    written = msgspec.json.encode(entry)
    if len(written) > MAX_BYTES:
        raise Poisoned(f"it has {len(written):,} bytes, and {MAX_BYTES:,} are read at most")
    return written


def decode(written: bytes) -> Entry:
    """Read a rule set, or raise `Poisoned`. Its rules are yet to be checked."""
    if len(written) > MAX_BYTES:
        raise Poisoned(f"it has {len(written):,} bytes, expected at most {MAX_BYTES:,}")
    try:
        form = msgspec.json.decode(written, type=_Form)
        if form.format != FORMAT:
            # Before the rest is looked at: another format may have other fields.
            raise Poisoned(f"it has format {form.format}, expected {FORMAT}")
        entry = msgspec.json.decode(written, type=Entry)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise Poisoned(f"it cannot be read: {error}") from None
    if not 0 < len(entry.version) <= _MAX_VERSION:
        raise Poisoned(f"its version is {shown(entry.version)}")
    try:
        found = digest(entry.document)
    except (ValueError, RecursionError) as error:
        raise Poisoned(f"its document cannot be written again: {error}") from None
    if found != entry.digest:
        raise Poisoned("its digest is not that of its document")
    return entry


class _Form(msgspec.Struct):
    format: int
