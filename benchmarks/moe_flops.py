"""The FLOPs of mixture-of-experts layers compiled for an H100, against those of the tokens' own rows.

All products of a compiled layer are in its Mosaic kernels, which XLA cannot count: theirs are those of the row tiles that they
list for the tokens. Experts are chosen at random, each as likely as any other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxserve.aot.target import Target as CompileTarget
from jaxserve.executor.compile_cache import nothing_kept
from jaxserve.models.experts import ExpertWeights, RoutedTokens, activate, apply_experts, tokens_per_expert
from jaxserve.models.routing import Routed
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.grouped_matmul.mosaic_gpu_rows import list_tiles
from pallas_kernels.grouped_matmul.mosaic_gpu_tiles import choose_tiles
from pallas_kernels.grouped_matmul.problem import GroupedProblem
from pallas_kernels.registry import Target

TOKENS = (1, 8, 64, 512, 2048, 8192)
DTYPE = jnp.dtype(jnp.bfloat16)
_PRODUCTS = re.compile(r" dot\(|gemm|cublas", re.IGNORECASE)  # in the text of a compiled program


@dataclass(frozen=True, slots=True)
class Model:
    """X experts of which a token visits k; E, and F of an expert."""

    name: str
    experts: int
    active: int
    embed: int
    ffn: int

    def matmuls(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """I and O of both grouped matmuls."""
        return (self.embed, 2 * self.ffn), (self.ffn, self.embed)


MODELS = (
    Model("mixtral-8x7b", 8, 2, 4096, 14336),
    Model("qwen3-30b-a3b", 128, 8, 2048, 768),
    Model("gpt-oss-20b", 32, 4, 2880, 2880),
    Model("deepseek-v3", 256, 8, 7168, 2048),
)


def count(model: Model, tokens: tuple[int, ...] = TOKENS) -> list[dict[str, Any]]:
    """Compile the model's layer at each number of tokens and count; prints a line each.

    Raises:
        RuntimeError: a compiled layer is not two kernels and nothing else that multiplies.
    """
    cases = []
    with nothing_kept():
        device = CompileTarget.parse("h100").devices()[0]
        for number in tokens:
            text = compiled(model, number, device)
            kernels = len(re.findall(r'custom_call_target="mosaic_gpu', text))
            if kernels != 2 or _PRODUCTS.search(text):
                raise RuntimeError(f"{model.name} at {number} tokens has {kernels} kernels, or products outside of them")
            cases.append({"model": model.name, "tokens": number} | computed(model, number))
            print(cases[-1], flush=True)
    return cases


def compiled(model: Model, tokens: int, device: jax.Device) -> str:
    """The layer's program for a device, but for the router."""
    array: Any = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))  # stands for arrays
    weights = ExpertWeights(
        up=array((model.experts, model.embed, 1, 2 * model.ffn), DTYPE),
        up_bias=None,
        down=array((model.experts, 1, model.ffn, model.embed), DTYPE),
        shared_up=None,
        shared_down=None,
    )
    choice = (tokens, model.active)
    chosen = Routed(array(choice, jnp.int32), array(choice, jnp.float32))
    routed = RoutedTokens(array((tokens, model.embed), DTYPE), chosen, None, None)
    matmul = partial(grouped_matmul, dtype=DTYPE, target=Target.of(device))

    def layer(routed: RoutedTokens, weights: ExpertWeights) -> jax.Array:
        sizes = tokens_per_expert(routed.routed.experts, model.experts)
        return apply_experts(routed, weights, 0, sizes, partial(activate, "silu", True), matmul)

    return str(jax.jit(layer).lower(routed, weights).compile().as_text())


def computed(model: Model, tokens: int) -> dict[str, Any]:
    """What the kernels compute for tokens that choose experts at random: FLOPs over those of the tokens' rows, and why."""
    random, rows = np.random.default_rng(0), tokens * model.active
    chosen = random.random((tokens, model.experts)).argsort(axis=1)[:, : model.active]
    sizes = np.bincount(chosen.ravel(), minlength=model.experts).astype(np.int32)
    problems = [GroupedProblem(rows, model.experts, *widths, DTYPE, DTYPE, rows) for widths in model.matmuls()]
    (row_tile,) = {choose_tiles(problem).rows for problem in problems}  # it follows from the rows alone
    listed = jax.jit(partial(list_tiles, rows=max(row_tile, -(-rows // 8) * 8), tile=row_tile))(sizes)
    tiles = int(listed.tiles[0])
    active = sum(2 * rows * inputs * outputs for inputs, outputs in model.matmuls())
    return {
        "experts_visited": int((sizes > 0).sum()),
        "rows_an_expert": round(rows / model.experts, 1),
        "row_tile": row_tile,
        "active_gflops": round(active / 1e9, 3),
        "flops_over_active": round(tiles * row_tile / rows, 3),
    }
