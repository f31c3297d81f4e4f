"""Compiles everything that a run times, for a GPU that is not here: nothing fails there that can fail here.

cuDNN's attention is left out: without a GPU jax does not lower it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from benchmarks import machine
from benchmarks.gpu import all_reduce, decode, engine, prefill, rounded, shapes, tiles
from benchmarks.gpu.cases import decode_cases, writes
from benchmarks.gpu.child import describe_error
from benchmarks.gpu.pages import pool_pages
from benchmarks.gpu.programs import finish
from benchmarks.gpu.sizes import FULL, Sizes
from benchmarks.gpu.tasks import Figure
from jaxserve.aot.target import Target
from jaxserve.executor.compile_cache import nothing_kept
from jaxserve.executor.platform import choose_platform
from pallas_kernels.registry import Target as KernelTarget

Compile = Callable[[], Any]
"""Compiles something; its result has a memory analysis."""


MORE = replace(FULL, decodes=FULL.more_decodes, shapes=FULL.more_shapes, prefills=FULL.more_prefills, engine=FULL.more_engine)


@nothing_kept()
def check(target: str, sections: Sequence[str]) -> int:
    """Compile for a target such as "h100" what the sections time, a line each. Returns the exit code: 1 if something failed."""
    choose_platform()
    parsed = Target.parse(target)
    failed = 0
    for name in sections:
        maker = MAKERS.get(name.removeprefix("more_"))
        if maker is None:
            continue
        for labels, compile_it in maker(MORE if name.startswith("more_") else FULL, parsed):
            start = time.perf_counter()
            try:
                temporary = compile_it().memory_analysis().temp_size_in_bytes
                outcome = f"{temporary / 1e6:.1f} MB of workspace"
            except Exception as error:
                failed += 1
                outcome = f"FAILED: {describe_error(error)}"
            print(f"{name} {labels}: {time.perf_counter() - start:.1f} s, {outcome}", flush=True)
    print(f"{failed} failed")
    return 1 if failed else 0


def _decode(sizes: Sizes, target: Target) -> Iterator[tuple[Figure, Compile]]:
    device = target.devices()[0]
    pages = pool_pages(decode_cases(sizes, sizes.decodes), sizes.heads, int(decode.CACHE_SHARE * _memory(target)))
    for _, program in decode.programs(sizes, pages, KernelTarget.of(device)):
        yield program.labels | {"pages": pages}, partial(program.compile, device)


def _shapes(sizes: Sizes, target: Target) -> Iterator[tuple[Figure, Compile]]:
    device = target.devices()[0]
    for shape in sizes.shapes:
        for kernel in sizes.kernels:
            program = shapes.program(shape, kernel, sizes, KernelTarget.of(device))
            yield program.labels, partial(program.compile, device)


def _prefill(sizes: Sizes, target: Target) -> Iterator[tuple[Figure, Compile]]:
    device = target.devices()[0]
    for _, program in prefill.programs(sizes, KernelTarget.of(device)):
        yield program.labels, partial(program.compile, device)


def _writes(sizes: Sizes, target: Target) -> Iterator[tuple[Figure, Compile]]:
    device = target.devices()[0]
    for program in writes(sizes, KernelTarget.of(device)):
        yield program.labels, partial(program.compile, device)


def _tiles(sizes: Sizes, target: Target) -> Iterator[tuple[Figure, Compile]]:
    device = target.devices()[0]
    for variant in tiles.variants(sizes):
        yield {"variant": variant}, partial(_compile_tiles, variant, sizes, device)


def _compile_tiles(variant: tiles.Variant, sizes: Sizes, device: jax.Device) -> jax.stages.Compiled:
    return finish(tiles.lower(variant, sizes, tiles.pages_of(sizes), device), device)


def _rounded(sizes: Sizes, target: Target) -> Iterator[tuple[Figure, Compile]]:
    device = target.devices()[0]
    for rows, scheme, kernel in rounded.cases(sizes):
        yield {"rows": rows, "scheme": scheme}, partial(_compile_rounded, sizes, rows, scheme, kernel, device)


def _compile_rounded(sizes: Sizes, rows: int, scheme: str, kernel: str, device: jax.Device) -> jax.stages.Compiled:
    return finish(rounded.lower(sizes, rows, scheme, kernel, device), device)


def _engine(sizes: Sizes, target: Target) -> Iterator[tuple[Figure, Compile]]:
    recipe = engine.lowering(sizes.engine, sizes.engine.decoder(), list(target.devices()))
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((recipe.params, recipe.state)))
    print(f"engine: weights, cache and state {state / 1e9:.1f} GB, of {_memory(target) / 1e9:.1f} GB", flush=True)
    for each in recipe.programs():
        yield {"program": each.name}, each.compile


def _all_reduce(sizes: Sizes, target: Target) -> Iterator[tuple[Figure, Compile]]:
    for message in all_reduce.messages(sizes, tuple(target.devices())) if target.count > 1 else ():
        yield {"bytes": message.size, "way": message.way}, message.compile


def _memory(target: Target) -> int:
    """Bytes of one device."""
    return machine.memory_bytes() if target.gpu is None else target.gpu.memory_bytes


MAKERS = {
    "decode": _decode,
    "engine": _engine,
    "shapes": _shapes,
    "prefill": _prefill,
    "tiles": _tiles,
    "kv_write": _writes,
    "rounded": _rounded,
    "all_reduce": _all_reduce,
}
