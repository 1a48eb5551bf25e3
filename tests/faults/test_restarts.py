"""Services that restart while the store is away: they still divide the limits among each other."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.faults.figures import say
from tests.server.product import Product, product
from tests.server.raw import Raw, request
from tests.servers import HOST, Server
from tests.waiting import FULL, wait_until

SERVICES = 4


@contextmanager
def fleet(folder: Path, *flags: str, **settings: str) -> Iterator[list[Product]]:
    """Start four services, each with its own data folder; stop them at the end."""
    with ExitStack() as stack:
        services = [
            stack.enter_context(product(folder / f"host{number}", *flags, **settings))
            for number in range(SERVICES)
        ]
        for service in services:
            wait_until(lambda each=service: is_listening(each), 60)  # type: ignore[misc]
        yield services
        for service in services:
            service.signal(signal.SIGTERM)
        for service in services:
            assert service.code() == 0, service.complained


def is_listening(service: Product) -> bool:
    try:
        return service.ask("/healthz").status == 200
    except ConnectionError:
        return False


def count_admitted(services: Sequence[Product], limit: int, *, degraded: bool) -> int:
    """Send each service more requests than the limit; return how many all of them admit."""
    body = json.dumps({"key": "user:42", "limits": f"{limit}/hour"}).encode()
    admitted = 0
    for service in services:
        for _ in range(limit + limit // 2):
            # A connection for each, so that they reach all workers.
            with Raw(service.port) as raw:
                raw.send(request("/v1/check", method="POST", body=body))
                verdict = json.loads(raw.response().body)
            assert verdict["degraded"] is degraded
            admitted += verdict["allowed"]
    return admitted


@pytest.mark.parametrize(("workers", "limit"), [(1, 100), (2, 104)] if FULL else [(1, 100)])
def test_services_that_restart_during_an_outage_admit_no_more_than_twice_the_limit(
    own_valkey: Server, tmp_path: Path, workers: int, limit: int
) -> None:
    flags = ("--store", f"redis://{HOST}:{own_valkey.port}", "--workers", str(workers))
    files = [tmp_path / f"host{number}" / ".limen" / "instances" for number in range(SERVICES)]
    expected = f"{SERVICES * workers}\n"
    with fleet(tmp_path, *flags, store__deadline="2") as services:
        before = count_admitted(services, limit, degraded=False)
        wait_until(
            lambda: all(file.exists() and file.read_text() == expected for file in files), 30
        )
        own_valkey.kill()
    with fleet(tmp_path, *flags) as services:
        after = count_admitted(services, limit, degraded=True)
    say("restarted during the outage", workers=workers, limit=limit, most=before + after)
    assert before == limit
    assert 0 < after <= limit
