"""The Mosaic GPU kernels with other tile sizes than `mosaic_gpu_tiles` has, one field at a time, to find the best."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from unittest.mock import patch

import jax

from benchmarks.gpu.attention import Bench
from benchmarks.gpu.cases import Attention, decode_cases, paged, prefill_cases
from benchmarks.gpu.pages import NULL_PAGES
from benchmarks.gpu.programs import MOST_THREADS, finish
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.tasks import Figure, Task
from pallas_kernels.ragged_paged_attention import mosaic_gpu
from pallas_kernels.ragged_paged_attention.mosaic_gpu_tiles import HOPPER
from pallas_kernels.registry import Target

DECODE_FIELDS = ("decode_bytes", "decode_workers", "least_blocks")


@dataclass(frozen=True, slots=True)
class Variant:
    """A case with one field of the tile sizes changed; {} for none."""

    case: Attention
    change: Figure


def variants(sizes: Sizes) -> Iterator[Variant]:
    """Each case as it is, and with each other value of the fields that bear on it."""
    decodes, prefills = decode_cases(sizes, sizes.tile_decodes), prefill_cases(sizes, sizes.tile_prefills)
    for case in decodes + prefills:
        yield Variant(case, {})
        for name, values in sizes.tiles.items():
            if (name in DECODE_FIELDS) == (case in decodes):
                yield from (Variant(case, {name: value}) for value in values)


def lower(variant: Variant, sizes: Sizes, pages: int, device: jax.Device) -> jax.stages.Lowered:
    """Lower with the variant's tile sizes."""
    kernel = next(kernel for kernel in sizes.kernels if _has_tiles(kernel))
    jax.clear_caches()  # tile sizes are no argument that traces are kept by
    with patch.object(mosaic_gpu, "HOPPER", replace(HOPPER, **variant.change)):
        return paged(variant.case, kernel, sizes, pages, Target.of(device)).lower(device)


def _has_tiles(kernel: str) -> bool:
    return kernel.startswith("mosaic_gpu")


def pages_of(sizes: Sizes) -> int:
    """Of a cache that holds every case twice over."""
    return 2 * max(variant.case.pages for variant in variants(sizes)) + NULL_PAGES


def tasks(sizes: Sizes) -> Iterator[Task]:
    """Lower one after another, compile beside it, then time."""
    if not any(_has_tiles(kernel) for kernel in sizes.kernels):
        yield Task({}, lambda: {"skipped": "its kernels are not run"})
        return
    device, pages, chosen = jax.devices()[0], pages_of(sizes), list(variants(sizes))
    with ThreadPoolExecutor(MOST_THREADS) as pool:
        compiled = [_begin(pool, partial(lower, variant, sizes, pages, device), device) for variant in chosen]
    bench = Bench(sizes, pages)
    for variant, future in zip(chosen, compiled, strict=True):
        case = variant.case
        labels = {"rows": case.rows, "queries": case.queries, "context": case.context, "change": variant.change}
        yield Task(labels | {"tiles": asdict(replace(HOPPER, **variant.change))}, _timed(bench, case, future))


def _begin(pool: ThreadPoolExecutor, lower: Callable[[], jax.stages.Lowered], device: jax.Device) -> Future[jax.stages.Compiled]:
    """Lower here, compile in the pool."""
    try:
        return pool.submit(finish, lower(), device)
    except Exception as error:
        failed: Future[jax.stages.Compiled] = Future()
        failed.set_exception(error)
        return failed


def _timed(bench: Bench, case: Attention, future: Future[jax.stages.Compiled]) -> Callable[[], Figure]:
    return lambda: bench.time(case, future.result())
