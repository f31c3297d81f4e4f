"""A mixture-of-experts layer against the dense layer of the same active FLOPs.

    python -m benchmarks.moe [out.json]

Writes benchmarks/results/moe.json unless told otherwise. On this machine: times, routing included, side by side with a dense
gated MLP that is as wide as the experts that a token visits; a single token is padded to two, as the engine does on CPUs. For an
H100, which need not be there: the FLOPs of the compiled layer, which needs jax-cuda13-plugin. Ratios hold on a busy machine,
milliseconds do not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import machine, moe_flops
from jaxserve.commands import write_json
from jaxserve.executor.experts import ShardedDispatch
from jaxserve.models.config import DecoderConfig, Experts
from jaxserve.models.experts import Experts as ExpertsLayer
from jaxserve.models.families.mixtral import config_from_hf
from jaxserve.models.mlp import GatedMLP
from jaxserve.models.routing import route
from sharding import make_mesh

TOKENS = (1, 8, 64, 512)
DTYPES = ("bfloat16", "float32")
CALLS = 15  # of each layer
SMALLEST_BUCKET = 2  # tokens
RESULTS = Path(__file__).parent / "results" / "moe.json"

Layer = Callable[[Any, jax.Array, jax.Array], jax.Array]
"""Parameters, x[T, E] and how many of the T are no padding, to [T, E]."""


@dataclass(frozen=True, slots=True)
class Shape:
    """X experts of which a token visits k; E, and F of an expert."""

    name: str
    experts: int
    active: int
    embed: int
    ffn: int

    def config(self) -> DecoderConfig:
        """Of a decoder with one such layer."""
        return config_from_hf(
            {
                "architectures": ["MixtralForCausalLM"],
                "model_type": "mixtral",
                "vocab_size": 256,
                "hidden_size": self.embed,
                "intermediate_size": self.ffn,
                "num_hidden_layers": 1,
                "num_attention_heads": 8,
                "num_key_value_heads": 8,
                "num_local_experts": self.experts,
                "num_experts_per_tok": self.active,
            }
        )


SHAPES = (
    Shape("mixtral-8x7b, a quarter as wide", 8, 2, 1024, 3584),
    Shape("qwen3-30b-a3b, half as wide", 128, 8, 1024, 384),
)


def experts_of(config: DecoderConfig) -> Experts:
    """What the config says of experts."""
    if config.experts is None:
        raise ValueError("the decoder has no experts")
    return config.experts


def sparse_layer(config: DecoderConfig, dtype: str, seed: int = 0) -> tuple[Layer, Any]:
    """The decoder's mixture-of-experts layer as a step has it, routing included, and random parameters."""
    graph, parameters = _split(ExpertsLayer(config, experts_of(config), 0, 1, jnp.dtype(dtype)), seed)
    mesh = make_mesh()

    def layer(parameters: Any, x: jax.Array, tokens: jax.Array) -> jax.Array:
        y: jax.Array = nnx.merge(graph, parameters)(x, ShardedDispatch(mesh, tokens))
        return y

    return jax.jit(layer), parameters


def dense_layer(config: DecoderConfig, dtype: str, seed: int = 0) -> tuple[Layer, Any]:
    """A gated MLP with as many FLOPs a token as the experts that a token visits, and random parameters."""
    experts = experts_of(config)
    graph, parameters = _split(GatedMLP(replace(config, ffn_size=experts.active * experts.ffn_size), 1, jnp.dtype(dtype)), seed)

    def layer(parameters: Any, x: jax.Array, tokens: jax.Array) -> jax.Array:
        del tokens  # it computes those that are padding too
        y: jax.Array = nnx.merge(graph, parameters)(x)
        return y

    return jax.jit(layer), parameters


def _split(module: nnx.Module, seed: int) -> tuple[Any, Any]:
    graph, state = nnx.split(module)
    random = np.random.default_rng(seed)

    def fill(array: jax.Array) -> jax.Array:
        return jnp.asarray(random.standard_normal(array.shape, np.float32) * 0.03, array.dtype)

    return graph, jax.tree.map(fill, state)


def visited(config: DecoderConfig, parameters: Any, x: jax.Array) -> int:
    """How many experts any of the tokens x[T, E] visits."""
    logits = jnp.dot(x, parameters["router"][...], preferred_element_type=jnp.float32)
    return int(np.unique(np.asarray(route(logits, None, experts_of(config)).experts)).size)


def fastest(calls: Sequence[tuple[Layer, Any]], *arguments: jax.Array) -> list[float]:
    """Seconds of each layer's fastest call, interleaved so that all meet the same disturbance."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(CALLS + 1):
        for (call, parameters), seconds in zip(calls, times, strict=True):
            start = time.perf_counter()
            call(parameters, *arguments).block_until_ready()
            if turn:  # the first compiles
                seconds.append(time.perf_counter() - start)
    return [min(seconds) for seconds in times]


def compare(shape: Shape, dtype: str, tokens: tuple[int, ...] = TOKENS) -> list[dict[str, Any]]:
    """Both layers' milliseconds and their ratio at each number of tokens."""
    config = shape.config()
    layers = sparse_layer(config, dtype), dense_layer(config, dtype)
    cases = []
    for count in tokens:
        x = np.random.default_rng(count).standard_normal((max(count, SMALLEST_BUCKET), shape.embed), np.float32)
        padded = jnp.asarray(x, dtype)
        ours, theirs = fastest(layers, padded, jnp.int32(count))
        experts = visited(config, layers[0][1], padded[:count])
        case = {
            "shape": shape.name,
            "dtype": dtype,
            "tokens": count,
            "experts_visited": experts,
            "weights_over_dense": round(experts / shape.active, 2),  # bytes that are read
            "ms": round(ours * 1e3, 3),
            "time_over_dense": round(ours / theirs, 2),
        }
        cases.append(case)
        print(case, flush=True)
    return cases


def main() -> None:
    """Measure, print a line a case, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=RESULTS, help="JSON file to write")
    out = parser.parse_args().out
    described = machine.describe()
    times = [case for dtype in DTYPES for shape in SHAPES for case in compare(shape, dtype)]
    flops = [case for model in moe_flops.MODELS for case in moe_flops.count(model)]
    write_json(out, {"machine": described, "shapes": [_shape(shape) for shape in SHAPES], "times": times, "h100": flops})


def _shape(shape: Shape) -> dict[str, Any]:
    return {"name": shape.name, "X": shape.experts, "k": shape.active, "E": shape.embed, "F": shape.ffn}


if __name__ == "__main__":
    main()
