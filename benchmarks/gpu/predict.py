"""What a GPU is expected to show, before it does: from bytes, operations and launches alone. A run is held against it.

Everything is worked out here from the data sheet's figures (`jaxserve/aot/targets.toml`), from what compiling says (kernels a
step) and from the shares below, which are judged: no part of this has been measured. `python -m benchmarks.gpu --predict h200`
writes benchmarks/results/gpu_predictions.json and prints the table of docs/gpu_predictions.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import all_reduce, derive, rounded
from benchmarks.gpu.alternating import prompt_tokens
from benchmarks.gpu.cases import decode_cases, prefill_cases
from benchmarks.gpu.engine import output_tokens, read_weights, token_bytes
from benchmarks.gpu.shapes import kv_bytes
from benchmarks.gpu.sizes import FULL, GREEDY, ITEM_BYTES, EngineSizes, Sizes
from benchmarks.gpu.tasks import Figure
from jaxserve.aot.target import Gpu, Target
from jaxserve.models.config import DecoderConfig
from jaxserve.planner import roofline

KERNEL = "mosaic_gpu"

COPY_SHARE = 0.90  # of the data sheet's bandwidth, that a copy reaches
READ_SHARE = 0.92  # of a copy's, that reads of pages by TMA and of weights by cuBLASLt reach
WIDENED_SHARE = 0.80  # of a copy's, that reads of rounded matrices reach which are widened on their way
MATMUL_SHARE = 0.65  # of the data sheet's rate, that a large product reaches
DENSE_SHARE = 0.55  # of the data sheet's rate, that cuDNN's attention reaches
PREFILL_SHARE = 0.65  # of cuDNN's rate, that prefill attention here reaches
LAUNCH_SECONDS = 1.5e-6  # from a kernel to the next one in a command buffer, with its ramp up and down
ATTENTION_SECONDS = 12e-6  # of a call besides its reads: the first pages of every block, the last ones, the merge, two launches
LINK_BANDWIDTH = 25e9  # of one NVLink of Hopper in one direction, by the data sheet
GPUS = 8  # that all-reduces are predicted for
STEP_KERNELS = 22  # of a step beside its layers: embedding, work list, head, choice of tokens
LAYER_KERNELS = 9  # of a layer of Llama-3-8B on one GPU (tests/integration/aot/test_kernels.py)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One figure.

    Attributes:
        section: of a run.
        case: labels of the figure.
        seconds: expected.
        reach: what would be good, where it is another number than is expected.
        derived: how it comes about.
    """

    section: str
    case: Mapping[str, Any]
    seconds: float
    reach: float
    derived: str


def predictions(gpu: Gpu, sizes: Sizes = FULL) -> Iterator[Prediction]:
    """All figures that a run on this GPU is held against."""
    yield from _attention(gpu, sizes)
    yield from _engine(gpu, sizes)
    yield from _device_steps(gpu, sizes)
    yield from _all_reduces(gpu, sizes)
    yield from _rounded(gpu, sizes)


def _rounded(gpu: Gpu, sizes: Sizes) -> Iterator[Prediction]:
    """Two products of an MLP, each with a kernel behind it that scales, and adds the parts of the sums if there are some."""
    for rows, scheme, kernel in rounded.cases(sizes):
        size, plain = rounded.read_bytes(sizes, scheme), scheme == "none"
        read = gpu.bandwidth * COPY_SHARE * (READ_SHARE if plain else WIDENED_SHARE)
        kernels = 2 * rounded.PRODUCTS
        derived = f"{size / 1e6:,.0f} MB at {read / 1e9:,.0f} GB/s, and {kernels} kernels"
        reach = size / (derive.DECODE_SHARE * COPY_SHARE * gpu.bandwidth) + kernels * LAUNCH_SECONDS
        case = {"what": "MLP", "rows": rows, "scheme": scheme, "implementation": kernel}
        yield Prediction("rounded", case, size / read + kernels * LAUNCH_SECONDS, reach, derived)


