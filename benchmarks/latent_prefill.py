"""Latent attention of a chunk of a prompt: over keys and values that are made for it, beside over the latents themselves.

    python -m benchmarks.latent_prefill [--repeats 5]

One layer of DeepSeek-V2-Lite (16 heads) in bfloat16, projections of queries and values included, in one process and in turns.
Writes benchmarks/results/latent_prefill.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import machine
from jaxserve.commands import write_json
from jaxserve.executor.expanded_latents import expanded_from, heads_at_once
from jaxserve.models.latent_heads import LatentHeads
from pallas_kernels.expanded_attention import expanded_attention
from pallas_kernels.ragged_paged_attention import AttentionOptions, ragged_paged_attention

RESULTS = Path(__file__).parent / "results" / "latent_prefill.json"
HEADS, NOPE, ROTATED, LATENT, VALUE, PAGE = 16, 128, 64, 512, 128, 16
OPTIONS = AttentionOptions(0.07, value_dim=LATENT)
CASES = ((128, 4096), (256, 4096), (512, 4096), (2048, 2048), (2048, 8192), (2048, 16384))
"""Tokens of the chunk, and keys of its row with them."""


def absorbed(heads: LatentHeads, pages: jax.Array, *rows: jax.Array) -> jax.Array:
    return heads.values(ragged_paged_attention(heads.absorbed(), pages, *rows, layer=0, options=OPTIONS))


def expanded(num_pages: int, heads: LatentHeads, pages: jax.Array, *rows: jax.Array) -> jax.Array:
    at_once = heads_at_once(heads, num_pages * PAGE)
    return expanded_attention(*heads, pages, *rows, layer=0, options=OPTIONS, num_pages=num_pages, heads_at_once=at_once)


def measured(tokens: int, keys: int, repeats: int) -> dict[str, Any]:
    rng, num_pages = np.random.default_rng(0), -(-keys // PAGE)
    shapes = ((tokens, HEADS, NOPE + ROTATED), (HEADS, NOPE, LATENT), (HEADS, VALUE, LATENT), (1, num_pages + 1, 1, 1, PAGE, 576))
    *heads, pages = (jnp.asarray(rng.standard_normal(shape) / 8, jnp.bfloat16) for shape in shapes)
    rows = [jnp.asarray(array, jnp.int32) for array in (np.arange(1, num_pages + 1)[None], [0, tokens], [keys])]
    ways: dict[str, Callable[..., jax.Array]] = {
        "latents": jax.jit(absorbed),
        "keys and values": jax.jit(partial(expanded, num_pages)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    results = {name: np.asarray(way(LatentHeads(*heads), pages, *rows), np.float32) for name, way in ways.items()}
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            way(LatentHeads(*heads), pages, *rows).block_until_ready()
            times[name].append((time.perf_counter() - start) * 1e3)
    apart = float(np.abs(results["latents"] - results["keys and values"]).max() / np.abs(results["latents"]).max())
    medians = {name: round(machine.median(each), 1) for name, each in times.items()}
    ratio = round(medians["latents"] / medians["keys and values"], 2)
    return {"tokens": tokens, "keys": keys, "ms": medians, "ratio": ratio, "apart": round(apart, 5)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latent_prefill")
    parser.add_argument("--repeats", type=int, default=5)
    repeats, cases = parser.parse_args().repeats, []
    for tokens, keys in CASES:
        cases.append(measured(tokens, keys, repeats))
        print(cases[-1], flush=True)
    shapes = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16)
        for shape in ((1, HEADS, NOPE + ROTATED), (HEADS, NOPE, LATENT), (HEADS, VALUE, LATENT))
    )
    worth = expanded_from(LatentHeads(*shapes))  # type: ignore[arg-type]
    write_json(RESULTS, {**machine.describe(), "command": machine.command(__spec__.name), "made_from": worth, "cases": cases})


if __name__ == "__main__":
    main()
