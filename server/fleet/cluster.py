"""A fleet on a Ray cluster: deploys it, waits until it serves, takes it away."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import msgspec
import ray
from ray import serve
from ray._private.services import canonicalize_bootstrap_address

from jaxserve.config.fleet import FleetConfig, PoolConfig
from jaxserve.config.runtime import ray_children
from jaxserve.engine.remote.curve import CurveKeys
from jaxserve.errors import ConfigError, EngineDeadError
from jaxserve.import_path import ROOT
from server.fleet.autoscaling import autoscaling
from server.fleet.deployments import (
    NAMESPACE,
    STOP_SECONDS,
    IngressDeployment,
    IngressSettings,
    ReplicaDeployment,
    ReplicaSettings,
    directory_name,
    ledger_name,
    open_directory,
    open_ledger,
    ray_services,
)
from server.fleet.front import FrontReady
from server.fleet.loopback import cluster_on_loopback
from server.fleet.ray_watch import FAREWELL_SECONDS, RayWatch
from server.fleet.reasons import reason_in
from server.ports import Addresses
from server.processes.engines import engine_spec
from server.processes.specs import FleetSpec, PoolRule

_LOG = logging.getLogger(__name__)

LOCAL = "local"  # address of a cluster that is started here
STARTS = 3  # of one
HEARD_SECONDS = 30.0  # within which ingresses that serve must have told the ledger where
LOOK_SECONDS = 0.1
HEALTH_SECONDS = 1.0  # between Ray's looks at whether a replica or an ingress is there
_HEALTH_TIMEOUT_SECONDS = 10.0


@contextlib.contextmanager
def connected(address: str | None, *, keep: bool) -> Iterator[None]:
    """Inside, this process is connected to a Ray cluster: the one at `address`, else the one that this machine is part of, else
    one that is started here and ends with it, as it is for the address "local". One that another program started for itself is no
    such cluster.

    Args:
        keep: whether the cluster must be there already.

    Raises ConfigError if no cluster is to be had.
    """
    if address == LOCAL or not _joined(address, keep=keep):
        if keep:
            raise ConfigError("no Ray cluster runs here that could keep a fleet: ray start --head", param="ray")
        start_here()
    try:
        yield
    finally:
        ray.shutdown()


def start_here(starts: int = STARTS) -> None:
    """Start a cluster on this machine that listens on loopback only.

    Ray gives its processes half a minute to start. On a busy machine, or where Python compiles every module anew, that may be too
    short; the next start finds the files in memory.

    Raises ConfigError that says why Ray does not start.
    """
    for last in range(starts):
        try:
            with ray_children(), cluster_on_loopback():
                _init(LOCAL)
        except Exception as error:  # Ray raises bare exceptions
            ray.shutdown()
            if last == starts - 1:
                logs = "its log is in /tmp/ray/session_latest/logs (raylet.out, gcs_server.out)"
                why = _first_line(error).rstrip(".")
                raise ConfigError(f"Ray does not start on this machine: {why}; {logs}", param="ray") from error
            _LOG.warning("Ray does not start (%s): another try", _first_line(error))
        else:
            return


def _joined(address: str | None, *, keep: bool) -> bool:
    """Connect to a cluster that is there; False if none is. Raises ConfigError if there is none at the address."""
    where = address or ("auto" if keep else None)  # "auto" would join what ends with another program, too
    if where is None and canonicalize_bootstrap_address(None) is None:  # type: ignore[arg-type]
        return False
    try:
        _init(where)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address is not None:
            raise ConfigError(f"no Ray cluster at {address}: {_first_line(error)}", param="ray") from error
        return False
    return True


def _init(address: str | None) -> None:
    """Connect to Ray. It puts the current directory first on its workers' import path, so that must be our packages' place."""
    with contextlib.chdir(ROOT):
        ray.init(address=address, namespace=NAMESPACE, logging_level=logging.WARNING, include_dashboard=False)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


@contextlib.contextmanager
def exit_when_lost(code: int) -> Iterator[None]:
    """Inside, this process ends with `code` once Ray's GCS or the raylet here is gone: calls of Ray would wait for ever.

    What Ray started here ends with it.
    """
    watch, stop = RayWatch(ray_services()), threading.Event()

    def end() -> None:
        lost = watch.watch(stop)
        if lost is not None:
            _LOG.critical("the fleet has lost %s: it ends, start it again", lost)
            time.sleep(FAREWELL_SECONDS)
            os._exit(code)

    threading.Thread(target=end, name="jaxserve-ray-watch", daemon=True).start()
    try:
        yield
    finally:
        stop.set()


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
        self._deployment = uuid.uuid4().hex

    def deploy(self) -> list[Addresses]:
        """Start all. Returns where the ingresses serve, once they do; those at the same port are one.

        Raises ConfigError if the cluster has not the resources, EngineDeadError if a replica or the ingress cannot be built.
        """
        resources = ray.cluster_resources()
        self._config.check_resources(resources.get("CPU", 0.0), resources.get("GPU", 0.0))
        open_directory(self._name)
        ledger = open_ledger(self._name) if self._config.ingress.replicas > 1 else None
        serve.start(http_options={"location": "NoServer"})
        try:
            pools = [(f"{self._replicas} {pool.name}", self._pool(pool)) for pool in self._config.pools]
            serve.run_many([serve.RunTarget(built, name=name, route_prefix=None) for name, built in pools])
            handle = serve.run(self._front(), name=self._ingress, route_prefix=None)
            ready = [handle.addresses.remote().result()] if ledger is None else self._heard(ledger)
        except RuntimeError as error:  # which Ray Serve raises for whatever a constructor raised
            raise EngineDeadError(f"the fleet cannot be started: {self._reason() or error}") from error
        return [Addresses(http=one.http, grpc=one.grpc) for one in ready]

    def _reason(self) -> str | None:
        """What a replica or an ingress of this fleet cannot be built for, of which Ray Serve's error says nothing."""
        for name, application in serve.status().applications.items():
            for pool, deployment in application.deployments.items():
                reason = reason_in(deployment.message)
                if name.startswith(f"{self._name} ") and reason is not None:
                    return f"{pool}: {reason}"
        return None

    def _heard(self, ledger: Any) -> list[FrontReady]:
        """Where ingresses serve, as they told the ledger, which they do at once."""
        deadline = time.monotonic() + HEARD_SECONDS
        while True:
            found = {one for name, one in ray.get(ledger.addresses.remote()).items() if name.startswith(self._deployment)}
            if len(found) == self._config.ingress.replicas or (found and self._config.server.port):
                return [FrontReady(http, grpc) for http, grpc in sorted(found)]
            if time.monotonic() > deadline:
                raise EngineDeadError(f"the fleet cannot be started: {len(found)} ingresses are heard of")
            time.sleep(LOOK_SECONDS)

    def delete(self) -> None:
        """End the ingress, which drains, and then the replicas."""
        serve.delete(self._ingress)
        for pool in self._config.pools:
            serve.delete(f"{self._replicas} {pool.name}")
        for name in (directory_name(self._name), ledger_name(self._name)):
            with contextlib.suppress(ValueError):  # where there is none
                ray.kill(ray.get_actor(name, namespace=NAMESPACE))

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
            num_replicas=pool.replicas if pool.scaling is None else None,
            autoscaling_config=None if pool.scaling is None else autoscaling(pool.scaling, server.drain_timeout + STOP_SECONDS),
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
                model=pool.model_name,
                classes=[str(one) for one in pool.classes],
                min_tokens=pool.min_tokens,
                max_tokens=pool.max_tokens,
            )
            for pool in config.pools
        ]
        spec = FleetSpec(routing=asdict(config.routing), pools=rules, key=self._keys.public)
        deployment = serve.deployment(
            name="ingress",
            num_replicas=config.ingress.replicas,
            ray_actor_options={"num_cpus": 0, "resources": _place_of(config)},
            health_check_period_s=HEALTH_SECONDS,
            health_check_timeout_s=_HEALTH_TIMEOUT_SECONDS,
            graceful_shutdown_timeout_s=config.server.drain_timeout + 2 * STOP_SECONDS,
            max_constructor_retry_count=1,
        )(IngressDeployment)
        return deployment.bind(
            IngressSettings(
                self._name,
                os.getcwd(),
                config.server,
                spec,
                deployment=self._deployment,
                among=config.ingress.replicas,
                admits=config.ingress.without_ledger == "admit",
            )
        )


def _place_of(config: FleetConfig) -> dict[str, float]:
    """What ties ingresses to this machine, where they have a state directory, which is here."""
    return {} if config.server.state_dir is None else {f"node:{ray.util.get_node_ip_address()}": 0.001}
