"""Subscribers to decisions: what was decided, how often, for whom, and whether that is right."""

from limen.observe.metrics import Metrics

__all__ = ["Metrics"]
