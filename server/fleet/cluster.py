"""A fleet on a Ray cluster: deploys it, waits until it serves, takes it away."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict

import msgspec
import ray
from ray import serve

from jaxserve.config.fleet import FleetConfig, PoolConfig
from jaxserve.engine.remote.curve import CurveKeys
from jaxserve.errors import ConfigError, EngineDeadError
from server.fleet.deployments import (
    NAMESPACE,
    STOP_SECONDS,
    IngressDeployment,
    IngressSettings,
    ReplicaDeployment,
    ReplicaSettings,
    directory_name,
    open_directory,
)
from server.ports import Addresses
from server.processes.engines import engine_spec
from server.processes.specs import FleetSpec, PoolRule

HEALTH_SECONDS = 1.0  # between Ray's looks at whether a replica or an ingress is there
_HEALTH_TIMEOUT_SECONDS = 10.0


@contextlib.contextmanager
def connected(address: str | None, *, keep: bool) -> Iterator[None]:
    """Inside, this process is connected to a Ray cluster: the one at `address`, else the one that this machine is part of, else
    one that is started here and ends with it. One that another program started for itself is no such cluster.

    Args:
        keep: whether the cluster must be there already.

    Raises ConfigError if no cluster is to be had.
    """
    try:
        where = address or ("auto" if keep else None)  # "auto" would join what ends with another program, too
        ray.init(address=where, namespace=NAMESPACE, logging_level=logging.WARNING, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address is not None:
            raise ConfigError(f"no Ray cluster at {address}: {_first_line(error)}", param="ray") from error
        if keep:
            raise ConfigError("no Ray cluster runs here that could keep a fleet: ray start --head", param="ray") from error
        ray.init(address="local", namespace=NAMESPACE, logging_level=logging.WARNING, include_dashboard=False)
    try:
        yield
    finally:
        ray.shutdown()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


class Fleet:
    """A fleet by its name, on the cluster that this process is connected to.

    Args:
        name: of the fleet; of one on the same cluster, which this one replaces.
    """

    def __init__(self, config: FleetConfig, name: str = "jaxserve") -> None:
        self._config = config
        self._name = name
        self._replicas, self._ingress = f"{name} replicas", f"{name} ingress"
        self._keys = CurveKeys.new()

    def deploy(self) -> Addresses:
        """Start all. Returns once the ingress serves.

        Raises ConfigError if the cluster has not the resources, EngineDeadError if a replica or the ingress cannot be built.
        """
        resources = ray.cluster_resources()
        self._config.check_resources(resources.get("CPU", 0.0), resources.get("GPU", 0.0))
        open_directory(self._name)
        serve.start(http_options={"location": "NoServer"})
        try:
            for pool in self._config.pools:
                serve.run(self._pool(pool), name=f"{self._replicas} {pool.name}", route_prefix=None)
            handle = serve.run(self._front(), name=self._ingress, route_prefix=None)
            ready = handle.addresses.remote().result()
        except RuntimeError as error:  # which Ray Serve raises for whatever a constructor raised
            raise EngineDeadError(f"the fleet cannot be started: {error}") from error
        return Addresses(http=ready.http, grpc=ready.grpc)

    def delete(self) -> None:
        """End the ingress, which drains, and then the replicas."""
        serve.delete(self._ingress)
        for pool in self._config.pools:
            serve.delete(f"{self._replicas} {pool.name}")
        ray.kill(ray.get_actor(directory_name(self._name), namespace=NAMESPACE))

    def _pool(self, pool: PoolConfig) -> serve.Application:
        server = self._config.server
        settings = ReplicaSettings(
            fleet=self._name,
            directory=os.getcwd(),
            pool=pool.name,
            engine=msgspec.structs.replace(engine_spec(pool.engine, server), keys=self._keys),
            weight=pool.weight,
            max_restarts=server.max_engine_restarts,
            hang_timeout=server.engine_hang_timeout,
            patience=server.drain_timeout,
        )
        deployment = serve.deployment(
            name=f"pool {pool.name}",
            num_replicas=pool.replicas,
            ray_actor_options={"num_cpus": pool.cpus, "num_gpus": pool.gpus},
            health_check_period_s=HEALTH_SECONDS,
            health_check_timeout_s=_HEALTH_TIMEOUT_SECONDS,
            graceful_shutdown_timeout_s=server.drain_timeout + STOP_SECONDS,
            max_constructor_retry_count=1,
        )(ReplicaDeployment)
        return deployment.bind(settings)

    def _front(self) -> serve.Application:
        config = self._config
        rules = [
            PoolRule(
                name=pool.name,
                classes=[str(one) for one in pool.classes],
                min_tokens=pool.min_tokens,
                max_tokens=pool.max_tokens,
            )
            for pool in config.pools
        ]
        spec = FleetSpec(model=config.model_name, routing=asdict(config.routing), pools=rules, key=self._keys.public)
        deployment = serve.deployment(
            name="ingress",
            num_replicas=1,
            ray_actor_options={"num_cpus": 0},
            health_check_period_s=HEALTH_SECONDS,
            health_check_timeout_s=_HEALTH_TIMEOUT_SECONDS,
            graceful_shutdown_timeout_s=config.server.drain_timeout + 2 * STOP_SECONDS,
            max_constructor_retry_count=1,
        )(IngressDeployment)
        return deployment.bind(IngressSettings(self._name, os.getcwd(), config.server, spec))
