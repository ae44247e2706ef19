"""CPUs and memory of control groups, from trees of files like those of a container."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from hyrt.doctor import host_checks
from hyrt.doctor.host_checks import (
    HostMemory,
    check_cpus,
    check_locked_memory,
    check_memory,
    check_shared_memory,
    host_memory,
)

MEBI, GIBI = 2**20, 2**30
V1_NO_LIMIT = 2**63 - 4096


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_v2_quota_of_fewer_cpus_than_the_host(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/pod/cpu.max": "150000 100000\n"})
    (found,) = check_cpus(tmp_path, affinity=8, host=16)
    assert found.state == "ok"
    assert found.figures["usable"] == 2
    assert found.figures["cgroup_cpus"] == 1.5
    assert found.found == "2 of 16: the affinity mask allows 8 and the control group allows 1.5 CPUs"


def test_v2_quota_of_less_than_a_cpu_is_a_warning(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"})
    (found,) = check_cpus(tmp_path, affinity=4, host=4)
    assert found.state == "warning"
    assert found.figures["usable"] == 1
    assert "--cpus" in found.remedy


def test_v1_quota_of_a_group_above_binds(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/\n1:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu/docker/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
        },
    )
    (found,) = check_cpus(tmp_path, affinity=8, host=8)
    assert found.figures["usable"] == 3


def test_without_control_groups_all_cpus_count(tmp_path: Path) -> None:
    (found,) = check_cpus(tmp_path, affinity=8, host=8)
    assert (found.state, found.found) == ("ok", "8 of 8")


MEMINFO = "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   8388608 kB\n"


def test_of_nested_groups_the_fullest_one_binds(tmp_path: Path) -> None:
    """The pod has 8 GiB and uses 7 with its other containers; this container may use 4 and uses 1."""
    groups = "sys/fs/cgroup/pod"
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/own\n",
            "proc/meminfo": MEMINFO,
            f"{groups}/memory.max": str(8 * GIBI),
            f"{groups}/memory.current": str(7 * GIBI + GIBI // 2),
            f"{groups}/memory.stat": f"anon 1\ninactive_file {GIBI // 2}\n",
            f"{groups}/own/memory.max": str(4 * GIBI),
            f"{groups}/own/memory.current": str(GIBI),
        },
    )
    found = host_memory(tmp_path)
    assert (found.limit, found.left) == (4 * GIBI, GIBI)
    assert (found.max_bytes, found.available_bytes) == (4 * GIBI, GIBI)


def test_v2_memory_left_counts_what_the_system_gives_back(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/pod"
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/own\n",
            "proc/meminfo": MEMINFO,
            f"{group}/memory.max": f"{4 * GIBI}\n",
            f"{group}/memory.current": f"{3 * GIBI}\n",
            f"{group}/memory.stat": f"anon 7\ninactive_file {GIBI}\n",
            f"{group}/own/memory.max": "max\n",
            f"{group}/own/memory.current": f"{GIBI}\n",
        },
    )
    have = host_memory(tmp_path)
    assert have == HostMemory(total=16 * GIBI, available=8 * GIBI, limit=4 * GIBI, left=2 * GIBI)
    assert (have.max_bytes, have.available_bytes) == (4 * GIBI, 2 * GIBI)


def test_v1_memory(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory"
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n",
            "proc/meminfo": MEMINFO,
            f"{group}/memory.limit_in_bytes": f"{V1_NO_LIMIT}\n",
            f"{group}/memory.usage_in_bytes": f"{GIBI}\n",
            f"{group}/docker/abc/memory.limit_in_bytes": f"{2 * GIBI}\n",
            f"{group}/docker/abc/memory.usage_in_bytes": f"{GIBI}\n",
            f"{group}/docker/abc/memory.stat": f"inactive_file 5\ntotal_inactive_file {512 * MEBI}\n",
        },
    )
    have = host_memory(tmp_path)
    assert (have.limit, have.left) == (2 * GIBI, 1536 * MEBI)


def need(total: int) -> dict[str, int]:
    return {"dataset_bytes": total, "total_bytes": total}


@pytest.mark.parametrize(
    ("total", "state"),
    [(1 * GIBI, "ok"), (3 * GIBI, "warning"), (5 * GIBI, "warning"), (6 * GIBI, "broken")],
)
def test_memory_against_what_a_run_takes(total: int, state: str) -> None:
    have = HostMemory(total=16 * GIBI, available=8 * GIBI, limit=4 * GIBI, left=2 * GIBI)
    (found,) = check_memory(have, need(total))
    assert found.state == state
    assert "limit of 4 GiB" in found.found
    assert f"the run needs about {total // GIBI} GiB" in found.found


def test_what_takes_most_decides_what_to_do() -> None:
    have = HostMemory(total=GIBI, available=GIBI, limit=None, left=None)
    wide = {"weights_bytes": 3 * GIBI, "checkpoint_bytes": 3 * GIBI, "mini_batches_bytes": 4 * GIBI}
    (found,) = check_memory(have, {**wide, "total_bytes": 10 * GIBI})
    assert (found.state, found.remedy.split(",")[0]) == ("broken", "lower model.hidden or model.layers")
    assert check_memory(have, need(10 * GIBI))[0].remedy.startswith("lower data.batch_size")


def test_little_memory_is_said_without_settings() -> None:
    tiny = HostMemory(total=256 * MEBI, available=200 * MEBI, limit=None, left=None)
    assert check_memory(tiny, None)[0].state == "broken"
    busy = HostMemory(total=16 * GIBI, available=200 * MEBI, limit=None, left=None)
    (found,) = check_memory(busy, None)
    assert found.state == "warning"
    assert found.remedy.startswith("stop other programs that use memory")
    unknown = HostMemory(total=None, available=None, limit=None, left=None)
    assert check_memory(unknown, need(GIBI))[0].state == "ok"


def test_the_kernel_and_psutil_agree_here() -> None:
    import psutil

    have = host_memory()
    assert have.total == psutil.virtual_memory().total
    assert have.available == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_locked_memory(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name: x\nCapEff:\t0000000000000000\n")
    infinite = resource.RLIM_INFINITY

    def state(devices: list[str], soft: int, hard: int, need_bytes: float | None = None) -> tuple[str, str]:
        (found,) = check_locked_memory(devices, need_bytes, limits=(soft, hard), status=status)
        return found.state, found.remedy

    assert state(["cuda:0"], infinite, infinite) == ("ok", "")
    assert state([], 65536, 65536) == ("ok", "")
    assert state(["cuda:0"], 65536, 65536)[0] == "warning"
    assert state(["cuda:0"], 8 * MEBI, infinite)[1].startswith("ulimit -l unlimited, or docker")
    assert state(["cuda:0"], 8 * MEBI, GIBI)[1].startswith("ulimit -l 1048576, or docker")
    assert state(["cuda:0"], 8 * MEBI, 8 * MEBI)[1].startswith("docker run --ulimit")
    # A hard limit that is higher, and still below the need, does not help.
    assert state(["cuda:0"], 8 * MEBI, 32 * MEBI)[1].startswith("docker run --ulimit")
    assert state(["cuda:0"], 8 * MEBI, 8 * MEBI, need_bytes=MEBI) == ("ok", "")
    # Bit 14 is CAP_IPC_LOCK (capabilities(7)).
    status.write_text("CapEff:\t0000000000004000\n")
    assert state(["cuda:0"], 65536, 65536) == ("ok", "")


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = check_shared_memory(tmp_path)
    assert found.state == "ok"
    (missing,) = check_shared_memory(tmp_path / "none")
    assert missing.state == "warning"
    monkeypatch.setattr(host_checks, "_SMALL_BYTES", 2**60)
    (small,) = check_shared_memory(tmp_path)
    assert small.state == "warning"
    assert "--shm-size" in small.remedy
