"""python -m benchmarks.compile_kernels [out.json]: every attention kernel compiled for an H100, on a machine without one.

Every dtype, head dim and page size, in a step with prompts, which takes the decode kernel and the prefill kernel. Registers and
spills are ptxas's. Takes minutes; needs jax-cuda13-plugin. Fails if one does not compile.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["MOSAIC_GPU_DUMP_PTXAS"] = "1"  # what ptxas says is printed
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # what is cached does not reach ptxas

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from jaxserve.aot.target import Target as CompileTarget
from jaxserve.commands import write_json
from pallas_kernels.ragged_paged_attention import AttentionOptions, ragged_paged_attention
from pallas_kernels.registry import Target

DTYPES = {
    "bf16": ("bfloat16", "bfloat16"),
    "f16": ("float16", "float16"),
    "f8 cache": ("bfloat16", "float8_e4m3fn"),
    "int8 cache": ("bfloat16", "int8"),
}
DIMS = (64, 80, 96, 128, 256)
PAGE_SIZES = (16, 32, 64)
TOKENS, ROWS = 256, 8
HEADS, KV_HEADS, PAGES, PAGES_PER_ROW = 32, 8, 512, 256
_PTXAS = re.compile(
    r"Function properties for (?P<kernel>\w+)_mosaic_gpu_kernel.*?(?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


def lower(device: jax.Device, dtype: str, dim: int, page_size: int) -> Any:
    """Lower the attention of one layer, on Mosaic GPU."""
    q_dtype, kv_dtype = DTYPES[dtype]
    placed = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
    pages = (1, PAGES, 2, KV_HEADS, page_size, dim)
    options = AttentionOptions(0.1)
    call = partial(ragged_paged_attention, layer=0, options=options, implementation="mosaic_gpu", target=Target.of(device))
    return jax.jit(call).lower(
        placed((TOKENS, HEADS, dim), jnp.dtype(q_dtype)),
        placed(pages, jnp.dtype(kv_dtype)),
        placed((ROWS, PAGES_PER_ROW), jnp.int32),
        placed((ROWS + 1,), jnp.int32),
        placed((ROWS,), jnp.int32),
        kv_scales=placed(pages[:5], jnp.float32) if q_dtype != kv_dtype else None,
    )


@contextmanager
def printed() -> Iterator[Path]:
    """The file that the standard output and error of native code go to meanwhile."""
    sys.stdout.flush()
    with tempfile.NamedTemporaryFile() as file:
        kept = [(stream, os.dup(stream)) for stream in (1, 2)]
        try:
            for stream, _ in kept:
                os.dup2(file.fileno(), stream)
            yield Path(file.name)
        finally:
            for stream, copy in kept:
                os.dup2(copy, stream)
                os.close(copy)


def kernels(text: str) -> dict[str, dict[str, int]]:
    """Registers and bytes spilled, of a thread of each kernel that ptxas told of."""
    return {
        match["kernel"]: {name: int(match[name]) for name in ("registers", "stores", "loads")} for match in _PTXAS.finditer(text)
    }


def compile_one(device: jax.Device, dtype: str, dim: int, page_size: int) -> dict[str, Any]:
    """Compile one combination. Returns what it is, its seconds and kernels, or the error."""
    what: dict[str, Any] = {"dtype": dtype, "head_dim": dim, "page_size": page_size}
    start = time.perf_counter()
    with printed() as path:
        try:
            lower(device, dtype, dim, page_size).compile()
        except Exception as error:  # one that fails must not hide the others
            return {**what, "error": f"{type(error).__name__}: {error}"}
        found = kernels(path.read_text())
    return {**what, "seconds": round(time.perf_counter() - start, 1), "kernels": found}


def main() -> int:
    """Compile all, print a line each, write a file if asked. Returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, help="JSON file to write")
    out = parser.parse_args().out
    device = CompileTarget.parse("h100").devices()[0]
    results = []
    for size, dtype, dim in itertools.product(PAGE_SIZES, DTYPES, DIMS):
        results.append(compile_one(device, dtype, dim, size))
        print(results[-1], flush=True)
    if out is not None:
        write_json(out, {"jax": jax.__version__, "target": "h100", "results": results})
    return 1 if any("error" in result for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
