"""Long work and a hanging database delay neither the kill switch nor `/metrics` nor the exit."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from limen.server.admin.body import decoded
from limen.server.exchange import Rejected
from tests import postgres
from tests.postgres import Postgres
from tests.server.admin.driving import ADMIN
from tests.server.product import Product, product
from tests.server.raw import Raw, Response, request, until

BEARER = f"Authorization: Bearer {ADMIN}"
BLOCK = {"rules": [{"name": "no", "mode": "block"}]}
SOON_S = 3.0
"""How long an answer may take that waits for nothing, on a machine with other work."""


def viewer(service: Product) -> str:
    """Create a token; return the header that a viewer sends."""
    body = {"role": "viewer", "name": "a viewer"}
    made = service.ask("/admin/v1/tokens", BEARER, method="POST", body=body)
    return f"Authorization: Bearer {read(made)['secret']}"


def read(response: Response) -> Any:
    return json.loads(response.body)


def health(service: Product) -> Any:
    return read(service.ask("/readyz"))


def is_allowed(service: Product) -> bool:
    asked: dict[str, Any] = {"attributes": {}}
    allowed: bool = read(service.ask("/v1/check", method="POST", body=asked))["allowed"]
    return allowed


def timed(service: Product, path: str, *headers: str, **asked: Any) -> tuple[Response, float]:
    began = time.monotonic()
    response = service.ask(path, *headers, **asked)
    return response, time.monotonic() - began


@contextmanager
def under_way(service: Product, times: int, *asked: str, **more: Any) -> Iterator[list[Raw]]:
    """Send a request so many times, each on its own connection, and wait for no response."""
    with ExitStack() as stack:
        opened = [stack.enter_context(Raw(service.port, timeout=60)) for _ in range(times)]
        for each in opened:
            each.send(request(*asked, **more))
        time.sleep(0.5)
        yield opened


def long_work() -> bytes:
    """Return a body whose validation takes some seconds."""
    text = f"rules: [{{name: api, description: [{','.join(['a'] * 900_000)}]}}]"
    return json.dumps({"text": text}).encode()


def object_of(keys: int, *, is_unique: bool = False) -> bytes:
    """Return an object whose last key stands in it twice, unless all keys are to be unique."""
    names = [*range(keys - 1), keys if is_unique else keys - 2]
    return b"{%s}" % b",".join(b'"k%07d":1' % name for name in names)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[tuple[Product, str]]:
    (tmp_path / "rules.json").write_text(json.dumps(BLOCK))
    settings = {"auth__admin_token": ADMIN, "http__drain_timeout": "1"}
    with product(tmp_path, "--rules", "rules.json", **settings) as service:
        yield service, viewer(service)


def test_finds_a_duplicate_key_in_linear_time() -> None:
    def cpu_s(body: bytes) -> float:
        began = time.process_time()
        with suppress(Rejected):
            decoded(body)
        return time.process_time() - began

    unique, duplicate = object_of(10_000, is_unique=True), object_of(10_000)
    with pytest.raises(Rejected, match="the key 'k0009998' stands twice in one object"):
        decoded(duplicate)
    assert cpu_s(duplicate) < 10 * min(cpu_s(unique) for _ in range(3))


def test_refuses_an_object_with_too_many_keys_at_once(busy: tuple[Product, str]) -> None:
    service, bearer = busy
    response, took_s = timed(
        service, "/admin/v1/rules/validate", bearer, method="POST", body=object_of(50_000)
    )
    assert response.status == 422
    assert response.problem["detail"] == (
        "an object in the body has 50,000 keys; the most that are allowed are 10,000"
    )
    assert took_s < SOON_S


def test_long_work_delays_neither_kill_switch_nor_metrics_nor_rules(
    busy: tuple[Product, str],
) -> None:
    service, bearer = busy
    assert not is_allowed(service)
    path, work = "/admin/v1/rules/validate", long_work()
    with (
        under_way(service, 6, path, bearer, method="POST", body=work) as waiting,
        under_way(service, 6, path, viewer(service), method="POST", body=work),
    ):
        body = b'{"on": true}' + b" " * 70_000
        turned, took_s = timed(service, "/admin/v1/kill-switch", BEARER, method="PUT", body=body)
        assert (turned.status, took_s < SOON_S) == (200, True), took_s
        until(lambda: is_allowed(service), SOON_S)
        metrics, took_s = timed(service, "/metrics")
        assert (metrics.status, took_s < SOON_S) == (200, True), took_s
        version = health(service)["rules"]
        (service.folder / "rules.json").write_text(json.dumps({"rules": []}))
        until(lambda: health(service)["rules"] != version, 2 * SOON_S)
        assert not waiting[-1].has_answer(), "the work was over too soon to show anything"


def test_long_work_does_not_delay_the_exit(busy: tuple[Product, str]) -> None:
    service, bearer = busy
    asked = ("/admin/v1/rules/validate", bearer)
    with under_way(service, 6, *asked, method="POST", body=long_work()):
        service.signal(signal.SIGTERM)
        assert service.code(8) == 0
    assert "stopped before" in "".join(service.complained)


def test_long_work_of_one_token_does_not_delay_another_token(busy: tuple[Product, str]) -> None:
    service, bearer = busy
    asked = ("/admin/v1/rules/validate", bearer)
    with under_way(service, 6, *asked, method="POST", body=long_work()):
        body = {"text": f"rules: [] # {'x' * 100_000}"}
        answer, took_s = timed(service, asked[0], BEARER, method="POST", body=body)
        assert (answer.status, read(answer)["valid"]) == (200, True)
        assert took_s < SOON_S


def test_refuses_a_token_with_too_many_requests_in_progress(busy: tuple[Product, str]) -> None:
    service, bearer = busy
    asked = ("/admin/v1/rules/validate", bearer)
    with under_way(service, 32, *asked, method="POST", body=long_work()):
        refused = service.ask(*asked, method="POST", body={"text": "rules: []"})
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert refused.problem["detail"] == (
            "this token has 32 requests in progress, the most that one token may have; "
            "wait until one ends"
        )


@pytest.fixture
def server() -> Iterator[Postgres]:
    with postgres.postgres() as started:
        yield started


@pytest.fixture
def on_postgres(tmp_path: Path, server: Postgres) -> Iterator[tuple[Product, str]]:
    settings = {"auth__admin_token": ADMIN, "rules": server.create_database("limen")}
    with product(tmp_path, http__drain_timeout="1", **settings) as service:
        body = {"document": BLOCK, "base": read(service.ask("/admin/v1/rules", BEARER))["latest"]}
        assert service.ask("/admin/v1/rules", BEARER, method="PUT", body=body).status == 200
        bearer = viewer(service)
        until(lambda: not is_allowed(service))
        yield service, bearer
        server.resume()


def test_kill_switch_works_at_once_while_postgresql_hangs(
    on_postgres: tuple[Product, str], server: Postgres
) -> None:
    service, bearer = on_postgres
    server.pause()
    with under_way(service, 40, "/admin/v1/rules", bearer) as waiting:
        turned, took_s = timed(
            service, "/admin/v1/kill-switch", BEARER, method="PUT", body={"on": True}
        )
        assert (turned.status, read(turned)["audited"]) == (200, False)
        assert took_s < SOON_S
        until(lambda: is_allowed(service), SOON_S)
        until(lambda: health(service)["status"] == "degraded", 10)
        assert {"source", "tokens"} & set(health(service)["trouble"])
        statuses = Counter(each.response().status for each in waiting)
        assert statuses == {429: 8, 503: 32}
    service.signal(signal.SIGTERM)
    assert service.code(12) == 0


def test_kill_switch_works_and_readyz_tells_while_a_row_is_locked(
    on_postgres: tuple[Product, str], server: Postgres
) -> None:
    service, _ = on_postgres
    with server.locked("UPDATE limen_state SET tokens = tokens", "limen"):
        turned, took_s = timed(
            service, "/admin/v1/kill-switch", BEARER, method="PUT", body={"on": True}
        )
        assert (turned.status, read(turned)["audited"]) == (200, False)
        assert took_s < SOON_S
        until(lambda: is_allowed(service), SOON_S)
        until(lambda: health(service)["trouble"] == ["writes"], 8)
        body = {"role": "viewer", "name": "another viewer"}
        refused, took_s = timed(service, "/admin/v1/tokens", BEARER, method="POST", body=body)
        assert (refused.status, took_s < 9) == (503, True), took_s
        assert "another process has held it for too long" in refused.problem["detail"]
    until(lambda: health(service)["status"] == "ok", 10)
