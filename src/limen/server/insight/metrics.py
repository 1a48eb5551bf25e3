"""`/metrics`: what a scrape is answered. Which numbers there are is for `limen.observe`."""

from __future__ import annotations

import asyncio

from limen.observe.figures import Figures
from limen.observe.prometheus import exposition

_FEW = 40
"""So many rules and servers are written down in about a millisecond."""


async def metrics_text(figures: Figures, workers: int, accept: str) -> tuple[bytes, str]:
    """Return the text of all metrics, and its content type.

    `workers` is how many live, and `accept` the header of the request, empty without one. Many
    rules are written down in a thread, so that decisions go on meanwhile.
    """
    if len(figures.decisions) + 2 * len(figures.servers) <= _FEW:
        return exposition(figures, workers, accept)
    return await asyncio.to_thread(exposition, figures, workers, accept)
