"""What is raised to who asked for a request that was not sent."""

from __future__ import annotations

from limen.errors import LimenError


class RateLimited(LimenError):
    """Say that a request was not sent: its time would come later than it may wait.

    `retry_after` is in how many seconds it would be sent, if nobody else comes; None is never. Each
    transport raises one that is an error of its own library too.
    """

    def __init__(self, message: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.retry_after: float | None = retry_after

    def __reduce__(self) -> tuple[type[RateLimited], tuple[str, float | None]]:
        return (type(self), (str(self), self.retry_after))
