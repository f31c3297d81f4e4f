"""Measured step times of a real executor, in a JSON file that `benchmarks.step_profile` writes.

{"model_name": "llama-150m", "model": {...config.json...}, "tp": 1, "weights": "bf16", "kv_dtype": "bf16",
 "hardware": null, "machine": "AMD EPYC, 2 cores", "memory_bytes": 24000000000,
 "max_num_seqs": 16, "max_num_batched_tokens": 256, "min_rows": 2, "host_seconds": 0.0005,
 "steps": [{"counts": [1, 1, 62], "lengths": [300, 120, 62], "seconds": 0.0812}]}
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from jaxserve.errors import ConfigError
from jaxserve.planner.memory import KvFormat, WeightFormat

MIN_STEPS = 8  # twice as many as there are factors to fit


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step's shape and time.

    Attributes:
        counts: tokens that each row computed.
        lengths: tokens of each row in the cache after the step.
        seconds: time of the step, where steps follow one another without a pause.
    """

    counts: tuple[int, ...]
    lengths: tuple[int, ...]
    seconds: float


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Step times of one model on one machine. Keys besides these (date, versions) are for people.

    Attributes:
        model: the model's config.json.
        tp: devices that shared every layer.
        weights, kv_dtype: formats.
        hardware: the planner's name of the GPU; None for a machine that it does not know, such as a CPU.
        memory_bytes: memory of one device.
        max_num_seqs, max_num_batched_tokens, min_rows: what the executor's buckets were made from; where `hardware` is known,
            decode steps have the row counts of GPUs.
        host_seconds: time of the host for planning a step, submitting it and taking in its result.
        steps: the measurements.
    """

    model_name: str
    model: dict[str, Any]
    tp: int
    weights: WeightFormat
    kv_dtype: KvFormat
    hardware: str | None
    machine: str
    memory_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    min_rows: int
    host_seconds: float
    steps: tuple[MeasuredStep, ...]


def read_profile(path: str) -> Profile:
    """Read and check a profile. Raises ConfigError naming the file and what is wrong in it."""
    try:
        profile = msgspec.json.decode(Path(path).read_bytes(), type=Profile)
        _check(profile)
    except OSError as error:
        raise ConfigError(f"profile: cannot read {path}: {error.strerror}", param="profile") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"profile: {path}: {error}", param="profile") from error
    return profile


def _check(profile: Profile) -> None:
    for name in ("tp", "memory_bytes", "max_num_seqs", "max_num_batched_tokens", "min_rows"):
        if getattr(profile, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(profile, name)}")
    if profile.hardware is None and profile.tp > 1:
        raise ValueError(f"tp is {profile.tp}, but of a machine that the planner does not know only one device can be profiled")
    if not 0.0 <= profile.host_seconds < math.inf:
        raise ValueError(f"host_seconds must be at least 0, got {profile.host_seconds}")
    if len(profile.steps) < MIN_STEPS:
        raise ValueError(f"{len(profile.steps)} steps are too few to fit the factors to; at least {MIN_STEPS} are needed")
    for number, step in enumerate(profile.steps):
        _check_step(f"steps[{number}]", step, profile)
    prompts = [max(step.counts) > 1 for step in profile.steps]
    if all(prompts) or not any(prompts):
        raise ValueError("steps of decodes alone and steps with prompts are both needed to tell memory from arithmetic")


def _check_step(name: str, step: MeasuredStep, profile: Profile) -> None:
    if not 0.0 < step.seconds < math.inf:
        raise ValueError(f"{name}: seconds must be above 0, got {step.seconds}")
    if not step.counts or len(step.counts) != len(step.lengths):
        raise ValueError(f"{name}: {len(step.counts)} counts and {len(step.lengths)} lengths; one of each a row is needed")
    for count, length in zip(step.counts, step.lengths, strict=True):
        if not 1 <= count <= length:
            raise ValueError(
                f"{name}: a row computes {count} tokens of {length}; at least 1 and no more than it holds are needed"
            )
    if len(step.counts) > profile.max_num_seqs or sum(step.counts) > profile.max_num_batched_tokens:
        raise ValueError(
            f"{name}: {sum(step.counts)} tokens in {len(step.counts)} rows, but a step has at most "
            f"{profile.max_num_batched_tokens} in {profile.max_num_seqs}"
        )