def _attention(gpu: Gpu, sizes: Sizes) -> Iterator[Prediction]:
    read = gpu.bandwidth * COPY_SHARE * READ_SHARE

    def reading(section: str, labels: Mapping[str, Any], size: int) -> Prediction:
        reach = size / (derive.DECODE_SHARE * COPY_SHARE * gpu.bandwidth)
        derived = f"{size / 1e6:,.0f} MB at {read / 1e9:,.0f} GB/s, and {ATTENTION_SECONDS * 1e6:.0f} us"
        return Prediction(section, labels, size / read + ATTENTION_SECONDS, max(reach, ATTENTION_SECONDS), derived)

    for case in decode_cases(sizes, sizes.decodes + sizes.more_decodes):
        labels = {"rows": case.rows, "queries": 1, "context": case.context, "implementation": KERNEL}
        yield reading("decode", labels, case.kv_bytes(sizes.heads))
    for shape in sizes.shapes + sizes.more_shapes:
        yield reading("shapes", {"shape": shape.name, "implementation": KERNEL}, kv_bytes(shape))
    for case in prefill_cases(sizes, sizes.prefills + sizes.more_prefills):
        labels = {"rows": 1, "queries": case.queries, "context": case.context, "implementation": KERNEL}
        rate = peak(gpu) * DENSE_SHARE
        flops = case.flops(sizes.heads)
        derived = f"{flops / 1e9:,.0f} GFLOP at {rate * PREFILL_SHARE / 1e12:,.0f} TFLOP/s"
        reach = flops / (rate * derive.PREFILL_SHARE)
        seconds = flops / (rate * PREFILL_SHARE) + ATTENTION_SECONDS
        yield Prediction("prefill", labels, seconds, reach + ATTENTION_SECONDS, derived)


def _engine(gpu: Gpu, sizes: Sizes) -> Iterator[Prediction]:
    engine = sizes.engine
    for each in (sizes.engine, sizes.more_engine):
        for rows in each.rows:
            yield _step(gpu, each, rows)
    seconds, derived = _products(gpu, engine.decoder(), engine.long_prompt)
    extra = 2 * _launches(engine.decoder())
    case: Mapping[str, Any] = {"what": "first token", "context": engine.long_prompt}
    yield Prediction("engine", case, seconds + extra, 1.25 * (seconds + extra), f"{derived}, and a step's kernels twice")
    rows = max(engine.rows) - 1
    step = _step(gpu, engine, rows)
    seconds, derived = _products(gpu, engine.decoder(), engine.step_tokens)
    seconds += step.seconds + _launches(engine.decoder())
    case = {"what": "alternating", "rows": rows, "prompt": prompt_tokens(rows, engine.step_tokens)}
    yield Prediction("engine", case, seconds, 1.25 * seconds, f"{derived}, a step's kernels, and a decode step")


def _all_reduces(gpu: Gpu, sizes: Sizes) -> Iterator[Prediction]:
    """On eight GPUs: NCCL passes messages around; with symmetric memory it may read from all at once, if that is better."""
    link = gpu.nvlinks * LINK_BANDWIDTH
    for way in all_reduce.WAYS:
        for size in sizes.messages:
            best = roofline.all_reduce_s(size, GPUS, link)
            ring = roofline.ring_transfer_s(size, GPUS, link) + 2 * (GPUS - 1) * roofline.HOP_S
            derived = f"{size / 1e6:.2f} MB at {link / 1e9:.0f} GB/s, and hops of {roofline.HOP_S * 1e6:.0f} us"
            case = {"bytes": size, "way": way, "devices": GPUS}
            yield Prediction("all_reduce", case, ring if way == "NCCL" else best, best, derived)


def _products(gpu: Gpu, decoder: DecoderConfig, tokens: int) -> tuple[float, str]:
    """Seconds of a step that is bound by its matrix products, and how they come about."""
    flops, rate = 2 * read_weights(decoder) * tokens, peak(gpu) * MATMUL_SHARE
    return flops / rate, f"{flops / 1e12:.0f} TFLOP at {rate / 1e12:.0f} TFLOP/s"


