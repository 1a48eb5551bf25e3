"""Where rules are kept. A store keeps documents, plain data; it knows no limits and no matching."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct


class Snapshot(Struct, frozen=True):
    """The rules that hold now, as a store has them."""

    version: str
    """Names the document: another document has another version. `7`; for a file, its digest."""
    document: dict[str, Any]


class RuleStore(Protocol):
    """What those who follow rules ask of a store."""

    async def version(self) -> str:
        """Return the version that holds now, cheaply; empty when there are no rules yet."""
        ...

    async def load(self) -> Snapshot | None:
        """Return the rules that hold now; None when there are none yet."""
        ...


def source_of(store: RuleStore) -> str:
    """Return the identity of a store, without credentials: its `source`, else its class name."""
    kind = type(store)
    source: str = getattr(store, "source", f"{kind.__module__}.{kind.__qualname__}")
    return source
