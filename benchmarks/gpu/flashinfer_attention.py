"""FlashInfer's attention on the same batches: the kernels that vLLM and SGLang serve with.

Its pages are laid out as ours are: `kv_layout="HND"` is [P, 2, K, S, D]. A batch is planned once, as a server plans it once a
step for all layers, and its calls are one CUDA graph. torch must not share the GPU with jax, which takes nearly all memory: this
section never starts jax.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.gpu.cases import decode_cases, prefill_cases
from benchmarks.gpu.sizes import DTYPE, PAGE_SIZE, Heads, Sizes
from benchmarks.gpu.tasks import Figure, Task
from benchmarks.gpu.timing import Pace, summary

NAME = "flashinfer"
WORKSPACE = 2**28  # bytes
MOST_TABLES = 8  # of a batch, so that what one call reads is not in the cache when its turn comes again
TOLERANCE = 0.05  # of outputs of random values, in bfloat16


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of `lengths` keys and as many queries each.

    Attributes:
        labels: of its figure; they are those of our figure of the same batch.
        work: what a call reads or computes, for its figure.
    """

    labels: Figure
    work: Figure
    lengths: tuple[int, ...]
    queries: int
    heads: Heads
    page_size: int

    @property
    def pages(self) -> list[int]:
        """Of each row."""
        return [-(-length // self.page_size) for length in self.lengths]


def batches(sizes: Sizes) -> Iterator[Batch]:
    """What the first command measures of our kernels."""
    heads = sizes.heads
    for case in decode_cases(sizes, sizes.decodes) + prefill_cases(sizes, sizes.prefills):
        labels = {"rows": case.rows, "queries": case.queries, "context": case.context}
        work = {"kv_bytes": case.kv_bytes(heads), "flops": case.flops(heads)}
        yield Batch(labels, work, (case.context,) * case.rows, case.queries, heads, PAGE_SIZE)
    for shape in sizes.shapes:
        size = sum(shape.lengths) * shape.heads.token_bytes
        yield Batch({"shape": shape.name}, {"kv_bytes": size}, shape.lengths, shape.queries, shape.heads, shape.page_size)


def tasks(sizes: Sizes) -> Iterator[Task]:
    """Time each batch; one line where it cannot be run."""
    missing = [name for name in ("torch", NAME) if find_spec(name) is None]
    if missing or sizes.platform != "gpu":
        reason = f"not installed: {', '.join(missing)}" if missing else "it has no kernels for CPUs"
        yield Task({}, lambda: {"skipped": reason})
        return
    for batch in batches(sizes):
        yield Task(batch.labels | {"implementation": NAME}, partial(_measure, batch, sizes))


def _measure(batch: Batch, sizes: Sizes) -> Figure:
    import torch  # noqa: PLC0415 - optional

    calls = prepare(batch, sizes.rotated_bytes, "cuda")
    return _time(torch, calls, sizes.pace) | batch.work | {"table_sets": len(calls)}


def prepare(batch: Batch, rotated_bytes: int, device: str) -> list[Callable[[], Any]]:
    """Planned calls of the batch, each with pages of its own. Raises RuntimeError if the first does not compute attention."""
    import flashinfer  # noqa: PLC0415 - optional
    import torch  # noqa: PLC0415

    count = min(max(math.ceil(rotated_bytes / batch.work["kv_bytes"]), 1), MOST_TABLES)
    used, heads = sum(batch.pages), batch.heads
    place: dict[str, Any] = {"device": device, "dtype": getattr(torch, DTYPE)}
    torch.manual_seed(0)
    cache = torch.randn(count * used, 2, heads.kv, batch.page_size, heads.dim, **place)
    q = torch.randn(len(batch.lengths) * batch.queries, heads.query, heads.dim, **place)
    order = np.random.default_rng(0).permutation(count * used).astype(np.int32)
    workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device=device)
    calls: list[Callable[[], Any]] = []
    for pages in np.split(order, count):
        indices = torch.from_numpy(pages).to(device)
        wrapper = _planned(flashinfer, torch, batch, indices, workspace)
        if not calls:
            _check(batch, wrapper.run(q, cache), q, cache, indices)
        calls.append(partial(wrapper.run, q, cache))
    return calls


def _planned(flashinfer: Any, torch: Any, batch: Batch, indices: Any, workspace: Any) -> Any:
    """A wrapper for one page table."""
    numbers = partial(torch.tensor, dtype=torch.int32, device=indices.device)
    rows, heads, dtype = len(batch.lengths), batch.heads, getattr(torch, DTYPE)
    starts = numbers([0, *np.cumsum(batch.pages).tolist()])
    last = numbers([(length - 1) % batch.page_size + 1 for length in batch.lengths])
    shape = (heads.query, heads.kv, heads.dim, batch.page_size)
    if batch.queries == 1:
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=heads.query > heads.kv)
        decode.plan(starts, indices, last, *shape, q_data_type=dtype, kv_data_type=dtype)
        return decode
    prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
    queries = numbers([row * batch.queries for row in range(rows + 1)])
    prefill.plan(queries, starts, indices, last, *shape, causal=True, q_data_type=dtype, kv_data_type=dtype)
    return prefill


def _check(batch: Batch, out: Any, q: Any, cache: Any, indices: Any) -> None:
    """Compare the last query of the first row with attention in float32."""
    length, heads = batch.lengths[0], batch.heads
    pages = cache[indices[: batch.pages[0]].long()].float()  # [M, 2, K, S, D]
    k, v = (pages[:, half].transpose(0, 1).reshape(heads.kv, -1, heads.dim)[:, :length] for half in (0, 1))
    grouped = q[batch.queries - 1].float().reshape(heads.kv, -1, heads.dim)
    want = (grouped @ k.transpose(1, 2) * heads.dim**-0.5).softmax(-1) @ v
    error = float((out[batch.queries - 1].float() - want.reshape(heads.query, heads.dim)).abs().max())
    if not error < TOLERANCE:
        raise RuntimeError(f"its output is off by {error:g}")


def _time(torch: Any, calls: list[Callable[[], Any]], pace: Pace) -> Figure:
    """Seconds of one call."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()

    def replay(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count / len(calls)

    replay(1)
    count = max(math.ceil(pace.batch_seconds / (replay(pace.probes) * len(calls))), 1)
    return summary([replay(count) for _ in range(pace.repeats)]) | {"host_bound": False}