def _step(gpu: Gpu, engine: EngineSizes, rows: int) -> Prediction:
    """A greedy decode step in the loop, in the middle of its outputs."""
    kept = rows * (engine.context + output_tokens(engine, rows) // 2)
    case = {"what": "decode", "rows": rows, "context": engine.context, "choice": GREEDY}
    return Prediction("engine", case, *_decode(gpu, engine.decoder(), rows, kept))


def _device_steps(gpu: Gpu, sizes: Sizes) -> Iterator[Prediction]:
    """Steps on the device alone: of saved programs, and of models whose kernels XLA has measured."""
    engine = sizes.engine
    rows = max(engine.rows)
    whole = engine.decoder()
    case: Mapping[str, Any] = {"what": "device step", "rows": rows, "context": engine.context}
    yield Prediction("saved", case, *_decode(gpu, whole, rows, rows * engine.context))
    for decoder in (whole.first(sizes.tuned_layers), whole):
        case = {"what": "tuning", "layers": decoder.num_layers, "rows": rows, "variant": "measured"}
        yield Prediction("autotune", case, *_decode(gpu, decoder, rows, rows * engine.context))


def _decode(gpu: Gpu, decoder: DecoderConfig, rows: int, kept: int) -> tuple[float, float, str]:
    """Seconds of a decode step of rows that keep so many tokens, those that would be good, and how they come about."""
    read, launches = read_weights(decoder), _launches(decoder)
    size = read * ITEM_BYTES + kept * token_bytes(decoder)
    by_bytes = size / (gpu.bandwidth * COPY_SHARE * READ_SHARE)
    by_products = 2 * read * rows / (peak(gpu) * MATMUL_SHARE)
    bound = max(size / (gpu.bandwidth * COPY_SHARE), by_products)
    what = f"{size / 1e9:.1f} GB" if by_bytes > by_products else f"{2 * read * rows / 1e12:.1f} TFLOP"
    derived = f"{what}, and {launches / LAUNCH_SECONDS:,.0f} kernels"
    return max(by_bytes, by_products) + launches, derive.STEP_RATIO * bound, derived


def _launches(decoder: DecoderConfig) -> float:
    """Seconds between the kernels of a step."""
    return (LAYER_KERNELS * decoder.num_layers + STEP_KERNELS) * LAUNCH_SECONDS


def peak(gpu: Gpu) -> float:
    """Dense bfloat16 operations a second by the data sheet."""
    return 2e9 * gpu.tensor_fma_per_core * gpu.core_count * gpu.tensor_clock_ghz


def find(section: str, figure: Figure, expected: list[Prediction]) -> Prediction | None:
    """What was expected of a figure."""
    for one in expected:
        if one.section == section and all(figure.get(name) == value for name, value in one.case.items()):
            return one
    return None


def of_device(kind: str) -> list[Prediction]:
    """Those for a device by the name that its driver gives it; none for one that is not known."""
    for key in ("h100", "h200"):
        gpu = Target.parse(key).gpu
        if gpu is not None and kind.startswith(gpu.name):
            return list(predictions(gpu))
    return []


def write(target: str, output: Path) -> str:
    """Write the file, and return the table."""
    gpu = Target.parse(target).gpu
    if gpu is None:
        raise SystemExit("predictions are for a GPU, such as h200")
    found = list(predictions(gpu))
    shares = {
        "copy of the data sheet's bandwidth": COPY_SHARE,
        "reads of a copy's bandwidth": READ_SHARE,
        "reads of rounded matrices of a copy's bandwidth": WIDENED_SHARE,
        "products of the data sheet's rate": MATMUL_SHARE,
        "cuDNN's attention of the data sheet's rate": DENSE_SHARE,
        "prefill attention of cuDNN's rate": PREFILL_SHARE,
        "seconds a launch in a command buffer": LAUNCH_SECONDS,
        "seconds of an attention call besides its reads": ATTENTION_SECONDS,
    }
    content = {"gpu": gpu.name, "judged": shares, "predictions": [asdict(one) for one in found]}
    output.write_text(json.dumps(content, indent=1) + "\n")
    lines = ["| section | case | expected ms | reach ms | from |", "| --- | --- | ---: | ---: | --- |"]
    for one in found:
        case = ", ".join(
            str(value) if name in ("what", "choice", "shape", "way", "variant") else f"{name} {value}"
            for name, value in _shown(one)
        )
        lines.append(f"| {one.section} | {case} | {one.seconds * 1e3:.3f} | {one.reach * 1e3:.3f} | {one.derived} |")
    return "\n".join(lines)


def _shown(one: Prediction) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in one.case.items() if value != KERNEL]
