"""Limits of memory and processors: a container's, a unit's of systemd, a job's of Slurm."""

import os

import pytest

from sie_triton.system.host.container import container_memory, num_processors
from tests.support.limits import cgroups

V2 = {"memory.current": "900", "memory.stat": "anon 500\ninactive_file 100"}
V1 = {"memory.usage_in_bytes": "900", "memory.stat": "inactive_file 1\ntotal_inactive_file 200"}
UNLIMITED_V1 = {"memory.limit_in_bytes": str(2**63 - 4096)}
SLURM = "/slurm/job_7/step_0/task_0"


def write(root, directory, files):
    path = root / directory
    path.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (path / name).write_text(f"{value}\n")


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/", {"": {**V2, "memory.max": 4000}}, (800, 4000)),
        ("0::/", {"": {**V2, "memory.max": "max"}}, None),
        ("0::/a.slice/b.service", {"a.slice/b.service": {**V2, "memory.max": 4000}}, (800, 4000)),
        ("0::/a.slice/b.service", {"a.slice": {**V2, "memory.max": 3000}, "a.slice/b.service": {}}, (800, 3000)),
        (
            "0::/a/b/c",
            {"a": {**V2, "memory.max": 9000}, "a/b": {**V2, "memory.max": 10}, "a/b/c": {**V2, "memory.max": 7000}},
            (800, 10),
        ),
        ("0::/a", {"a": {**V2, "memory.max": "max", "memory.high": 5000}}, (800, 5000)),
        ("0::/a", {"b": {**V2, "memory.max": 4000}, "a": {}}, None),
        (
            f"4:memory:{SLURM}",
            {f"memory{SLURM}": UNLIMITED_V1, "memory/slurm/job_7": {**V1, "memory.limit_in_bytes": 50}},
            (700, 50),
        ),
        (
            f"3:cpu,cpuacct:/\n2:memory,cpuset:{SLURM}\n0::/",
            {f"cpuset,memory{SLURM}": {**V1, "memory.limit_in_bytes": 50}},
            (700, 50),
        ),
        # The root is the container's cgroup, and the path that of the machine.
        ("4:memory:/docker/0123", {"memory": {**V1, "memory.limit_in_bytes": 60}}, (700, 60)),
        ("4:memory:/docker/0123/sub", {"memory/sub": {**V1, "memory.limit_in_bytes": 60}}, (700, 60)),
        # A process outside the root of its namespace.
        ("0::/../../a", {"": {**V2, "memory.max": 70}, "a": {**V2, "memory.max": 5}}, (800, 70)),
        ("0::/a:b (deleted)", {"": {**V2, "memory.max": 70}}, (800, 70)),
    ],
)
def test_the_least_limit_of_all_cgroups_around_a_process_counts(monkeypatch, tmp_path, own, files, expected):
    for directory, content in files.items():
        write(tmp_path, directory.lstrip("/"), content)
    cgroups(monkeypatch, tmp_path, own)
    assert container_memory() == expected


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b", {"a/b": {"cpu.max": "max 100000"}}, 8),
        ("0::/a/b", {"a": {"cpu.max": "300000 100000"}, "a/b": {"cpu.max": "max 100000"}}, 3),
        ("0::/a/b", {"a": {"cpu.max": "150000 100000"}, "a/b": {"cpu.max": "900000 100000"}}, 2),
        ("0::/a", {"a": {"cpu.max": "10000 100000"}}, 1),
        ("2:cpu,cpuacct:/u", {"cpu,cpuacct/u": {"cpu.cfs_quota_us": 50000, "cpu.cfs_period_us": 10000}}, 5),
        ("2:cpuacct,cpu:/u", {"cpu,cpuacct/u": {"cpu.cfs_quota_us": 30000, "cpu.cfs_period_us": 10000}}, 3),
        ("2:cpuacct:/u", {"cpu/u": {"cpu.cfs_quota_us": 30000, "cpu.cfs_period_us": 10000}, "cpuacct/u": {}}, 8),
        ("2:cpu,cpuacct:/u", {"cpu,cpuacct/u": {"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 10000}}, 8),
        ("2:cpu:/u", {"cpu": {"cpu.cfs_quota_us": 20000, "cpu.cfs_period_us": 10000}, "cpu/u": {}}, 2),
    ],
)
def test_quotas_limit_the_processors(monkeypatch, tmp_path, own, files, expected):
    for directory, content in files.items():
        write(tmp_path, directory, content)
    cgroups(monkeypatch, tmp_path, own)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert num_processors() == expected


def test_a_system_without_cgroups_has_no_limits(monkeypatch, tmp_path):
    cgroups(monkeypatch, tmp_path)
    (tmp_path / "own").unlink()
    assert container_memory() is None
    assert num_processors() == len(os.sched_getaffinity(0))
