"""Ray's side of a fleet: the directory as an actor, replicas and ingresses as deployments of Ray Serve.

Ray places processes, restarts and counts them. Requests and tokens do not pass through it: an ingress speaks to engines directly.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
import warnings
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve

from jaxserve.clock import RealClock
from jaxserve.config.server import ServerConfig
from jaxserve.engine.remote.reports import EngineSpec
from jaxserve.errors import ConfigError
from server.fleet.directory import Directory, Edition, Listing
from server.fleet.front import FrontReady, PeerSpec, answer_front
from server.fleet.ingress import Ingress, SharedBy
from server.fleet.loopback import LOOPBACK, replica_on_loopback
from server.fleet.ray_watch import FAILURES, PATIENT_FAILURES, RayServices
from server.fleet.replica import Replica
from server.fleet.scaling import as_stats
from server.gateway.shared import SharedLedger
from server.processes.specs import FleetSpec

_LOG = logging.getLogger(__name__)

NAMESPACE = "jaxserve"
STOP_SECONDS = 15.0  # beyond the drain, for an engine's last step and its process


def directory_name(fleet: str) -> str:
    return f"directory {fleet}"


class DirectoryActor:
    """A Directory that is found by name, and started again where it dies."""

    def __init__(self) -> None:
        self._directory = Directory(uuid.uuid4().hex)

    async def tell(self, listing: Listing) -> None:
        self._directory.tell(listing)

    async def leave(self, replica: str) -> None:
        self._directory.leave(replica)

    async def next_edition(self, number: str, seconds: float) -> Edition:
        return await self._directory.next_edition(number, seconds)


def open_directory(fleet: str) -> Any:
    """The fleet's directory, started if there is none."""
    return _open(DirectoryActor, directory_name(fleet))


def _open(kind: type, name: str) -> Any:
    """An actor by its name, which is started again for as long as nobody takes it away."""
    actor: Any = ray.remote(num_cpus=0)(kind)
    return actor.options(
        name=name,
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=1000,
    ).remote()


class LedgerActor:
    """The ledger that a fleet's ingresses share. One that died is started again, and learns from them what they know."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # this asks Ray what Ray itself calls deprecated
            again = ray.get_runtime_context().was_current_actor_reconstructed
        self._ledger = SharedLedger(RealClock(), time.time(), again=again)

    async def handle(self, name: str, asked: bytes) -> bytes:
        return answer_front(self._ledger, name, asked)

    async def addresses(self) -> dict[str, tuple[str, str]]:
        return self._ledger.addresses()


def ledger_name(fleet: str) -> str:
    return f"ledger {fleet}"


def open_ledger(fleet: str) -> Any:
    """The fleet's ledger, started if there is none."""
    return _open(LedgerActor, ledger_name(fleet))


class _Shared:
    """The ledger as one ingress reaches it."""

    def __init__(self, fleet: str, name: str) -> None:
        self._name = name
        self._ledger = open_ledger(fleet)

    async def ask(self, asked: bytes) -> bytes:
        told: bytes = await self._ledger.handle.remote(self._name, asked)
        return told


def ray_services() -> RayServices:
    """The GCS, and the raylet of the machine that this process is on."""
    context = ray.get_runtime_context()
    addresses = {"Ray's control service (GCS)": context.gcs_address}
    for node in ray.nodes():
        if node["NodeID"] == context.get_node_id():
            addresses["Ray's raylet"] = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    alone = ray.util.get_node_ip_address() == LOOPBACK
    return RayServices(addresses, FAILURES if alone else PATIENT_FAILURES)


class _Listed:
    """The directory as one who may lose sight of it sees it."""

    def __init__(self, fleet: str) -> None:
        self._fleet = fleet

    async def tell(self, listing: Listing) -> None:
        await self._actor().tell.remote(listing)

    async def leave(self, replica: str) -> None:
        await self._actor().leave.remote(replica)

    async def next_edition(self, number: str, seconds: float) -> Edition:
        edition: Edition = await self._actor().next_edition.remote(number, seconds)
        return edition

    def _actor(self) -> Any:
        return ray.get_actor(directory_name(self._fleet), namespace=NAMESPACE)


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """What the replicas of a pool are built from.

    Attributes:
        directory: that paths in settings are relative to.
        engine: what each builds; where it listens is filled in.
        weight: speed of one, as a multiple of others'.
        patience: seconds that requests may take to end where a replica is taken away.
    """

    fleet: str
    directory: str
    pool: str
    engine: EngineSpec
    weight: float
    max_restarts: int
    hang_timeout: float
    patience: float


class ReplicaDeployment:
    """A Replica that Ray Serve keeps."""

    async def __init__(self, settings: ReplicaSettings) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        replica_on_loopback()
        _work_in(settings.directory)
        self._settings = settings
        self._directory = _Listed(settings.fleet)
        unique: str = serve.get_replica_context().replica_id.unique_id
        host = ray.util.get_node_ip_address()
        listing = Listing(f"{settings.pool}/{unique}", f"tcp://{host}:{_free_port(host)}", settings.pool, settings.weight)
        self._name = listing.replica
        self._replica = Replica(
            listing,
            settings.engine,
            max_restarts=settings.max_restarts,
            hang_timeout=settings.hang_timeout,
            tell=self._directory.tell,
        )
        _LOG.info("replica %s: %s", self._name, await self._replica.start())

    async def check_health(self) -> None:
        self._replica.check()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What PoolScaler is told of this replica; Ray asks each second where the pool scales."""
        demand = await self._replica.demand()
        return {} if demand is None else as_stats(demand)

    async def __del__(self) -> None:
        try:
            await self._directory.leave(self._name)
        except Exception as error:  # it is struck off when its lease ends
            _LOG.warning("the directory was not told that %s leaves: %r", self._name, error)
        await self._replica.stop(self._settings.patience)


@dataclass(frozen=True, slots=True)
class IngressSettings:
    """What an ingress serves.

    Attributes:
        directory: that paths in settings are relative to.
        deployment: names of ingresses begin with it.
        among: how many ingresses there are.
        admits: see LeasedLedger.
    """

    fleet: str
    directory: str
    server: ServerConfig
    spec: FleetSpec
    deployment: str
    among: int
    admits: bool


class IngressDeployment:
    """An Ingress that Ray Serve keeps."""

    async def __init__(self, settings: IngressSettings) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        replica_on_loopback()
        _work_in(settings.directory)
        self._settings = settings
        peers = None
        if settings.among > 1:
            name = f"{settings.deployment}/{serve.get_replica_context().replica_id.unique_id}"
            spec = PeerSpec(name=name, among=settings.among, admits=settings.admits)
            peers = SharedBy(spec, _Shared(settings.fleet, name).ask)
        self._ingress = Ingress(settings.server, settings.spec, _Listed(settings.fleet).next_edition, peers, ray_services())
        self._addresses = await self._ingress.start()

    async def check_health(self) -> None:
        self._ingress.check()

    async def addresses(self) -> FrontReady:
        return self._addresses

    async def __del__(self) -> None:
        await self._ingress.stop(self._settings.server.drain_timeout + STOP_SECONDS)


def _work_in(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        reason = f"paths of the fleet's settings are relative to {directory}, which {socket.gethostname()} has not"
        raise ConfigError(f"{reason}: {error.strerror}") from error


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port
