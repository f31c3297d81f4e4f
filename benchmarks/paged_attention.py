"""The native attention for CPUs beside XLA's, side by side, over a cache of pages that no processor cache holds.

    python -m benchmarks.paged_attention [--rows 1 16] [--contexts 512] [--prompts 512] [--rounds 15] [--output FILE]

Writes benchmarks/results/paged_attention.json unless told otherwise. Decodes are rows of one query, a prompt is one row whose
keys are all its own. A program is twelve layers, each fed by the one before, of the benchmarks' model. Ratios are of the medians
of interleaved calls, and hold on a busy machine; milliseconds and rates do not.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import machine
from benchmarks.matmul import milliseconds
from jaxserve.commands import write_json
from pallas_kernels import native
from pallas_kernels.ragged_paged_attention import AttentionOptions, ragged_paged_attention

LAYERS, KV_HEADS, SIZE, DIM, HEADS = 12, 4, 16, 64, 16
ROWS, CONTEXTS, PROMPTS = (1, 8, 16, 32), (128, 512, 2048), (128, 512, 2048)
OPTIONS = AttentionOptions(DIM**-0.5)
RESULTS = Path(__file__).parent / "results" / "paged_attention.json"


def program(
    q: jax.Array, kv_pages: jax.Array, table: jax.Array, start: jax.Array, length: jax.Array, *, implementation: str
) -> jax.Array:
    """All layers."""
    for layer in range(LAYERS):
        q = ragged_paged_attention(q, kv_pages, table, start, length, layer=layer, options=OPTIONS, implementation=implementation)
    return q


def measure(kv_pages: jax.Array, rows: int, queries: int, context: int, rounds: int) -> dict[str, Any]:
    """A case: `rows` rows of `queries` queries on `context` keys, in pages dealt at random."""
    rng = np.random.default_rng(0)
    used = -(-context // SIZE)
    table = (rng.permutation(kv_pages.shape[1] - 1) + 1)[: rows * used].reshape(rows, used).astype(np.int32)
    arguments = (
        jnp.asarray(rng.standard_normal((rows * queries, HEADS, DIM)), kv_pages.dtype),
        kv_pages,
        jnp.asarray(table),
        jnp.arange(rows + 1, dtype=jnp.int32) * queries,
        jnp.full(rows, context, jnp.int32),
    )
    programs = {
        name: jax.jit(partial(program, implementation=name)).lower(*arguments).compile() for name in ("cpu_native", "xla")
    }
    taken = milliseconds({name: partial(call, *arguments) for name, call in programs.items()}, rounds)
    size = rows * context * 2 * KV_HEADS * DIM * kv_pages.dtype.itemsize * LAYERS
    case: dict[str, Any] = {
        "dtype": kv_pages.dtype.name,
        "rows": rows,
        "queries": queries,
        "context": context,
        "native_ms_per_layer": round(taken["cpu_native"] / LAYERS, 4),
        "xla_ms_per_layer": round(taken["xla"] / LAYERS, 4),
        "xla_over_native": round(taken["xla"] / taken["cpu_native"], 2),
    }
    if queries == 1:  # prompts are bound by arithmetic
        case["native_gb_per_s"] = round(size / taken["cpu_native"] / 1e6, 1)
    return case


def main() -> None:
    """Measure, print a line a case, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--contexts", type=int, nargs="+", default=list(CONTEXTS))
    parser.add_argument("--prompts", type=int, nargs="+", default=list(PROMPTS))
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if (reason := native.missing()) is not None:
        raise SystemExit(reason)
    facts, bandwidth = machine.describe(), round(machine.read_bandwidth() / 1e9, 1)
    sizes = [(rows, 1, context) for context in asked.contexts for rows in asked.rows]
    sizes += [(1, prompt, prompt) for prompt in asked.prompts]
    pages = 1 + max(rows * -(-context // SIZE) for rows, _, context in sizes)
    cases = []
    for dtype in asked.dtypes:
        page = np.random.default_rng(0).standard_normal((1, 1, 2, KV_HEADS, SIZE, DIM), np.float32)
        kv_pages = jnp.tile(jnp.asarray(page, dtype), (LAYERS, pages, 1, 1, 1, 1))
        for rows, queries, context in sizes:
            cases.append(measure(kv_pages, rows, queries, context, asked.rounds))
            print(cases[-1], flush=True)
    command = " ".join(["python -m benchmarks.paged_attention", *sys.argv[1:]])
    shape = {"layers": LAYERS, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "page_size": SIZE}
    write_json(asked.output, {**facts, "command": command, "read_bandwidth_gb_per_s": bandwidth, "shape": shape, "cases": cases})


if __name__ == "__main__":
    main()
