"""Four processes under load follow every change, whole, and lose no count."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.rules.sync.conftest import at_cache, publish, save, times
from tests.rules.sync.processes import Fleet, Plan, Report, rule_set
from tests.waiting import wait_until

QUOTAS = [40, 160, 90, 300]
"""Up, down and up again: what was used stays used."""


def assert_clean(reports: list[Report], *, slowest_s: float = 5.0) -> None:
    for report in reports:
        assert (report.error, report.mixed, report.degraded) == ("", 0, 0)
        assert report.slowest_s < slowest_s
        # Nobody ever went back.
        versions = [int(version) for _, version, _ in report.changes]
        assert versions == sorted(versions)


@pytest.mark.parametrize("kind", ["database", "lite"])
def test_all_follow_an_announced_change_and_keep_their_counts(
    kind: str,
    request: pytest.FixtureRequest,
    redis_url: str,
    fleet: Fleet,
    tmp_path: Path,
) -> None:
    url = str(request.getfixturevalue(kind))
    publish(url, redis_url, rule_set(1, QUOTAS[0]))
    # They look once a minute, so it is the announcement that they follow.
    plan = Plan(redis_url, url, redis_url, str(tmp_path), interval=60)
    fleet.start(4, plan)
    fleet.wait(lambda report: report.version == "1" and report.status.is_listening)
    for turn in range(1, times(len(QUOTAS), 20 * len(QUOTAS))):
        number, quota = turn + 1, QUOTAS[turn % len(QUOTAS)]
        publish(url, redis_url, rule_set(number, quota))
        fleet.wait_for(str(number))
        # Whoever is allowed anything at all is allowed all that is left, and no more.
        most = max(QUOTAS[: turn + 1])
        wait_until(
            lambda most=most: sum(report.admitted for report in fleet.reports()) >= most,  # type: ignore[misc]
            interval_s=0.03,
        )
    reports = fleet.wait(lambda report: not report.allowed)
    assert_clean(reports)
    assert sum(report.admitted for report in reports) == max(QUOTAS)


def test_all_follow_what_nobody_announced(
    database: str, redis_url: str, fleet: Fleet, tmp_path: Path
) -> None:
    publish(database, redis_url, rule_set(1, 40))
    fleet.start(4, Plan(redis_url, database, redis_url, str(tmp_path)))
    fleet.wait(lambda report: report.version == "1")
    for number in range(2, 2 + times(1, 10)):
        save(database, rule_set(number, 40 + number))
        fleet.wait_for(str(number))
    assert_clean(fleet.reports())


@pytest.mark.slow
def test_all_follow_when_every_announcement_is_dropped(
    database: str, redis_url: str, admin: redis.Redis, fleet: Fleet, tmp_path: Path
) -> None:
    # A user who may do everything, but hears nothing and is heard by nobody.
    admin.execute_command(  # type: ignore[no-untyped-call]
        "ACL", "SETUSER", "deaf", "reset", "on", ">pass", "~*", "+@all", "resetchannels"
    )
    deaf = redis_url.replace("redis://", "redis://deaf:pass@")
    publish(database, redis_url, rule_set(1, 40))
    fleet.start(4, Plan(redis_url, database, deaf, str(tmp_path)))
    reports = fleet.wait(lambda report: report.version == "1" and report.status.trouble)
    for report in reports:
        assert not report.status.is_listening
        assert "NOPERM" in report.status.trouble["news"]
    publish(database, redis_url, rule_set(2, 80))
    assert_clean(fleet.wait_for("2"))


def test_two_processes_of_one_host_follow_a_file_of_sqlite_by_looking(
    lite: str, fleet: Fleet, tmp_path: Path
) -> None:
    save(lite, rule_set(1, 40))
    fleet.start(2, Plan("memory://", lite, None, str(tmp_path), interval=0.2))
    fleet.wait(lambda report: report.version == "1" and report.refused)
    save(lite, rule_set(2, 80))
    reports = fleet.wait(lambda report: report.version == "2" and not report.allowed)
    assert_clean(reports)
    # Each counts for itself, and goes on counting.
    assert [report.admitted for report in reports] == [80, 80]


def test_instances_are_counted_with_their_versions_and_share_limits(
    database: str, redis_url: str, fleet: Fleet, tmp_path: Path
) -> None:
    publish(database, redis_url, rule_set(1, 40))
    started = fleet.start(3, Plan(redis_url, database, redis_url, str(tmp_path), beat_s=0.3))
    fleet.wait(lambda report: report.instances == 3 and report.status.instances == 3)
    found = at_cache(redis_url, lambda cache: cache.instances())
    assert sorted(one.pid for one in found) == sorted(process.pid for process in started)
    assert {one.version for one in found} == {"1"}
    assert {one.source for one in found} <= {"cache", "store"}
    # One that goes in good order is forgotten at once.
    fleet.processes.remove(started[0])
    started[0].stop()
    assert len(at_cache(redis_url, lambda cache: cache.instances())) == 2
    fleet.wait(lambda report: report.instances == 2)


def test_a_process_registers_its_new_version_soon_after_a_change(
    database: str, redis_url: str, fleet: Fleet, tmp_path: Path
) -> None:
    publish(database, redis_url, rule_set(1, 40))
    fleet.start(2, Plan(redis_url, database, redis_url, str(tmp_path)))
    fleet.wait_for("1")
    publish(database, redis_url, rule_set(2, 40))

    def follow() -> bool:
        found = at_cache(redis_url, lambda cache: cache.instances())
        return [one.version for one in found] == ["2", "2"]

    wait_until(follow)
