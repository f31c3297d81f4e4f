"""What a recording is: consecutive steps, the sequences in them, and the engine that they ran on."""

from __future__ import annotations

from dataclasses import dataclass

from jaxserve.executor.base import Capabilities
from jaxserve.scheduler.request import EngineRequest
from jaxserve.step.plan import Ints, Plan, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeader:
    """The engine that was recorded.

    Attributes:
        jaxserve, jax: versions.
        model: the name that clients asked for.
        fingerprint: of configuration and weights, from `model_fingerprint`.
        capabilities: limits of its executor.
        settings: every setting of its EngineConfig, by name.
    """

    jaxserve: str
    jax: str
    model: str
    fingerprint: str
    capabilities: Capabilities
    settings: dict[str, bool | int | float | str | tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class RecordedSequence:
    """A sequence that occurs in the steps.

    Attributes:
        request: as the scheduler took it in.
        tokens: int32[N], prompt and output tokens known when the recording was taken.
    """

    request: EngineRequest
    tokens: Ints


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step.

    Attributes:
        plan: as it was submitted.
        sequences: of each row, as places in the recording's `sequences`; ids may be used again when a sequence has ended.
        result: what came back; None if nothing did.
        seconds: from its submission, or from the result before if that was later, to its result; None without one.
        masks: what its masked rows might choose; None if it had none, or did not get that far.
    """

    plan: Plan
    sequences: tuple[int, ...]
    result: StepResult | None
    seconds: float | None
    masks: Ints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Consecutive steps of an engine, the last ones it planned.

    Attributes:
        reason: why the recording was taken: the traceback of a crash.
        created: when, seconds since 1970.
        sequences: every sequence in the steps.
        steps: in order; those at the end may have no result.
    """

    header: RecordHeader
    reason: str
    created: float
    sequences: tuple[RecordedSequence, ...]
    steps: tuple[RecordedStep, ...]
