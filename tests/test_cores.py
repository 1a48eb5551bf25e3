from __future__ import annotations

import os
from pathlib import Path

import pytest

from limen.cores import cores

ALL = float(len(os.sched_getaffinity(0)))


def test_all_that_may_be_used_where_nothing_else_is_said(tmp_path: Path) -> None:
    assert cores(tmp_path) == ALL
    assert 0 < cores() <= ALL


@pytest.mark.parametrize(
    ("line", "files", "found"),
    [
        ("0::/", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/", {"cpu.max": "max 100000\n"}, ALL),
        ("0::/a.slice/b.service", {"a.slice/b.service/cpu.max": "25000 100000"}, 0.25),
        # Whoever stands around it has a say too.
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "10000 100000"}, 0.1),
        # The host's path, which a container does not see.
        ("0::/docker/123", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/", {"cpu.max": "900000 100000"}, ALL),
        ("0::/", {"cpu.max": "garbage"}, ALL),
        ("garbage", {"cpu.max": "50000 100000"}, ALL),
        (
            "4:cpu,cpuacct:/a",
            {
                "cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        ("4:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, ALL),
        ("4:memory:/a", {"memory/a/cpu.max": "1 100000"}, ALL),
    ],
)
def test_no_more_than_a_cgroup_leaves(
    tmp_path: Path, line: str, files: dict[str, str], found: float
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"1:name=systemd:/\n{line}\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cores(tmp_path) == found
