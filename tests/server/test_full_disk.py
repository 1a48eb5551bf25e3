"""A service on a full disk: it starts again, and the kill switch works."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.admin.driving import ADMIN
from tests.server.asking import Asker, asking
from tests.server.full_disk import Disk, mounted
from tests.server.product import Product, product
from tests.servers import HOST, binaries, process
from tests.waiting import wait_until

NONE = "rules: [{name: nobody, mode: block}]"
REASON = "kill-switch cannot be written: No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted(tmp_path / "disk") as made:
        yield made


def health(service: Product) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(service.ask("/readyz").body)
    return answer


def allows(service: Product) -> bool:
    verdict = service.ask("/v1/check", method="POST", body={"attributes": {"user": "a"}})
    return bool(json.loads(verdict.body)["allowed"])


@pytest.mark.parametrize("flags", [(), ("--rules", "rules.yaml")], ids=["database", "file"])
def test_service_starts_again_on_a_full_disk(disk: Disk, flags: tuple[str, ...]) -> None:
    (disk.path / "rules.yaml").write_text(NONE)
    with product(disk.path, *flags) as service:
        wait_until(lambda: health(service)["rules"] != "", 60)
        wait_until(lambda: (disk.path / ".limen" / "tokens.last-good.json").exists())
        service.signal(signal.SIGTERM)
        assert service.code() == 0
    token = (disk.path / ".limen" / "admin-token").read_text().strip()
    disk.fill()
    with product(disk.path, *flags) as service:
        wait_until(lambda: health(service)["rules"] != "", 60)
        assert allows(service) is (flags == ())
        allowed = service.ask("/admin/v1/stats", f"Authorization: Bearer {token}")
        assert allowed.status == 200
        disk.free()
        wait_until(lambda: health(service)["status"] == "ok")


def turn(service: Product, token: str, *, on: bool) -> dict[str, Any]:
    headers = (f"Authorization: Bearer {token}", "Content-Type: application/json")
    path = "/admin/v1/kill-switch"
    response = service.ask(path, *headers, method="PUT", body={"on": on})
    assert response.status == 200, response
    answer: dict[str, Any] = json.loads(response.body)
    return answer


@pytest.mark.slow
def test_kill_switch_on_a_full_disk_reaches_all_processes_by_redis(disk: Disk) -> None:
    (disk.path / "rules.yaml").write_text(NONE)
    with process(binaries()["valkey"]) as valkey:
        url = f"redis://{HOST}:{valkey.port}"
        flags = ("--rules", "rules.yaml", "--store", url, "--workers", "2")
        with product(disk.path, *flags, auth__admin_token=ADMIN) as service:
            wait_until(lambda: health(service)["instances"] == 2, 60)
            disk.fill()
            turned = turn(service, ADMIN, on=True)
            assert (turned["on"], turned["other_hosts"]) == (True, "reached")
            assert REASON in turned["warning"]
            assert "It is in force on every host that Redis reaches" in turned["warning"]

            def said(kill_switch: str, *trouble: str) -> bool:
                """Whether both workers say so, however the connections are spread."""
                told = [health(service) for _ in range(20)]
                known = {(each["kill_switch"], "switch" in each["trouble"]) for each in told}
                return known == {(kill_switch, "switch" in trouble)}

            wait_until(lambda: said("on for all rules", "switch"))
            assert all(allows(service) for _ in range(20))
            turn(service, ADMIN, on=False)
            wait_until(lambda: said("off", "switch"))
            turn(service, ADMIN, on=True)
            wait_until(lambda: said("on for all rules", "switch"))
            disk.free()
            wait_until(lambda: said("on for all rules"))
            assert "\nall\n" in (disk.path / ".limen" / "kill-switch").read_text()
            complaints = [line for line in service.complained if REASON in line]
            # At least once for each worker, at most once for each change of the switch.
            assert 2 <= len(complaints) <= 6, complaints


def test_kill_switch_on_a_full_disk_holds_in_memory_without_redis(disk: Disk) -> None:
    with asking(disk.path, NONE) as [service]:
        disk.fill()
        turned = turn_here(service, on=True)
        assert REASON in turned["warning"]
        assert "It is in force in this process until it restarts" in turned["warning"]
        wait_until(lambda: service.check({"user": "a"}).allowed)
        wait_until(lambda: "switch" in service.service.health.trouble)
        assert told_here(service)["on"] is True
        turn_here(service, on=False)
        wait_until(lambda: not service.check({"user": "a"}).allowed)
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_until(lambda: service.check({"user": "a"}).allowed)
        disk.free()
        wait_until(lambda: "switch" not in service.service.health.trouble)
        assert turn_here(service, on=False)["warning"] is None
        wait_until(lambda: not service.check({"user": "a"}).allowed)


def turn_here(service: Asker, *, on: bool) -> dict[str, Any]:
    return ask_here(service, "PUT", json.dumps({"on": on}).encode())


def told_here(service: Asker) -> dict[str, Any]:
    return ask_here(service, "GET", b"")


def ask_here(service: Asker, method: str, body: bytes) -> dict[str, Any]:
    headers = [
        (b"host", b"localhost"),
        (b"authorization", f"Bearer {ADMIN}".encode()),
        (b"content-type", b"application/json"),
    ]
    answer = service.ask(method, "/admin/v1/kill-switch", body, headers=headers)
    assert answer.status == 200, answer
    decoded: dict[str, Any] = json.loads(answer.body)
    return decoded
