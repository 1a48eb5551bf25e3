"""`Refused`: the exception that stops a request, for which Flask finds the error handlers."""

from __future__ import annotations

from functools import cache
from typing import cast

from flask import Response
from werkzeug.exceptions import HTTPException, default_exceptions

from limen.adapters.visit import Visit
from limen.http import Refusal


class Refused(HTTPException):
    """Stop a request that is refused. Also a `TooManyRequests`, or what else has its status.

    Its response is the one that tells why; `description` has that in a sentence.
    """

    def __init__(self, visit: Visit, refusal: Refusal) -> None:
        response = Response(refusal.body, refusal.status, refusal.headers)
        HTTPException.__init__(self, refusal.detail, response)
        self.visit = visit
        """What was said to the request."""
        self.retry_after: int | None = response.headers.get("Retry-After", None, int)
        """Seconds until it would pass; None when waiting does not help."""


def refused(visit: Visit) -> Refused:
    """Return what to raise for a request that is refused."""
    refusal = visit.refusal()
    return _class_of(refusal.status)(visit, refusal)


@cache
def _class_of(status: int) -> type[Refused]:
    """Return the `Refused` of a status. Flask looks for handlers by class, not by instance."""
    bases = (Refused, default_exceptions.get(status, HTTPException))
    found = type("Refused", bases, {"code": status, "__doc__": Refused.__doc__})
    return cast(type[Refused], found)
