"""What the environment says: where the processes of a server meet, and what XLA is told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus-client when it is imported, and for each file that it opens

_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
_RAY_SETTINGS = MappingProxyType(
    {
        "RAY_agent_register_timeout_ms": "120000",
        "RAY_kill_child_processes_on_worker_exit": "false",
        "RAY_worker_niceness": "0",
    }
)
_RUNTIME = "XDG_RUNTIME_DIR"


def user_runtime_directory() -> Path | None:
    """The system's directory for sockets of this user; None if there is none, or it is somebody else's (as it is with sudo)."""
    named = os.environ.get(_RUNTIME, "")
    path = Path(named)
    if not path.is_absolute() or not path.is_dir() or path.stat().st_uid != os.geteuid():
        return None
    return path


def share_metrics_in(directory: Path) -> None:
    """From now on this process's new metrics go to files in this directory; see `jaxserve.metrics.shared`."""
    os.environ[METRICS_VARIABLE] = str(directory)


@contextmanager
def ray_children() -> Iterator[None]:
    """Inside, processes that are started have what Ray's need.

    They may keep compiled modules: without, every process of Ray compiles some thousand files, which takes longer than Ray waits.
    They have time to start. Ray leaves children of its workers alone: ours end by themselves, once their clients know why. An
    engine is as important as what runs beside it: Ray's workers have niceness 15 by default.
    """
    before = dict(os.environ)
    os.environ.pop(_NO_BYTECODE, None)
    for name, value in _RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        for name in (_NO_BYTECODE, *_RAY_SETTINGS):
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)


def xla_flags() -> str:
    """Flags of every program that this process compiles, which programs depend on: XLA_FLAGS and LIBTPU_INIT_ARGS.

    XLA_FLAGS that do not begin with a dash name a file of flags.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if flags and not flags.startswith("-"):
        try:
            flags = Path(flags).read_text(encoding="utf-8", errors="replace")
        except OSError:  # XLA says so
            flags = ""
    return " ".join([*flags.split(), *os.environ.get("LIBTPU_INIT_ARGS", "").split()])
