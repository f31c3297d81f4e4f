"""Experts as the decoder's layers visit them: every device computes what its own experts add, and one sum joins the devices."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxserve.config.kernels import AUTOMATIC, Kernels, kernel_of
from jaxserve.models.adapted import Lora
from jaxserve.models.adapted_experts import LORA_AXES, ExpertLoras
from jaxserve.models.experts import AXES, Activate, ExpertWeights, RoutedTokens, apply_experts, tokens_per_expert
from pallas_kernels.add_lora import add_lora
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.matmul import Matrix, part_of
from pallas_kernels.registry import Target
from sharding import EXPERT, LAYER_AXES, partition_spec, shards_of


class ShardedDispatch:
    """The ExpertDispatch of a step on a mesh.

    Every device sees all tokens and has the experts of its place on axis EXPERT, or its part of them. So nothing is sent from
    device to device but the sum that a dense MLP has as well, the shared expert's part in it, and no token is ever left out for
    want of room. That is said with shard_map: the compiler cannot partition a grouped matmul.

    Attributes:
        routed: int32[T,active], the experts of each token, of each layer that was called.

    Args:
        tokens: int32 scalar, how many of the step's tokens are real; the others, which pad it to its bucket, visit none.
    """

    def __init__(self, mesh: Mesh, tokens: jax.Array, kernels: Kernels = AUTOMATIC) -> None:
        self.routed: list[jax.Array] = []
        self._counts: list[jax.Array] = []
        self._mesh = mesh
        self._tokens = tokens
        self._kernels = kernels
        self._target = Target.of(mesh.devices.flat[0])

    def __call__(self, layer: int, routed_tokens: RoutedTokens, weights: ExpertWeights, activate: Activate) -> jax.Array:
        experts, count = routed_tokens.routed.experts, weights.up.shape[0]
        self.routed.append(experts)
        real = jnp.arange(experts.shape[0], dtype=jnp.int32)[:, None] < self._tokens
        experts = jnp.where(real, experts, count)
        sizes = tokens_per_expert(experts, count)
        self._counts.append(sizes)
        dtype = routed_tokens.x.dtype
        exchanged = dtype if self._target.platform == "gpu" else jnp.float32  # as in project_rows

        def dispatch(routed_tokens: RoutedTokens, weights: ExpertWeights, sizes: jax.Array) -> jax.Array:
            weights = _parts(weights)
            here = weights.up.shape[0]
            first = jax.lax.axis_index(EXPERT).astype(jnp.int32) * here
            mine = jax.lax.dynamic_slice_in_dim(sizes, first, here)
            likely = max(experts.size * here // count, 1)
            kernel = kernel_of(self._kernels.grouped_matmul, layer)
            matmul = partial(grouped_matmul, dtype=dtype, expected_rows=likely, implementation=kernel, target=self._target)
            add = partial(add_lora, target=self._target)
            part = apply_experts(routed_tokens, weights, first, mine, activate, matmul, add)
            if shards_of(self._mesh) == 1:
                return part
            summed: jax.Array = jax.lax.psum(part.astype(exchanged), LAYER_AXES)
            return summed.astype(jnp.float32)

        sharded = jax.shard_map(
            dispatch,
            mesh=self._mesh,
            in_specs=(PartitionSpec(), _specs(weights), PartitionSpec()),
            out_specs=PartitionSpec(),
            check_vma=False,  # the op's loops start from constants, which the check takes for a mismatch
        )
        joined: jax.Array = sharded(routed_tokens._replace(routed=routed_tokens.routed._replace(experts=experts)), weights, sizes)
        return joined

    def add_to(self, expert_tokens: jax.Array) -> jax.Array:
        """What `expert_tokens` uint32[layers that have experts, X] counts, and the visits of this step, modulo 2**32."""
        return expert_tokens + jnp.stack(self._counts).astype(jnp.uint32) if self._counts else expert_tokens


def _parts(weights: ExpertWeights) -> ExpertWeights:
    """With what this device has of the shared expert's matrices: the sum over the devices is the dispatch's."""
    shared = (weights.shared_up, weights.shared_down)
    up, down = (None if matrix is None else part_of(matrix) for matrix in shared)
    return weights._replace(shared_up=up, shared_down=down)


def _specs(weights: ExpertWeights) -> Any:
    def spec(name: str, part: Any) -> Any:
        whole = partition_spec(AXES[name])
        return part.specs(whole) if isinstance(part, Matrix) else whole

    parts = weights._replace(loras=None)._asdict()
    specs: dict[str, Any] = {name: None if part is None else spec(name, part) for name, part in parts.items()}
    return ExpertWeights(**specs)._replace(loras=None if weights.loras is None else _lora_specs(weights.loras))


def _lora_specs(loras: ExpertLoras) -> Any:
    def specs(name: str, lora: Lora | None) -> Any:
        a: Any = partition_spec(LORA_AXES[name].a)
        b: Any = partition_spec(LORA_AXES[name].b)
        return None if lora is None else Lora(a, (b,) * len(lora.b))

    everywhere: Any = PartitionSpec()
    return ExpertLoras(**{name: specs(name, getattr(loras, name)) for name in LORA_AXES}, tokens=everywhere)
