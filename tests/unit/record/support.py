"""Small engines whose steps are recorded."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.swap import SwapSpace
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.engine.core import EngineCore
from jaxserve.executor.base import Capabilities, Executor
from jaxserve.record.crash import CrashDumper
from jaxserve.record.rebuild import spare_spans
from jaxserve.record.recording import RecordHeader, Recording
from jaxserve.record.replay import ReplayedStep, replay
from jaxserve.record.ring import StepRing
from jaxserve.sampling.options import HAS_BIAS, PRESENCE, STANDARD
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.speculation.device import DeviceGuesses
from jaxserve.step.plan import Plan, StepResult
from tests.support.hash_executor import HashExecutor, HashHandle, Windows

MAX_LEN, PAGE, ROWS, BUDGET = 40, 4, 4, 9


def header(limits: Capabilities, **changes: Any) -> RecordHeader:
    settings = {"dtype": "float32", "load_format": "safetensors", "seed": 0, "tensor_parallel_size": 1}
    known = {"jaxserve": "0.1.0", "jax": "0.11.2", "model": "hash", "fingerprint": "f00d", "settings": settings}
    return RecordHeader(capabilities=limits, **(known | changes))


def request(name: str, prompt: Iterable[int], max_tokens: int = 8, parent: str | None = None, **params: Any) -> EngineRequest:
    return EngineRequest(
        id=name,
        prompt=tuple(prompt),
        params=SamplingParams(**{"temperature": 0.0} | params),
        max_tokens=max_tokens,
        seed=7,
        eos_token_ids=frozenset(),
        cache_root=b"root",
        arrival=0.0,
        parent=parent,
    )


class StatefulExecutor(HashExecutor):
    """Its tokens depend on the sampling state of the slot too, where a row has a penalty or a bias; fails at one step.

    A step takes a quarter of a second.
    """

    def __init__(
        self, *sizes: int, fails_at: int | None = None, swap_slots: int = 0, windows: Windows = (None,), guesses: int = 0
    ) -> None:
        super().__init__(*sizes, swap_slots=swap_slots, windows=windows, guesses=guesses, wrong=0.4)
        self.clock = VirtualClock()
        self.fails_at = fails_at
        self.state: dict[int, list[Any]] = {}

    def capabilities(self) -> Capabilities:
        return replace(super().capabilities(), max_num_batched_tokens=BUDGET)

    def submit(self, plan: Plan) -> TimedHandle:
        if plan.step == self.fails_at and plan.samples.any():
            raise RuntimeError("the device is gone")
        for start in plan.starts:
            extra = [sorted(start.prompt), sorted(start.logit_bias.items()), start.allowed]
            self.state[start.slot] = [extra, *start.output]
        handle = super().submit(plan)
        for row in np.flatnonzero(plan.samples).tolist():
            slot = int(plan.slots[row])
            if STANDARD.column(plan.sampling, PRESENCE)[row] or STANDARD.column(plan.sampling, HAS_BIAS)[row]:
                assert slot in self.state, "a slot's state is used before it is loaded"
                shift = zlib.crc32(repr(self.state[slot]).encode())
                handle.value.tokens[row, 0] = self.last[slot] = (int(self.last[slot]) + shift) % self.vocab
            self.state.setdefault(slot, []).append(int(self.last[slot]))
        return TimedHandle(handle.executor, handle.value, self.clock)


@dataclass
class TimedHandle(HashHandle):
    clock: VirtualClock

    def result(self) -> StepResult:
        self.clock.advance(0.25)
        return super().result()


class Engine:
    """An engine core whose last steps are recorded; it preempts readily. Crashes are written to `directory`."""

    def __init__(
        self,
        *,
        capacity: int = 5,
        num_pages: int = 21,
        overlap: bool = True,
        fails_at: int | None = None,
        swap_slots: int = 0,
        windows: Windows = (None,),
        guesses: int = 0,
        directory: Path = Path(os.devnull, "no dump is expected"),
    ) -> None:
        self.ring = StepRing(capacity)
        self.executor = StatefulExecutor(
            num_pages, PAGE, ROWS, MAX_LEN, fails_at=fails_at, swap_slots=swap_slots, windows=windows, guesses=guesses
        )
        self.dumper = CrashDumper(self.ring, directory, header(self.executor.capabilities()))
        config = SchedulerConfig(max_num_seqs=ROWS, max_num_batched_tokens=BUDGET, growth_reserve=0.0)
        cache = KVCache(num_pages, PAGE, prefix_caching=True, windows=windows, max_chunk=BUDGET)
        swap = SwapSpace(swap_slots, 0.0)
        scheduler = Scheduler(
            config,
            cache,
            MAX_LEN,
            self.executor.clock,
            swap=swap if swap_slots else None,
            speculation=DeviceGuesses(guesses, max_rows=ROWS, max_tokens=BUDGET) if guesses else None,
        )
        self.core = EngineCore(scheduler, self.executor, overlap=overlap, dumper=self.dumper)

    def recording(self) -> Recording:
        return self.ring.recording(header(self.executor.capabilities()), "", 0.0)


def replayed(recording: Recording, executor: Executor, *, compare: bool = True) -> list[ReplayedStep]:
    return list(replay(recording, executor, VirtualClock(), compare=compare))


def fresh(recording: Recording, **more: Any) -> StatefulExecutor:
    """An executor that saw nothing, of the recorded one's size and with the pages to rebuild what windows passed."""
    limits = recording.header.capabilities
    num_pages = limits.num_pages + sum(spare_spans(limits, BUDGET))
    sizes = (num_pages, limits.page_size, limits.max_num_seqs, limits.max_model_len)
    return StatefulExecutor(*sizes, swap_slots=limits.swap_slots, windows=limits.windows, **more)


def same(left: Any, right: Any) -> bool:
    """Equality that looks into arrays: dtype, shape and bits."""
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and (left.dtype, left.shape, left.tobytes()) == (
            right.dtype,
            right.shape,
            right.tobytes(),
        )
    if type(left) is not type(right):
        return False
    if is_dataclass(left):
        return all(same(getattr(left, item.name), getattr(right, item.name)) for item in fields(left))
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)
