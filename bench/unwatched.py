"""The service with nobody who watches: nothing is counted, nothing is looked at once a second.

There is no such setting. It is what observing in the service is measured against. Run as
`python -m bench.unwatched`, with the arguments of `limen`; for one worker, because others are
started as `limen`.
"""

from __future__ import annotations

from unittest.mock import patch

from limen.backends.histogram import Histogram
from limen.cli import main
from limen.server.insight.insight import Insight
from limen.server.insight.watch import Watch


def unseen(*what: object) -> None:
    """See nothing of it."""


def run() -> None:
    """Do what `limen` does, and see nothing."""
    with (
        patch.object(Watch, "see", unseen),
        patch.object(Insight, "start", unseen),
        patch.object(Histogram, "add", unseen),
    ):
        main()


if __name__ == "__main__":
    run()
