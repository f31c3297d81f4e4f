"""Attention over pages against dense attention over contiguous keys, side by side, and against reading the keys once.

    python -m benchmarks.attention

Writes benchmarks/results/attention.json. Ratios are of the fastest of interleaved calls: below 1 means less time than dense.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import machine
from pallas_kernels.kv_write import kv_write
from pallas_kernels.ragged_paged_attention import AttentionOptions, ragged_paged_attention

LAYERS, PAGES, KV_HEADS, SIZE, DIM, HEADS, TABLE = 4, 1500, 4, 16, 64, 16, 64
DECODES = ((1, 128), (1, 1024), (8, 512), (16, 256), (16, 1024), (32, 128), (32, 512))  # rows, context
CHUNKS = ((128, 128), (512, 512), (256, 1024))  # queries, context
OPTIONS = AttentionOptions(DIM**-0.5)
RESULTS = Path(__file__).parent / "results" / "attention.json"


def paged(q: jax.Array, kv_pages: jax.Array, table: jax.Array, start: jax.Array, length: jax.Array) -> jax.Array:
    """All layers, each fed by the one before."""
    for layer in range(LAYERS):
        q = ragged_paged_attention(q, kv_pages, table, start, length, layer=layer, options=OPTIONS)
    return q


def dense(q: jax.Array, k: jax.Array, v: jax.Array, *, rows: int) -> jax.Array:
    """The same over k, v [L, R, K, N, D], the last tokens of each row being the queries; softmax in float32."""
    queries, keys = q.shape[0] // rows, k.shape[3]
    seen = jnp.arange(keys)[None, :] <= jnp.arange(queries)[:, None] + (keys - queries)
    for layer in range(LAYERS):
        grouped = q.astype(jnp.float32).reshape(rows, queries, KV_HEADS, -1, DIM)
        scores = jnp.einsum("rqkgd,rknd->rkgqn", grouped, k[layer].astype(jnp.float32)) * DIM**-0.5
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        attended = jnp.einsum("rkgqn,rknd->rqkgd", weights, v[layer].astype(jnp.float32))
        q = attended.reshape(q.shape).astype(q.dtype)
    return q


def compare(rows: int, queries: int, context: int, kv_pages: jax.Array) -> dict[str, Any]:
    """Seconds a layer of both, and their ratios, for `rows` rows of `queries` queries on `context` keys."""
    rng, dtype = np.random.default_rng(0), kv_pages.dtype
    used = -(-context // SIZE)
    table = np.zeros((rows, TABLE), np.int32)
    table[:, :used] = np.resize(rng.permutation(PAGES - 1) + 1, rows * used).reshape(rows, used)
    q = jnp.asarray(rng.standard_normal((rows * queries, HEADS, DIM)), dtype)
    keys = jnp.asarray(rng.standard_normal((LAYERS, rows, KV_HEADS, context, DIM)), dtype)
    arguments = (q, kv_pages, jnp.asarray(table), jnp.arange(rows + 1) * queries, jnp.full(rows, context))
    ours, theirs = fastest((jax.jit(paged), arguments), (jax.jit(partial(dense, rows=rows)), (q, keys, keys)))
    bytes_read = 2 * keys[0].nbytes
    return {
        "dtype": dtype.name,
        "rows": rows,
        "queries": queries,
        "context": context,
        "ms_per_layer": round(ours / LAYERS * 1e3, 3),
        "time_over_dense": round(ours / theirs, 2),
        "gb_per_s": round(bytes_read * LAYERS / ours / 1e9, 2),
    }


def fastest(*calls: tuple[Callable[..., jax.Array], tuple[jax.Array, ...]]) -> list[float]:
    """Seconds of the fastest of fifteen calls of each, interleaved so that all meet the same disturbance."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(16):
        for (function, arguments), seconds in zip(calls, times, strict=True):
            start = time.perf_counter()
            function(*arguments).block_until_ready()
            if turn:  # the first compiles
                seconds.append(time.perf_counter() - start)
    return [min(seconds) for seconds in times]


def compile_seconds(tokens: int, rows: int, layers: int = 12) -> float:
    """CPU seconds a layer to trace and compile writing and attending, for a program of these sizes."""

    def step(q: jax.Array, kv_pages: jax.Array, table: jax.Array, start: jax.Array, length: jax.Array) -> Any:
        for layer in range(layers):
            kv_pages = kv_write(kv_pages, q[:, :KV_HEADS], q[:, :KV_HEADS], jnp.arange(tokens), layer=layer)
            q += ragged_paged_attention(q, kv_pages, table, start, length, layer=layer, options=OPTIONS)
        return q, kv_pages

    arguments = (
        jax.ShapeDtypeStruct((tokens, HEADS, DIM), jnp.bfloat16),
        jax.ShapeDtypeStruct((layers, PAGES, 2, KV_HEADS, SIZE, DIM), jnp.bfloat16),
        jax.ShapeDtypeStruct((rows, TABLE), jnp.int32),
        jax.ShapeDtypeStruct((rows + 1,), jnp.int32),
        jax.ShapeDtypeStruct((rows,), jnp.int32),
    )
    start = time.process_time()
    jax.jit(step, donate_argnums=1).lower(*arguments).compile()
    return round((time.process_time() - start) / layers, 3)


def main() -> None:
    """Measure, print a line a case, write the file."""
    bandwidth = machine.read_bandwidth()
    cases = []
    for dtype in ("bfloat16", "float32"):
        kv_pages = jnp.asarray(np.random.default_rng(0).standard_normal((LAYERS, PAGES, 2, KV_HEADS, SIZE, DIM)), dtype)
        sizes = [(rows, 1, context) for rows, context in DECODES]
        sizes += [(1, queries, context) for queries, context in CHUNKS]
        for rows, queries, context in sizes:
            case = compare(rows, queries, context, kv_pages)
            if queries == 1:  # chunks are bound by arithmetic
                case["share_of_bandwidth"] = round(case["gb_per_s"] * 1e9 / bandwidth, 3)
            cases.append(case)
            print(case)
    compiling = {"decode_16_rows": compile_seconds(16, 16), "chunks_128_tokens_16_rows": compile_seconds(128, 16)}
    result = {
        "machine": machine.describe(),
        "note": "ratios hold on a busy machine, milliseconds do not; the bandwidth is a jitted sum's in the same process",
        "read_bandwidth_gb_per_s": round(bandwidth / 1e9, 1),
        "shape": {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "page_size": SIZE, "pages": PAGES},
        "cases": cases,
        "compile_cpu_seconds_per_layer": compiling,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(compiling)


if __name__ == "__main__":
    main()
