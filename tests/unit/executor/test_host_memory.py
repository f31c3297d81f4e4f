from pathlib import Path

import pytest

from jaxserve.executor.host_memory import available_host_memory

GIB = 2**30
MEMINFO = f"MemTotal: {64 * GIB // 1024} kB\nMemFree: {GIB // 2 // 1024} kB\nMemAvailable: {40 * GIB // 1024} kB\n"


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    for path, text in {"proc/meminfo": MEMINFO, "proc/self/cgroup": groups, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def version_2(path: str, limit: str, used: int, cached: int) -> dict[str, str]:
    group = f"sys/fs/cgroup/{path}".rstrip("/")
    return {
        f"{group}/memory.max": f"{limit}\n",
        f"{group}/memory.current": f"{used}\n",
        f"{group}/memory.stat": f"anon 1\ninactive_file {cached}\n",
    }


def test_what_the_page_cache_holds_is_not_taken(tmp_path):
    assert available_host_memory(machine(tmp_path, "0::/\n", {})) == 40 * GIB


def test_the_limit_of_a_container_counts_and_not_its_page_cache(tmp_path):
    files = version_2("", str(8 * GIB), 7 * GIB, 5 * GIB)
    assert available_host_memory(machine(tmp_path, "0::/\n", files)) == 6 * GIB


def test_the_tightest_of_the_groups_around_a_process_counts(tmp_path):
    files = version_2("slice/unit", "max", 3 * GIB, 0) | version_2("slice", str(4 * GIB), 3 * GIB, 0)
    assert available_host_memory(machine(tmp_path, "0::/slice/unit\n", files)) == GIB


@pytest.mark.parametrize("used", [2 * GIB, 3 * GIB])
def test_nothing_is_left_of_a_limit_that_is_reached(tmp_path, used):
    assert available_host_memory(machine(tmp_path, "0::/\n", version_2("", str(2 * GIB), used, 0))) == 0


def test_control_groups_of_version_1(tmp_path):
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(9 * GIB),
        "sys/fs/cgroup/memory/memory.usage_in_bytes": str(4 * GIB),
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file 0\ntotal_inactive_file {GIB}\n",
    }
    # A container's own group is called what the host calls it, and is the mount's root inside.
    groups = "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n"
    assert available_host_memory(machine(tmp_path, groups, files)) == 6 * GIB


def test_a_machine_without_proc_has_all_of_its_memory(tmp_path):
    assert available_host_memory(tmp_path) > 0
