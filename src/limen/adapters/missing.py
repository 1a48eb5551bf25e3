"""What is raised when the framework of an adapter is not installed."""

from __future__ import annotations


def missing(adapter: str, error: ImportError) -> ImportError:
    """Return what to raise for an adapter whose framework cannot be imported."""
    return ImportError(
        f"limen.adapters.{adapter} needs the package {error.name}; "
        f"run: pip install 'limen[{adapter}]'",
        name=error.name,
    )
