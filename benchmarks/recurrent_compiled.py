"""What a recurrent layer's convolution and state are in a decode step compiled for an H100 that is not here, in XLA and as ours.

    python -m benchmarks.recurrent_compiled [--rows 1 16 64]

A layer's kernels are what two layers have more than one; the body of XLA's loop, which runs once for each token of the longest
row, counts once. Temporary bytes are those of two layers. Needs jax-cuda13-plugin. Writes
benchmarks/results/recurrent_compiled.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from benchmarks import machine
from jaxserve.aot.target import Target as CompileTarget
from jaxserve.aot.thunks import read_launches
from jaxserve.executor.compile_cache import nothing_kept
from pallas_kernels.causal_conv1d import causal_conv1d
from pallas_kernels.gated_linear_attention import LinearOptions, gated_linear_attention
from pallas_kernels.registry import Target
from pallas_kernels.state_rows import StateRows

RESULTS = Path(__file__).parent / "results" / "recurrent_compiled.json"
IMPLEMENTATIONS = ("xla", "mosaic_gpu")
PLACES_A_ROW, TAPS = 4, 4


@dataclass(frozen=True, slots=True)
class Layer:
    """K, H, D and V of a model's recurrent layers, and the recurrence."""

    model: str
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    options: LinearOptions

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.heads * self.value_dim

    def heads_of(self, mixed: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """[T, 1, C] after the convolution, cut as the model cuts it, into q[T, K, D], k[T, K, D] and v[T, H, V]."""
        if self.options.delta:
            q, k, v = jnp.split(mixed, (self.keys, 2 * self.keys), axis=2)
        else:
            v, k, q = jnp.split(mixed, (self.values, self.values + self.keys), axis=2)
        q, k = (part.reshape(len(mixed), self.key_heads, self.key_dim) for part in (q, k))
        return q, k, v.reshape(len(mixed), self.heads, self.value_dim)


LAYERS = (
    Layer("qwen3-next-80b-a3b", 16, 32, 128, 128, LinearOptions(delta=True, scale=128**-0.5, l2_norm=True)),
    Layer("granite-4.0-h-tiny", 1, 48, 128, 64, LinearOptions(delta=False)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = []
    for layer in LAYERS:
        for rows in given.rows:
            line: dict[str, Any] = {"model": layer.model, "rows": rows}
            for name in IMPLEMENTATIONS:
                one, two = (_step(layer, layers, rows, name) for layers in (1, 2))
                line[name] = {"kernels": two["kernels"] - one["kernels"], "temporary_bytes": two["temporary_bytes"]}
            print(line, flush=True)
            found.append(line)
    report = {
        "machine": machine.describe(),
        "command": machine.command("benchmarks.recurrent_compiled"),
        "target": "h100",
        "a_layer": found,
    }
    given.out.write_text(json.dumps(report, indent=1) + "\n")


def _step(layer: Layer, layers: int, count: int, name: str) -> dict[str, int]:
    """Compile the recurrences of so many layers, one after the other, for so many rows of a token each."""
    device = CompileTarget.parse("h100").devices()[0]
    channels = 2 * layer.keys + layer.values

    convolve = partial(causal_conv1d, implementation=name, target=Target.of(device))
    attend = partial(gated_linear_attention, options=layer.options, implementation=name, target=Target.of(device))

    def array(dtype: str, *sizes: int) -> Any:
        return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype), sharding=SingleDeviceSharding(device))

    def step(
        inputs: jax.Array, memory: jax.Array, x: jax.Array, weight: jax.Array, gates: jax.Array, rows: StateRows
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        attended = x[0, :, : layer.values]
        for number in range(layers):
            product = jax.lax.optimization_barrier((x[number], attended))[0]
            mixed, inputs = convolve(product, weight, None, inputs, rows, layer=number)
            q, k, v = layer.heads_of(mixed[:, None])
            out, memory = attend(q, k, v, gates[0], gates[1], memory, rows, layer=number)
            attended = out.reshape(count, layer.values)
        return inputs, memory, attended

    places, words = 1 + PLACES_A_ROW * count, ((count + 1,), (count,), (count,), (count, 1), (count,), (count,))
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(
        array("bfloat16", layers, places, TAPS - 1, channels),
        array("float32", layers, places, layer.heads, layer.key_dim, layer.value_dim),
        array("bfloat16", layers, count, channels),
        array("bfloat16", TAPS, channels),
        array("float32", 2, count, layer.heads),
        StateRows(*(array("int32", *size) for size in words)),
    )
    with tempfile.TemporaryDirectory() as directory, nothing_kept():
        memory = lowered.compile({"xla_dump_to": directory}).memory_analysis()
        assert memory is not None
        return {"kernels": read_launches(Path(directory)).kernels, "temporary_bytes": memory.temp_size_in_bytes}


if __name__ == "__main__":
    main()
