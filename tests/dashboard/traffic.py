"""Requests that come all the time, so that a page has something to show."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.dashboard.browsing import ADMIN, Served
from tests.server.raw import CutShort, Raw, request


class Traffic:
    """One client that asks for decisions, again and again; what it was told is counted."""

    def __init__(
        self, service: Served, requests: Iterable[Mapping[str, str]], a_second: float
    ) -> None:
        self.allowed = 0
        self.denied = 0
        self._port = service.process.port
        self._bodies = itertools.cycle([_asked(each) for each in requests])
        self._wait = 1 / a_second
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic")

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with Raw(self._port, timeout=10) as connection:
                    self._ask(connection)
            except (OSError, CutShort):
                # The service may go away on purpose; the client comes back, as others do.
                self._over.wait(0.2)

    def _ask(self, connection: Raw) -> None:
        while not self._over.wait(self._wait):
            connection.send(next(self._bodies))
            answer = connection.response()
            said: dict[str, Any] = json.loads(answer.body)
            if said.get("allowed") is True:
                self.allowed += 1
            elif said.get("allowed") is False:
                self.denied += 1


def _asked(attributes: Mapping[str, str]) -> bytes:
    body = json.dumps({"attributes": attributes}).encode()
    return request("/v1/check", f"Authorization: Bearer {ADMIN}", method="POST", body=body)


@contextmanager
def traffic(
    service: Served, *requests: Mapping[str, str], a_second: float = 40
) -> Iterator[Traffic]:
    """Ask with some attributes in turn, about so often a second, until the end."""
    made = Traffic(service, requests, a_second)
    made.start()
    try:
        yield made
    finally:
        made.end()
