"""Llama-3-8B with random weights through the engine's own loop: scheduler, executor, compiled steps; no HTTP, no tokenizer.

The device's time of a decode step is taken from steps that are submitted one after another without looking at their tokens. The
step's time is that of the engine's loop, one turn after another with overlap, as it serves. What the loop takes beyond the device
is the host gap. Of the engine's programs only those that these loads need are compiled.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import jax
import numpy as np

from benchmarks.gpu.sizes import DTYPE, GREEDY, ITEM_BYTES, PAGE_SIZE, EngineSizes
from benchmarks.gpu.tasks import Figure, Task
from benchmarks.gpu.timing import summary
from benchmarks.plans import make_plan
from jaxserve.cache.kv_cache import KVCache
from jaxserve.clock import RealClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.kernels import Kernels, parse_kernels
from jaxserve.engine.core import EngineCore
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.programs import ProgramStore, make_programs, silent
from jaxserve.models.config import DecoderConfig
from jaxserve.sampling.options import NUM_LOGPROBS, TEMPERATURE, TOP_P, RowOption
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.step.buckets import BucketGrid
from jaxserve.step.plan import Plan
from jaxserve.weights.dummy import dummy_params
from jaxserve.weights.packed import Packer
from sharding import make_mesh

BURSTS = 5
WARM_STEPS = 4  # turns that are not timed: the last prompts still run beside them
ROOT = b"benchmark"

CHOICES: Mapping[str, tuple[SamplingParams, Mapping[RowOption, float]]] = MappingProxyType(
    {
        GREEDY: (SamplingParams(temperature=0.0, ignore_eos=True), {}),
        "top-p": (SamplingParams(temperature=1.0, top_p=0.9, ignore_eos=True), {TEMPERATURE: 1.0, TOP_P: 0.9}),
        "log-probabilities": (SamplingParams(temperature=0.0, logprobs=5, ignore_eos=True), {NUM_LOGPROBS: 5}),
    }
)
"""How tokens are chosen: what requests say, and what rows hold."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What is measured."""

    sizes: EngineSizes
    decoder: DecoderConfig
    recipe: Lowering
    executor: LocalExecutor
    core: EngineCore


def token_bytes(decoder: DecoderConfig) -> int:
    """Of a token's keys and values in all layers."""
    return decoder.num_layers * 2 * decoder.num_kv_heads * decoder.head_dim * ITEM_BYTES


def read_weights(decoder: DecoderConfig) -> int:
    """Parameters that a decode step reads: all but an embedding table of its own, of which it reads a line a row."""
    return decoder.num_parameters - (0 if decoder.tie_embeddings else decoder.vocab_size * decoder.hidden_size)


