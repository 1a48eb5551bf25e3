"""What is raised to who wants a slot and gets none."""

from __future__ import annotations

from limen.errors import LimenError
from limen.wire import Verdict


class ServiceRefused(LimenError):
    """Stop a caller whom the service refused. `verdict` tells which rule, and when to come back."""

    def __init__(self, verdict: Verdict) -> None:
        # The key stays out of the message: it may be somebody's API key, and messages get logged.
        by = f" by rule {verdict.rule}" if verdict.rule is not None else ""
        retry_after = verdict.retry_after
        when = "never fits" if retry_after is None else f"retry in {retry_after:.6g} s"
        super().__init__(f"refused{by}: {when}")
        self.verdict: Verdict = verdict

    def __reduce__(self) -> tuple[type[ServiceRefused], tuple[Verdict]]:
        return (ServiceRefused, (self.verdict,))
