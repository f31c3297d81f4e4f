"""Keeps what Ray opens on a machine of its own off the network. Ray has no settings for it, so some of its names are replaced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import ray
from ray._private import ray_constants
from ray.serve._private import replica

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def cluster_on_loopback() -> Iterator[None]:
    """Inside, a cluster that is started takes 127.0.0.1 for this machine's address, as Ray does on Windows and macOS.

    Its processes then listen there alone.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def replica_on_loopback() -> None:
    """In an actor of Ray Serve, before it is initialized: on such a cluster its gRPC server, for calls from other deployments,
    listens on loopback, too, not on [::].
    """
    if ray.util.get_node_ip_address() != LOOPBACK:
        return
    add_port = replica.add_port_to_grpc_server  # type: ignore[attr-defined]

    def add_loopback_port(server: Any, address: str) -> Any:
        return add_port(server, f"{LOOPBACK}:{address.rpartition(':')[2]}")  # type: ignore[no-untyped-call]

    replica.add_port_to_grpc_server = add_loopback_port  # type: ignore[attr-defined]
