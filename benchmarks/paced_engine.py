"""An engine whose steps take a set time and compute nothing. Every token says when the step that made it was over.

The token of a step is the machine's monotonic clock in units of STAMP_SECONDS, modulo the vocabulary; its text is four
characters, as those of real vocabularies are on average. So whoever reads a stream, in whichever process, knows how long a
token took from the device to there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.clock import RealClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.engine.client import ModelInfo
from jaxserve.engine.core import EngineCore
from jaxserve.engine.intake import IntakeLimits, IntakeRules
from jaxserve.engine.link import EngineDescription
from jaxserve.engine.remote.builders import BuildProgress, ServedEngine
from jaxserve.executor.base import Capabilities
from jaxserve.metrics.turn import ExecutorCounts
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.step.plan import Ints, Plan, StepResult
from jaxserve.types import ServiceClass

BUILDER = "benchmarks.paced_engine:paced_engine"
MODEL = "paced"
STAMP_SECONDS = 1e-4
VOCABULARY = 2**15
CONTEXT, PAGE_SIZE, PREFILL_TOKENS = 1024, 64, 2**15
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


def stamp(when: float) -> int:
    """The token of a step that was over at a time of the monotonic clock, seconds."""
    return round(when / STAMP_SECONDS) % VOCABULARY


def seconds_since(token: int, when: float) -> float:
    """Seconds from the end of a token's step to a time of the monotonic clock; right as long as that is less than three."""
    units = (when / STAMP_SECONDS - token + VOCABULARY / 64) % VOCABULARY - VOCABULARY / 64
    return units * STAMP_SECONDS


def text_of(token: int) -> str:
    """A token's text."""
    return " " + _LETTERS[token >> 10] + _LETTERS[token >> 5 & 31] + _LETTERS[token & 31]


def token_of(text: bytes) -> int:
    """The token of the last three of its characters."""
    high, middle, low = (_LETTERS.index(chr(byte)) for byte in text[-3:])
    return high << 10 | middle << 5 | low


def write_tokenizer(directory: Path) -> Path:
    """Write the tokenizer of these tokens; returns its file."""
    vocabulary = {text_of(token).replace(" ", "Ġ"): token for token in range(VOCABULARY)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    path = directory / "tokenizer.json"
    tokenizer.save(str(path))
    (directory / "tokenizer_config.json").write_text(json.dumps({}))
    return path


@dataclass(frozen=True, slots=True)
class PacedHandle:
    """A step that is over at a known time."""

    plan: Plan
    ends: float

    def choose(self, masks: Ints | None) -> None:
        """Stamps are not chosen."""

    def result(self) -> StepResult:
        """Wait for that time."""
        time.sleep(max(0.0, self.ends - time.monotonic()))
        return StepResult.of_rows(self.plan, np.full(self.plan.num_rows, stamp(self.ends), np.int32))


class PacedExecutor:
    """Steps queue as on a device: one that is submitted while another runs begins when that one ends.

    Args:
        limits: what `capabilities` says.
        step_seconds: what a step takes, whatever is in it.
    """

    def __init__(self, limits: Capabilities, step_seconds: float) -> None:
        self._limits = limits
        self._step_seconds = step_seconds
        self._free_at = 0.0

    def submit(self, plan: Plan) -> PacedHandle:
        """Queue a step."""
        self._free_at = max(self._free_at, time.monotonic()) + self._step_seconds
        return PacedHandle(plan, self._free_at)

    def capabilities(self) -> Capabilities:
        """The limits."""
        return self._limits

    def counts(self) -> ExecutorCounts:
        """Nothing is compiled or padded."""
        return ExecutorCounts()


def paced_engine(argument: Mapping[str, Any], progress: BuildProgress) -> ServedEngine:
    """The builder of an engine process: of `rows` sequences, steps of `step_seconds`, and the `tokenizer`'s path."""
    rows = argument["rows"]
    tokens = max(PREFILL_TOKENS, rows)
    cache = KVCache(rows * (CONTEXT // PAGE_SIZE + 1) + 1, PAGE_SIZE, prefix_caching=True)
    limits = Capabilities(rows, tokens, CONTEXT, cache.num_usable + 1, PAGE_SIZE)
    config = SchedulerConfig(
        max_num_seqs=rows, max_num_batched_tokens=tokens, max_waiting=2 * rows, itl_target_ms=0.0, low_watermark=0.0
    )
    core = EngineCore(
        Scheduler(config, cache, CONTEXT, RealClock()), PacedExecutor(limits, argument["step_seconds"]), overlap=True
    )
    rules = IntakeRules(
        IntakeLimits(
            max_model_len=CONTEXT, vocab_size=VOCABULARY, eos_token_ids=frozenset(), max_sequences=rows, seed=0, strict=True
        ),
        CacheNamespace(MODEL, "bfloat16", ""),
        Policies(),
        ServiceClass.INTERACTIVE_PAID,
        cache.num_usable,
        PAGE_SIZE,
    )
    model = ModelInfo(MODEL, "PacedForCausalLM", CONTEXT, VOCABULARY, "bfloat16", 0, 0)
    return ServedEngine(core, EngineDescription(model, rules, argument["tokenizer"], None, config), "a paced engine")
