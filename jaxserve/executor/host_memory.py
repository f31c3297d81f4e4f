"""Memory of the host that is left for a program."""

import os
from pathlib import Path

ROOT = Path("/")


def available_host_memory(root: Path = ROOT) -> int:
    """Bytes that this process can still take: of the machine's, what the page cache would give back among them, and no more
    than its control groups (a container's limit) leave it.

    Free pages alone would be next to nothing on a machine that has read a checkpoint. `root` is where /proc and /sys are.
    """
    return min([_of_machine(root), *_left_by_groups(root)])


def _of_machine(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:  # no Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _left_by_groups(root: Path) -> list[int]:
    """Bytes that each group with a limit leaves, from the process's own one up; versions 1 and 2 of Linux's control groups."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    left = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = Path(path.lstrip("/"))
        left += [_left(mount / group, *names) for group in (own, *own.parents)]
    return [room for room in left if room is not None]


def _left(group: Path, limit: str, usage: str, cached: str) -> int | None:
    """None if the group has no limit, or if it is not to be seen from inside a container."""
    try:
        allowed = (group / limit).read_text().strip()
        if allowed == "max":
            return None
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / usage).read_text()) - int(counts.get(cached, 0))
    except OSError:
        return None
    return max(int(allowed) - used, 0)
