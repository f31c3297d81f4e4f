"""The native matrix product for CPUs beside XLA's own dot, and with a byte a number, on matrices of the benchmarks' model.

    python -m benchmarks.matmul [--rows 1 8 32] [--dtypes bfloat16] [--rounds 15] [--output FILE]

Writes benchmarks/results/matmul.json unless told otherwise. A case is a program that multiplies the same rows by many matrices of
one shape, more than the caches hold: what a decode step does. One row is padded to two for XLA, as the engine did. Ratios are of
the medians of interleaved calls, and hold on a busy machine; milliseconds and rates do not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import machine
from jaxserve.commands import write_json
from pallas_kernels import native
from pallas_kernels.matmul import Panels, Rows, Weight, matmul, pack
from pallas_kernels.quantization import Float8Weight, Int8, Scheme

MATRICES = {"qkv": (1024, 1536), "out": (1024, 1024), "gate_up": (1024, 5632), "down": (2816, 1024), "head": (1024, 32000)}
BYTES: Mapping[str, Scheme] = MappingProxyType({"int8": Int8(), "fp8": Float8Weight(), "fp8_blocks": Float8Weight(128)})
"""Schemes of a byte a number: int8, and FP8 with a scale an output or for 128 inputs of it."""
TABLE = "table"  # the head of tied embeddings: [32000, 1024], its rows as they are
ROWS = (1, 2, 8, 16, 32, 128, 512)
ENOUGH = 160 * 2**20  # bytes of matrices that no cache holds
RESULTS = Path(__file__).parent / "results" / "matmul.json"


def program(x: jax.Array, matrices: Sequence[Weight], implementation: str) -> jax.Array:
    """Products with all matrices, one after the other, each of rows that the one before could have changed."""
    total = jnp.zeros((x.shape[0], 1), jnp.float32)
    for matrix in matrices:
        y = matmul(x + (total * 0).astype(x.dtype), matrix, implementation=implementation)
        total = y[:, :1]
    return total


def milliseconds(calls: Mapping[str, Callable[[], jax.Array]], rounds: int) -> dict[str, float]:
    """Medians of each call, in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call().block_until_ready()
            if turn:  # the first warms up
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: machine.median(values) for name, values in times.items()}


def measure(name: str, dtype: str, rows: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """A case for every number of rows."""
    inputs, outputs = MATRICES["head" if name == TABLE else name]
    size = inputs * outputs * jnp.dtype(dtype).itemsize
    count = -(-ENOUGH // size)
    rng = np.random.default_rng(0)
    shape = (outputs, inputs) if name == TABLE else (inputs, outputs)
    plain = [jnp.asarray(rng.standard_normal(shape, np.float32) / 32, dtype) for _ in range(count)]
    layout = Rows((1,)) if name == TABLE else Panels((0,), shape)
    packed = [pack(matrix, layout) for matrix in plain]
    sides = {"native": (packed, "cpu_native"), "xla": (packed if name == TABLE else plain, "xla")}
    if name != TABLE:
        for side, scheme in BYTES.items():
            rounded = [pack(matrix, layout, scheme) for matrix in [*plain, *plain]]
            sides[side] = (rounded[: -(-ENOUGH // (inputs * outputs))], "cpu_native")
    cases = []
    for tokens in rows:
        calls = {}
        for side, (matrices, implementation) in sides.items():
            x = jnp.asarray(rng.standard_normal((max(tokens, 2) if side == "xla" else tokens, inputs)), dtype)
            compiled = jax.jit(program, static_argnums=2).lower(x, matrices, implementation).compile()
            calls[side] = partial(compiled, x, matrices)
        taken = milliseconds(calls, rounds)
        case = {
            "matrix": name,
            "dtype": dtype,
            "rows": tokens,
            "native_ms": round(taken["native"] / count, 4),
            "xla_ms": round(taken["xla"] / count, 4),
            "xla_over_native": round(taken["xla"] / taken["native"], 2),
            "native_gb_per_s": round(size * count / taken["native"] / 1e6, 1),
            "native_gflop_per_s": round(2 * tokens * inputs * outputs * count / taken["native"] / 1e6),
        }
        for side in (side for side in BYTES if side in taken):
            each = taken[side] / len(sides[side][0])
            case |= {f"{side}_ms": round(each, 4), f"native_over_{side}": round(taken["native"] / count / each, 2)}
        print(case, flush=True)
        cases.append(case)
    return cases


def main() -> None:
    """Measure, print a line a case, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--matrices", nargs="+", default=[*MATRICES, TABLE], choices=[*MATRICES, TABLE])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if (reason := native.missing()) is not None:
        raise SystemExit(reason)
    facts = machine.describe()
    cases = [case for dtype in asked.dtypes for name in asked.matrices for case in measure(name, dtype, asked.rows, asked.rounds)]
    command = " ".join(["python -m benchmarks.matmul", *sys.argv[1:]])
    bandwidth = round(machine.read_bandwidth() / 1e9, 1)
    write_json(asked.output, {**facts, "command": command, "read_bandwidth_gb_per_s": bandwidth, "cases": cases})


if __name__ == "__main__":
    main()
