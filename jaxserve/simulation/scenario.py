"""From settings to a finished simulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies_file import load_policies
from jaxserve.config.windows import group_layers, longest_sequence
from jaxserve.errors import ConfigError
from jaxserve.executor.base import Capabilities
from jaxserve.planner import catalogue, memory
from jaxserve.planner.catalogue import Hardware
from jaxserve.planner.draft import with_draft
from jaxserve.planner.memory import Layout
from jaxserve.routing.make import make_router
from jaxserve.routing.router import Router
from jaxserve.scheduler.policy import DEFAULT_POLICY, Policy
from jaxserve.simulation.calibrate import Fit, fit
from jaxserve.simulation.costs import Calibration
from jaxserve.simulation.drafts import parse_speculation
from jaxserve.simulation.fairness import Fairness
from jaxserve.simulation.fleet import Fleet, RetryPolicy
from jaxserve.simulation.ledger import RequestLedger, Slo
from jaxserve.simulation.profile import read_profile
from jaxserve.simulation.replica import ReplicaSpec
from jaxserve.simulation.scaling import FleetScaling, parse_scaling
from jaxserve.simulation.settings import DEFAULT_HARDWARE, ReplicaConfig, parse_outages
from jaxserve.types import ServiceClass
from jaxserve.workload.generate import generate
from jaxserve.workload.requests import WorkloadRequest
from jaxserve.workload.settings import SloConfig, WorkloadConfig
from jaxserve.workload.stats import Timeline
from jaxserve.workload.trace import read_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a simulation's outcome depends on."""

    replica: ReplicaConfig = field(default_factory=ReplicaConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    slo: SloConfig = field(default_factory=SloConfig)


def simulate(scenario: Scenario) -> Fleet:
    """Run a scenario to its end. The same scenario gives the same outcome.

    Raises:
        ConfigError: what cannot be, with the numbers that conflict; a trace's errors come before anything runs.
        CheckpointError: a config.json that cannot be read.
    """
    fleet = build(scenario)
    while fleet.step():
        pass
    return fleet


def build(
    scenario: Scenario, *, policy: Policy = DEFAULT_POLICY, retry: RetryPolicy | None = None, router: Router | None = None
) -> Fleet:
    """A simulation at its beginning, of schedulers, clients and a router that may decide otherwise than the scenario's."""
    spec = replace(replica_spec(scenario.replica, scenario.scheduler), policy=policy, seed=scenario.workload.seed)
    scaling = parse_scaling(scenario.replica.autoscale)
    timeline, config = Timeline(), scenario.scheduler
    fairness = Fairness(config.prefill_price, config.decode_price, lambda tenant: spec.policies.of_tenant(tenant).weight)
    return Fleet(
        spec,
        scenario.replica.replicas if scaling is None else scaling.max_replicas,
        router or make_router(scenario.replica.router, seed=scenario.workload.seed),
        parse_outages(scenario.replica.fail, scenario.replica.replicas),
        _requests(scenario.workload, spec.limits.max_model_len, ServiceClass(scenario.scheduler.default_class)),
        retry or RetryPolicy(scenario.workload.retries, scenario.workload.backoff_s),
        scenario.workload.seed,
        RequestLedger(Slo(scenario.slo.slo_ttft_ms / 1e3, scenario.slo.slo_itl_ms / 1e3), timeline, fairness),
        timeline,
        None if scaling is None else FleetScaling(scaling),
    )


def replica_spec(config: ReplicaConfig, scheduler: SchedulerConfig) -> ReplicaSpec:
    """What replicas are built from, every default filled in. Raises ConfigError for what does not fit."""
    shape = catalogue.model(config.model)
    fitted = None if config.profile is None else fit(read_profile(config.profile), config.profile)
    layout = Layout(
        shape=shape,
        hardware=_hardware(config, fitted),
        tp=config.tp,
        weights=config.weights,
        kv_dtype=config.kv_dtype,
    )
    speculation = parse_speculation(config.speculative_config)
    layout = with_draft(layout, None if speculation is None else speculation.config)
    memory.check_layout(layout)
    room = memory.ledger(layout).kv_tokens  # raises where the weights alone are too big
    groups, cached = group_layers(shape.cache_windows), len(shape.cache_windows)
    windows, most = groups.windows, room * cached // (config.page_size * groups.size)
    num_pages = most if config.num_pages is None else config.num_pages
    fitting = longest_sequence(windows, max(num_pages - 1, 0), config.page_size, scheduler.max_num_batched_tokens)
    if (fitting is not None and fitting < 2) or num_pages > most:
        raise ConfigError(
            f"num_pages is {num_pages} of {config.page_size} tokens, one of them the null page: memory holds {room:,} tokens, "
            "and a prompt's token and one more must fit",
            param="num_pages",
        )
    limits = Capabilities(
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=_max_model_len(config, shape.max_position_embeddings, fitting),
        num_pages=num_pages,
        page_size=config.page_size,
        swap_slots=_swap_slots(config, layout, groups.size / cached),
        swap_page_seconds=config.page_size * layout.held_token_bytes_device * groups.size / cached / (config.swap_gbps * 1e9),
        windows=windows,
    )
    return ReplicaSpec(
        layout=layout,
        calibration=_calibration(config) if fitted is None else replace(fitted.calibration, network=config.network_efficiency),
        fit=fitted,
        min_rows=1 if fitted is None else fitted.min_rows,
        fine=fitted is None or fitted.known,
        scheduler=scheduler if fitted is None or fitted.known else scheduler.on_cpu(),
        policies=load_policies(scheduler.policies),
        limits=limits,
        prefix_caching=config.prefix_caching,
        speculation=speculation,
    )


def _hardware(config: ReplicaConfig, fitted: Fit | None) -> Hardware:
    """The machine asked for; shares of its peaks can be taken from a profile of another only if that one's peaks are known."""
    if fitted is None:
        return catalogue.hardware(config.hardware or DEFAULT_HARDWARE)
    if config.hardware is None:
        if not fitted.known and config.tp > 1:
            raise ConfigError(f"tp is {config.tp}, but the profile does not tell the links of {fitted.hardware.name}", param="tp")
        return fitted.hardware
    if not fitted.known:
        raise ConfigError(
            f"hardware is {config.hardware}, but the profile tells the rates of {fitted.hardware.name} and no shares of a peak",
            param="hardware",
        )
    return catalogue.hardware(config.hardware)


def _calibration(config: ReplicaConfig) -> Calibration:
    return Calibration(
        compute=config.compute_efficiency,
        attention=config.attention_efficiency,
        memory=config.memory_efficiency,
        network=config.network_efficiency,
        overlap=config.memory_overlap,
        launch_s=config.launch_us * 1e-6,
        host_s=config.host_us * 1e-6,
    )


def _max_model_len(config: ReplicaConfig, made_for: int, fitting: int | None) -> int:
    asked, fitting = config.max_model_len, made_for if fitting is None else fitting
    if asked is None:
        return min(made_for, fitting)
    if asked > made_for:
        raise ConfigError(f"max_model_len is {asked} tokens, but the model was made for {made_for}", param="max_model_len")
    if asked > fitting:
        raise ConfigError(f"max_model_len is {asked} tokens, but the KV cache holds {fitting}", param="max_model_len")
    return asked


def _swap_slots(config: ReplicaConfig, layout: Layout, layers: float) -> int:
    """Pages of this share of the layers that the host memory holds. KV heads that several GPUs have copies of are there once."""
    page = int(config.page_size * layout.held_token_bytes * layers)
    slots = int(config.swap_gib * memory.GIB // page)
    if config.swap_gib > 0.0 and slots == 0:
        raise ConfigError(
            f"swap_gib is {config.swap_gib:g}, less than one page: {config.page_size} tokens take {page:,} bytes",
            param="swap_gib",
        )
    return slots


def _requests(config: WorkloadConfig, max_model_len: int, default_class: ServiceClass) -> Iterator[WorkloadRequest]:
    if config.trace is None:
        return generate(config, max_model_len, default_class)
    path = Path(config.trace)
    for _ in read_trace(path, max_model_len, default_class):  # a mistake in the last line is told before an hour of simulation
        pass
    return read_trace(path, max_model_len, default_class)
