"""Runs a recording again: on the simulator, which says how long its steps should take, or on the model itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from jaxserve.clock import RealClock, VirtualClock
from jaxserve.config.check import check_types
from jaxserve.config.fields import SchedulerConfig, setting
from jaxserve.errors import ConfigError
from jaxserve.record.dump import read_dump
from jaxserve.record.recording import Recording
from jaxserve.record.replay import ReplayedStep, replay
from jaxserve.simulation.costs import CostModel
from jaxserve.simulation.executor import PlayedStep, SimulatedExecutor
from jaxserve.simulation.scenario import replica_spec
from jaxserve.simulation.settings import ReplicaConfig

_RECORDED = (
    *("replicas", "autoscale", "price", "fail", "page_size", "num_pages", "prefix_caching", "max_model_len"),
    *("swap_gib", "swap_gbps", "host_us", "speculative_config"),
)
"""Fields of ReplicaConfig that a recording has decided, or that a step alone on its device does not depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """A recording to run in place of a workload."""

    replay: str | None = setting(None, "crash dump whose steps to run again, in place of a workload")
    replay_on: Literal["simulator", "model"] = setting(
        "simulator", "'simulator' says how long the steps should take, 'model' computes them again and compares the tokens"
    )

    def __post_init__(self) -> None:
        check_types(self)
        if self.replay is None and self.replay_on != "simulator":
            raise ConfigError(f"replay_on is {self.replay_on}, but there is nothing to replay", param="replay_on")


@dataclass(frozen=True, slots=True)
class Replay:
    """A recording that was run again.

    Attributes:
        on: what ran it, for people.
        compared: whether tokens were compared.
    """

    recording: Recording
    on: str
    compared: bool
    steps: tuple[ReplayedStep, ...]

    @property
    def equal(self) -> bool:
        return not any(step.error or step.differences for step in self.steps)


def run_replay(config: ReplayConfig, replica: ReplicaConfig, others: Iterable[Any]) -> Replay:
    """Run the recording that `config` names.

    Args:
        config: which, and on what.
        replica: the model and, for the simulator, its hardware.
        others: settings of a workload: they must have their defaults.

    Raises:
        ConfigError: a file that is no recording, a setting that a replay does not look at, or another model than the recorded.
        CheckpointError: the model cannot be loaded.
    """
    simulated = config.replay_on == "simulator"
    for other in others:
        _refuse(other, {item.name for item in fields(other)})
    _refuse(replica, set(_RECORDED) if simulated else {item.name for item in fields(replica)} - {"model"})
    recording = read_dump(Path(config.replay or ""))
    if not simulated:
        # jax takes seconds to import, and the simulator does without.
        from jaxserve.engine.replay import recorded_model  # noqa: PLC0415
        from jaxserve.jax_settings import engine_settings  # noqa: PLC0415

        executor = recorded_model(replica.model, recording.header, _silent)
        with engine_settings():
            steps = tuple(replay(recording, executor, RealClock(), compare=True))
        return Replay(recording, f"{replica.model} on this machine", True, steps)
    spec = replica_spec(replica, SchedulerConfig())
    limits, clock = recording.header.capabilities, VirtualClock()
    costs = CostModel(spec.layout, spec.calibration, spec.grid(limits))
    simulator = SimulatedExecutor(limits, costs, clock, 0.0, _unobserved)
    steps = tuple(replay(recording, simulator, clock, compare=False))
    layout = spec.layout
    return Replay(recording, f"{replica.model} on {layout.tp} x {layout.hardware.name}, simulated", False, steps)


def _refuse(config: Any, names: set[str]) -> None:
    for item in fields(config):
        if item.name in names and getattr(config, item.name) != item.default:
            raise ConfigError(f"{item.name} means nothing to a replay", param=item.name)


def _silent(what: str, done: int, total: int) -> None:
    """No progress is shown."""


def _unobserved(step: PlayedStep) -> None:
    """The clock tells the same."""
