"""The last known number of processes in a file, and a follower that starts from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from limen.errors import StoreError
from limen.rules.sync import Follower, files, follow
from limen.rules.sync.files import InstanceFile
from tests.servers import Server
from tests.waiting import wait_until

Follow = Callable[..., Follower]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_BEAT_S", 0.05)


def test_larger_number_is_written_at_once_and_a_smaller_one_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr("limen.rules.sync.files.time.monotonic", lambda: now)
    file = InstanceFile(tmp_path)
    assert file.read() == 1
    file.keep(1)
    assert not file.path.exists()
    for after, count, written in [(0, 2, 2), (1, 4, 4), (30, 4, 4), (59, 1, 4), (2, 3, 3)]:
        now += after
        file.keep(count)
        assert (file.read(), InstanceFile(tmp_path).read()) == (written, written)
    assert [path.name for path in tmp_path.iterdir()] == ["instances"]


def test_number_that_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    InstanceFile(tmp_path).keep(4)
    before = (tmp_path / "instances").stat()
    for file in (InstanceFile(tmp_path), InstanceFile(tmp_path)):
        file.keep(4)
        file.keep(4)
    assert (tmp_path / "instances").stat() == before


@pytest.mark.parametrize(
    "content", [b"", b"0", b"-4", b"4.5", b"four", b"04", b"4" * 7, b"4 4", b"\xff" * 10_000]
)
def test_invalid_file_is_rejected_with_its_content_and_replaced(
    tmp_path: Path, content: bytes
) -> None:
    file = InstanceFile(tmp_path)
    file.path.write_bytes(content)
    with pytest.raises(StoreError, match=r"holds b'.*expected the number of processes") as raised:
        file.read()
    assert len(str(raised.value)) < 400
    file.keep(1)
    assert file.read() == 1


def test_follower_that_starts_without_redis_tells_the_last_known_number(
    lite: str, valkey: Server, redis_url: str, follow: Follow, tmp_path: Path
) -> None:
    told: list[int] = []
    InstanceFile(tmp_path / "host").keep(4)
    valkey.kill()
    follower = follow(lite, redis_url, on_instances=told.append)
    wait_until(lambda: told)
    wait_until(lambda: "cache" in follower.status.trouble)
    assert (set(told), follower.status.instances) == ({4}, 4)


def test_follower_goes_by_redis_when_the_fleet_is_visible_again(
    lite: str, redis_url: str, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limen.rules.sync.follow.ALIVE_S", 0.5)
    monkeypatch.setattr(files, "SETTLE_S", 1.0)
    file, told = InstanceFile(tmp_path / "host"), list[int]()
    file.keep(4)
    follow(lite, redis_url, on_instances=told.append)
    wait_until(lambda: 1 in told)
    assert file.read() == 4
    wait_until(lambda: file.read() == 1)


def test_file_that_cannot_be_read_is_logged_once_and_replaced(
    lite: str,
    valkey: Server,
    redis_url: str,
    follow: Follow,
    tmp_path: Path,
    logged: Callable[[], list[str]],
) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "instances").write_text("four")
    valkey.kill()
    follower = follow(lite, redis_url)
    wait_until(lambda: "cache" in follower.status.trouble)
    assert "expected the number of processes" in follower.status.trouble["instance-file"]
    assert follower.status.instances == 1
    valkey.restart()
    wait_until(lambda: not follower.status.trouble)
    assert InstanceFile(tmp_path / "host").read() == 1
    assert sum("instance-file" in line for line in logged()) == 1


def test_file_that_cannot_be_written_is_logged_once_and_the_number_holds(
    lite: str, redis_url: str, follow: Follow, tmp_path: Path, logged: Callable[[], list[str]]
) -> None:
    (tmp_path / "host" / "instances").mkdir(parents=True)  # in the way
    first = follow(lite, redis_url)
    second = follow(lite, redis_url, folder=None)
    wait_until(lambda: first.status.instances == second.status.instances == 2)
    wait_until(lambda: "cannot be written" in first.status.trouble.get("instance-file", ""))
    count = len(logged())
    (tmp_path / "host" / "instances").rmdir()
    wait_until(lambda: not first.status.trouble)
    assert InstanceFile(tmp_path / "host").read() == 2
    assert len(logged()) == count