def output_tokens(sizes: EngineSizes, rows: int) -> int:
    """Of each sequence: rows whose prompts come first decode until the last prompt is computed, and then all are timed."""
    return -(-rows * sizes.context // sizes.step_tokens) + sizes.steps + 2 * WARM_STEPS


def executor_options(sizes: EngineSizes, decoder: DecoderConfig) -> ExecutorOptions:
    """Shapes that hold every load."""
    longest = max(sizes.long_prompt, sizes.context + output_tokens(sizes, max(sizes.rows))) + PAGE_SIZE
    room = (sizes.context + output_tokens(sizes, rows) + PAGE_SIZE for rows in sizes.rows)
    tokens = max(rows * each for rows, each in zip(sizes.rows, room, strict=True)) + longest
    return ExecutorOptions(
        max_num_seqs=max(sizes.rows),
        max_num_batched_tokens=sizes.step_tokens,
        max_model_len=min(longest, decoder.max_position_embeddings),
        num_pages=-(-tokens // PAGE_SIZE) + 1,
        page_size=PAGE_SIZE,
        dtype=DTYPE,
        kv_dtype=DTYPE,
        kernels=Kernels(attention=parse_kernels(sizes.kernel, "attention_kernel")),
        strict=True,
    )


def lowering(sizes: EngineSizes, decoder: DecoderConfig, devices: list[jax.Device]) -> Lowering:
    """The engine's programs, with no steps but those that are needed: the rows that decode, and the largest with prompts."""
    found = Lowering(decoder, make_mesh(len(devices), devices), executor_options(sizes, decoder))
    full = found.grid
    chosen = {full.choose(rows, rows) for rows in sizes.rows}
    chosen |= {bucket for bucket in full.buckets if bucket.tokens == full.max_tokens}
    found.grid = BucketGrid(tuple(sorted(chosen)))
    return found


def build(sizes: EngineSizes, devices: list[jax.Device], store: ProgramStore | None = None) -> tuple[Engine, Figure]:
    """Make weights, have programs from the store or compile, and put the engine together. Returns it with how long that took."""
    decoder = sizes.decoder()
    recipe = lowering(sizes, decoder, devices)
    start = time.perf_counter()
    packer = Packer(decoder, recipe.mesh)
    params = jax.block_until_ready(dummy_params(decoder, recipe.mesh, DTYPE, packer=packer))
    loaded = time.perf_counter()
    programs = make_programs(recipe, silent, store)
    compiled = time.perf_counter()
    executor = LocalExecutor(recipe, programs, params)
    options = recipe.options
    config = SchedulerConfig(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        low_watermark=0.0,
        high_watermark=0.0,
        growth_reserve=0.0,  # there are pages for everything
        itl_target_ms=0.0,  # prompts are not held back
    )
    cache = KVCache(options.num_pages, PAGE_SIZE, prefix_caching=False)
    scheduler = Scheduler(config, cache, options.max_model_len, RealClock())
    engine = Engine(sizes, decoder, recipe, executor, EngineCore(scheduler, executor, overlap=True))
    return engine, {
        "weights_seconds": loaded - start,
        "compile_seconds": compiled - loaded,
        "steps": [f"{bucket.tokens}x{bucket.rows}" for bucket in recipe.grid.buckets],
        "temporary_bytes": executor.temporary_bytes,
        "cache_bytes": options.num_pages * PAGE_SIZE * token_bytes(engine.decoder),
        "parameters": decoder.num_parameters,
    }


def on_devices(sizes: EngineSizes, devices: list[jax.Device]) -> Iterator[Task]:
    """Start, then each load and the time to first token."""
    engine, labels, start = started(sizes, devices)
    yield start
    yield from loads(engine, labels)


def started(sizes: EngineSizes, devices: list[jax.Device], store: ProgramStore | None = None) -> tuple[Engine, Figure, Task]:
    """Build an engine. Returns it, the labels of its figures, and what tells how long that took."""
    start = time.perf_counter()
    engine, figure = build(sizes, devices, store)
    figure["start_seconds"] = time.perf_counter() - start
    labels = {"model": sizes.model, "kernel": sizes.kernel, "devices": len(devices)}
    return engine, labels, Task(labels | {"what": "start"}, lambda: figure)


def loads(engine: Engine, labels: Figure) -> Iterator[Task]:
    """A task for each load, and the time to first token."""
    for rows, choice in engine.sizes.loads:
        case = {"what": "decode", "rows": rows, "context": engine.sizes.context, "choice": choice}
        yield Task(labels | case, partial(decode, engine, rows, choice))
    yield Task(labels | {"what": "first token", "context": engine.sizes.long_prompt}, partial(first_token, engine))


def decode(engine: Engine, rows: int, choice: str = GREEDY) -> Figure:
    """Compute the prompts of `rows` sequences, then time their decode steps in the loop, and the device alone."""
    sizes, core = engine.sizes, engine.core
    produced, prompts = begin(engine, choice, rows, choice)
    turns, reads = [], []
    for _ in range(sizes.steps):
        reads.append(rows * sizes.context + sum(produced.values()))
        start = time.perf_counter()
        turn(core, produced)
        turns.append(time.perf_counter() - start)
    mean = int(statistics.mean(reads))
    end(core, list(produced))
    lengths = tuple(mean // rows for _ in range(rows))
    return {
        **summary(turns),
        "tokens_per_second": rows / statistics.median(turns),
        "device": device_step(engine, lengths, CHOICES[choice][1]),
        "prompt_seconds": prompts,
        "prompt_tokens_per_second": rows * sizes.context / prompts,
        "kv_tokens": mean,
        "kv_bytes": mean * token_bytes(engine.decoder),
        "weight_bytes": read_weights(engine.decoder) * ITEM_BYTES,
        "flops": 2 * read_weights(engine.decoder) * rows,
        "bucket_misses": engine.executor.bucket_misses,
    }


def begin(engine: Engine, name: str, rows: int, choice: str) -> tuple[dict[str, int], float]:
    """Compute the prompts of `rows` sequences and a few steps more. Returns how many tokens each has, and the prompts' time."""
    sizes, core = engine.sizes, engine.core
    rng = np.random.default_rng(rows)
    start = time.perf_counter()
    for row in range(rows):
        core.add([request(engine, f"{name} {rows} {row}", rng, sizes.context, output_tokens(sizes, rows), choice)])
    produced: dict[str, int] = {}
    while len(produced) < rows:
        turn(core, produced)
    prompts = time.perf_counter() - start
    turn(core, produced)
    engine.executor.wait_compiled()  # the program for what these rows need was asked for by their first step
    for _ in range(WARM_STEPS - 1):
        turn(core, produced)
    return produced, prompts


def device_step(engine: Engine, lengths: tuple[int, ...], values: Mapping[RowOption, float]) -> Figure:
    """Seconds a decode step of rows of these lengths takes the device."""
    plan = make_plan(((1,) * len(lengths), lengths), PAGE_SIZE, engine.decoder.vocab_size, values)
    return device_rounds(engine.executor, [plan], engine.sizes.burst)


def device_rounds(executor: LocalExecutor, plans: Sequence[Plan], count: int) -> Figure:
    """Seconds that the steps of `plans` take the device: `count` rounds of them follow each other, and nobody reads their tokens.

    `host_seconds` is what submitting a round takes; if it is not well below `seconds`, that is not the device's time.
    """
    for plan in plans:
        executor.submit(plan).result()
    seconds, host = [], []
    for _ in range(BURSTS):
        start = time.perf_counter()
        handles = [executor.submit(plan) for _ in range(count) for plan in plans]
        host.append((time.perf_counter() - start) / count)
        handles[-1].result()
        seconds.append((time.perf_counter() - start) / count)
    return summary(seconds) | {"host_seconds": statistics.median(host)}


def first_token(engine: Engine) -> Figure:
    """Seconds from handing a long prompt to an idle engine to its first token."""
    sizes, core = engine.sizes, engine.core
    rng = np.random.default_rng(0)
    seconds = []
    for number in range(sizes.prompts):
        produced: dict[str, int] = {}
        start = time.perf_counter()
        core.add([request(engine, f"first {number}", rng, sizes.long_prompt, 2)])
        while not produced:
            turn(core, produced)
        seconds.append(time.perf_counter() - start)
        end(core, [])
    figure = summary(seconds[1:])
    return figure | {"tokens_per_second": sizes.long_prompt / figure["seconds"]}


def request(engine: Engine, name: str, rng: np.random.Generator, prompt: int, output: int, choice: str = GREEDY) -> EngineRequest:
    """With a random prompt of so many tokens."""
    params = CHOICES[choice][0]
    tokens = tuple(rng.integers(3, engine.decoder.vocab_size, prompt).tolist())
    return EngineRequest(name, tokens, params, output, 0, frozenset(), ROOT, engine.core.scheduler.clock.now())


def turn(core: EngineCore, produced: dict[str, int]) -> None:
    """One turn of the loop; counts the tokens of each sequence. Raises RuntimeError if one ended or failed."""
    for update in core.step():
        if update.error is not None:
            raise RuntimeError(f"{update.id} failed: {update.error}")
        if update.token is not None:
            produced[update.id] = produced.get(update.id, 0) + 1


def end(core: EngineCore, ids: list[str]) -> None:
    """Abort, and let what is in flight end."""
    core.abort(ids)
    while core.has_work:
        core.step()
