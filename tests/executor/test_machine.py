"""Cores and memory under affinity and control-group limits, from made-up /sys trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trtdecode.executor import machine


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", "ascii")
    return root


@pytest.fixture
def hyper_threaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four cores of two threads: CPUs n and n + 4 are one core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    lists = {f"cpu{cpu}/topology/thread_siblings_list": f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    return write(tmp_path / "cpu", lists)


def test_two_hyper_threads_are_one_core(hyper_threaded: Path, tmp_path: Path) -> None:
    assert machine.usable_physical_cores(hyper_threaded, tmp_path / "none") == 4


def test_affinity_is_obeyed(hyper_threaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 4, 1})
    assert machine.usable_physical_cores(hyper_threaded, tmp_path / "none") == 2


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "max 100000"}, 4),
        ({"cpu.max": "900000 100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_a_control_groups_quota_caps_the_cores(
    hyper_threaded: Path, tmp_path: Path, files: dict[str, str], cores: int
) -> None:
    assert machine.usable_physical_cores(hyper_threaded, write(tmp_path / "cgroup", files)) == cores


def test_unknown_topology_counts_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 5})
    assert machine.usable_physical_cores(tmp_path / "no-sys", tmp_path / "none") == 2


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_control_groups_memory_limit_is_the_memory(tmp_path: Path, name: str) -> None:
    assert machine.memory_bytes(write(tmp_path, {name: "1048576"})) == 1048576


def test_memory_without_a_limit_is_the_machines(tmp_path: Path) -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.memory_bytes(tmp_path) == physical
    assert machine.memory_bytes(write(tmp_path, {"memory.max": "max"})) == physical
    assert machine.memory_bytes(write(tmp_path, {"memory.max": str(1 << 62)})) == physical
