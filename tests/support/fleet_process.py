"""A fleet in the place of one server: `python -m jaxserve.fleet` with two replicas, on a Ray cluster that all share.

`python -m tests.support.fleet_process` is that cluster: it prints its address and runs until it is told to end.
"""

from __future__ import annotations

import itertools
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.serve_process import ROOT, Process, command, environment, start

CLUSTER = "tests.support.fleet_process"
STOP_SECONDS = 90.0
REPLICAS = 2


def main() -> None:
    """Be a Ray cluster of this machine."""
    import ray  # an optional package

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    print(ray.get_runtime_context().gcs_address, flush=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        ray.shutdown()


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster: its address, and the variables that its processes and those who ask it have."""

    address: str
    variables: Mapping[str, str]


@contextmanager
def ray_cluster(log: Path) -> Iterator[Cluster]:
    """A cluster with a token of its own, so that nobody else finds it; it ends with what runs in it."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    variables = {**token, "RAY_raylet_start_wait_time_s": "180"}  # a machine may be busy
    with log.open("wb") as errors:
        line, env = command(module=CLUSTER), {**environment(), **variables}
        popen = subprocess.Popen(line, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert popen.stdout is not None
    with popen.stdout as out:
        try:
            address = out.readline().strip()
            assert address, log.read_text()
            yield Cluster(address, variables)
        finally:
            popen.send_signal(signal.SIGTERM)
            popen.wait(STOP_SECONDS)


def settings(arguments: Sequence[str]) -> dict[str, Any]:
    """The flags of a server, as a fleet's file has them."""
    words = list(arguments)
    found: dict[str, Any] = {} if not words or words[0].startswith("--") else {"model": words.pop(0)}
    while words:
        name = words.pop(0).removeprefix("--")
        found[name] = yaml.safe_load(words.pop(0)) if words and not words[0].startswith("--") else True
    return found


class ServedByFleet:
    """Takes the place of `served`; fleets are taken away at the end, so that the next finds room.

    Args:
        cluster: that they run on.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count()

    def __call__(self, folder: Path, *arguments: str, devices: int = 1) -> Iterator[Process]:
        assert devices == 1, "processes of the cluster have one device"
        described = {
            "model": "pico",
            "port": 0,
            "grpc-port": 0,
            "drain-timeout": 2,
            "before-ready": "fewest",
            **settings(arguments),
            "pools": {"default": {"replicas": REPLICAS, "cpus": 0.1}},
            "ray": {"address": self._cluster.address},
        }
        file = folder / "fleet.yaml"
        file.write_text(yaml.safe_dump(described))
        name = ("--name", f"fleet {next(self._numbers)}")
        process = start(folder, str(file), *name, module="jaxserve.fleet", variables=self._cluster.variables)
        try:
            yield process
        finally:
            if process.popen.poll() is None:
                process.stop(STOP_SECONDS)


if __name__ == "__main__":
    main()
