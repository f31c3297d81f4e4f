"""The mixture-of-experts MLP: each token visits the experts that it chose, and none is ever dropped.

Tokens are sorted by expert, so that an expert's tokens are neighbours and the experts' projections are grouped matmuls
(Gale et al. 2022). Where the experts are is the caller's matter, as the cache is in attention: the model says what is computed
with the experts that a device has, the caller's `dispatch` says which those are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models import config as models
from jaxserve.models import ungated_mlp
from jaxserve.models.adapted_experts import AdaptedVisits, AddLora, ExpertLoras, add_shared, expert_loras
from jaxserve.models.mlp import ACTIVATIONS, GatedMLP, mlp_of
from jaxserve.models.norm import RMSNorm
from jaxserve.models.parameter import (
    COLUMNS,
    EXPERT_COLUMNS,
    EXPERT_ROWS,
    ROUTER,
    ROWS,
    Parameter,
    declare,
    project_columns,
    unadapted,
)
from jaxserve.models.routing import Routed, route
from jaxserve.models.ungated_mlp import MLP
from jaxserve.ordering import ascending
from pallas_kernels.add_lora import add_lora
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.matmul import Matrix, Weight, matmul
from sharding import LogicalAxes

Matmul = Callable[[jax.Array, Weight, jax.Array], jax.Array]
"""x[N, I], matrices[X, I, O] or a stacked Matrix, rows of each int32[X] -> [N, O] of x's dtype; 0 in the rows behind them."""


Activate = Callable[[jax.Array], jax.Array]
"""What goes up, [N, s, 2F/s] or without gates [N, s, F/s], to what goes down, [N, s, F/s]."""


class RoutedTokens(NamedTuple):
    """The tokens of a step as they come to a layer's experts.

    Attributes:
        x: [T, E], normalised activations, or the latents of experts that have them.
        given: float32[T, k], what multiplies what each of a token's experts is given; None for nothing.
        shared: float32[T, 1], how much the shared expert counts; None if it counts as it is, or there is none.
    """

    x: jax.Array
    routed: Routed
    given: jax.Array | None
    shared: jax.Array | None


class ExpertWeights(NamedTuple):
    """The experts of a layer, or what one device has of them: X experts, in s parts.

    Attributes:
        up: [X, E, s, 2F/s], each part's gates before what they gate, or a stacked Matrix of that shape; F/s without gates.
        up_bias: [X, s, 2F/s] or None.
        down: [X, s, F/s, E], likewise.
        shared_up, shared_down: of the expert that every token visits, [E, s, 2F/s] and [s, F/s, E], or None.
        loras: what adapters change in them; None in a step without.
    """

    up: Weight
    up_bias: jax.Array | None
    down: Weight
    shared_up: Matrix | None
    shared_down: Matrix | None
    loras: ExpertLoras | None = None


AXES: Mapping[str, LogicalAxes] = MappingProxyType(
    {
        "up": ("experts", "embed", "expert_ffn", None),
        "up_bias": ("experts", "expert_ffn", None),
        "down": ("experts", "expert_ffn", None, "embed"),
        "shared_up": ("embed", "ffn", None),
        "shared_down": ("ffn", None, "embed"),
    }
)
"""The logical axes of ExpertWeights; see LORA_AXES for its adapters'."""


class ExpertDispatch(Protocol):
    """A step's tokens visit a layer's experts, wherever these are."""

    def __call__(self, layer: int, routed_tokens: RoutedTokens, weights: ExpertWeights, activate: Activate) -> jax.Array:
        """The sum float32[T, E] over each token's experts, the shared one included; see `apply_experts`."""


class Experts(nnx.Module):
    """Routed experts, each an MLP, and perhaps one more that every token visits.

    `gate_up` [X, E, s, 2F/s], or `up` [X, E, s, F/s] of experts without gates, and `down` [X, s, F/s, E] hold the experts'
    projections as one MLP has its own. A device has some of the X, all of them in the same part or parts of the s: so the layout
    does not depend on how many share the experts.
    """

    def __init__(self, config: models.DecoderConfig, experts: models.Experts, layer: int, shards: int, dtype: jnp.dtype) -> None:
        embed, count, local, routing = config.hidden_size, experts.count, experts.ffn_size // shards, experts.routing
        self.layer, self.experts, self._activate = layer, experts, partial(activate, config.activation, config.gated)
        self.router = declare((embed, count), ("embed", None), dtype, ROUTER)
        self.router_norm = RMSNorm(embed, "embed", replace(config, norm_offset=0.0), dtype) if routing.scaled else None
        self.expert_scale = declare((count,), (None,), dtype) if routing.scaled else None
        self.router_bias = declare((count,), (None,), dtype) if routing.bias else None
        # Experts differ by less in it than 16 bits resolve.
        self.correction = declare((count,), (None,), jnp.dtype("float32")) if routing.correction else None
        self.latent = ExpertLatent(embed, experts.latent_size, dtype) if experts.latent_size else None
        inner, width = (1 + config.gated) * local, experts.latent_size or embed
        up = declare((count, width, shards, inner), AXES["up"], dtype, EXPERT_COLUMNS)
        self.gate_up: Parameter | None = up if config.gated else None
        self.up: Parameter | None = None if config.gated else up
        self.gate_up_bias = declare((count, shards, inner), AXES["up_bias"], dtype) if config.mlp_bias else None
        self.down = declare((count, shards, local, width), AXES["down"], dtype, EXPERT_ROWS)
        self.down_bias = declare((count, embed), (None, "embed"), dtype) if config.mlp_bias else None
        shared = replace(config, ffn_size=experts.shared_ffn_size, mlp_bias=False)
        self.shared = mlp_of(shared, shards, dtype) if experts.shared_ffn_size else None
        self.shared_gate = declare((embed, 1), ("embed", None), dtype, ROUTER) if experts.shared_gate else None

    def __call__(self, x: jax.Array, dispatch: ExpertDispatch, stream: jax.Array | None = None) -> jax.Array:
        """x[T, E] of normalised activations to [T, E], before the residual sum.

        `stream` [T, E] is the residual stream, for a router with a norm of its own. A shared expert that is apart is left out.
        """
        routed = self._route(x if stream is None else stream)
        shared = None if self.shared_gate is None else jax.nn.sigmoid(_scores(x, self.shared_gate, None))
        beside = self._beside
        weights = ExpertWeights(
            up=unadapted(self._up),
            up_bias=None if self.gate_up_bias is None else self.gate_up_bias[...],
            down=unadapted(self.down),
            shared_up=None if beside is None else COLUMNS.matrix(beside.first[0]),
            shared_down=None if beside is None else ROWS.matrix(beside.down),
            loras=self._loras(),
        )
        given = None
        if self.experts.routing.of_inputs:
            routed, given = routed._replace(weights=jnp.ones_like(routed.weights)), routed.weights
        seen = x if self.latent is None else self.latent.before(x)
        y = dispatch(self.layer, RoutedTokens(seen, routed, given, shared), weights, self._activate)
        if self.down_bias is not None:
            y += _biases(routed, self.down_bias[...])
        y = y.astype(x.dtype)
        if self.latent is None:
            return y
        y = self.latent.behind(y)
        return y if self.shared is None else y + self.shared(x)

    @property
    def _up(self) -> Parameter:
        up = self.gate_up if self.up is None else self.up
        assert up is not None
        return up

    @property
    def _beside(self) -> GatedMLP | MLP | None:
        """The shared expert, if it is given what the others are."""
        return None if self.experts.apart or self.latent is not None else self.shared

    def _route(self, x: jax.Array) -> Routed:
        correction = None if self.correction is None else self.correction[...]
        if self.router_norm is None or self.expert_scale is None:
            return route(_scores(x, self.router, self.router_bias), correction, self.experts)
        x = self.router_norm(x) * jnp.asarray(x.shape[1] ** -0.5, x.dtype)
        experts, weights = route(_scores(x, self.router, self.router_bias), correction, self.experts)
        return Routed(experts, weights * self.expert_scale[...].astype(jnp.float32)[experts])

    def _loras(self) -> ExpertLoras | None:
        beside = self._beside
        up, down = (None, None) if beside is None else (beside.first[0], beside.down)
        return expert_loras({"up": self._up, "down": self.down, "shared_up": up, "shared_down": down})


class ExpertLatent(nnx.Module):
    """Projections of what a layer's routed experts see and make (LatentMoE, NVIDIA 2025), whole on every device.

    `down` is [E, 1, N], `up` [N, 1, E].
    """

    def __init__(self, embed: int, size: int, dtype: jnp.dtype) -> None:
        self.down = declare((embed, 1, size), ("embed", None, None), dtype, COLUMNS)
        self.up = declare((size, 1, embed), (None, None, "embed"), dtype, COLUMNS)

    def before(self, x: jax.Array) -> jax.Array:
        """x[T, E] to latents [T, N]."""
        return project_columns(x, self.down, None)[:, 0]

    def behind(self, latents: jax.Array) -> jax.Array:
        """[T, N] to [T, E]."""
        return project_columns(latents, self.up, None)[:, 0]


def apply_experts(
    routed_tokens: RoutedTokens,
    weights: ExpertWeights,
    first: jax.Array | int,
    sizes: jax.Array,
    activate: Activate,
    matmul: Matmul,
    add: AddLora = add_lora,
) -> jax.Array:
    """What the experts that a device has add to each token: float32[T, E], the sum of its parts alone.

    Args:
        routed_tokens: the tokens. Those that choose no expert that there is, whatever its number, visit none.
        weights: the device's; experts `first` to `first` + X.
        first: the number of the device's first expert.
        sizes: int32[X], how many tokens visit each of the device's experts.
        activate: what is between an expert's projections.
        matmul: the grouped one.
        add: what adds what comes of adapters.
    """
    x, (experts, scores), given, _ = routed_tokens
    (tokens, active), count, embed = experts.shape, weights.up.shape[0], x.shape[1]
    local = experts.reshape(-1) - first
    keys = jnp.where((local >= 0) & (local < count), local, count)  # other devices' visitors come behind
    order = ascending(keys)
    places = jnp.arange(tokens * active, dtype=jnp.int32)
    inverse = jnp.zeros_like(order).at[order].set(places, mode="promise_in_bounds", unique_indices=True)
    parts, loras = weights.up.shape[2], weights.loras
    visits = None if loras is None or loras.up is None else AdaptedVisits(loras, keys, sizes, inverse, active, add)
    rows = x[order // active]
    if given is not None:
        given = given.reshape(-1, 1)[order]
        rows = (rows.astype(jnp.float32) * given).astype(x.dtype)
    both = matmul(rows, _flat(weights.up, embed), sizes)
    if weights.up_bias is not None:
        bias = weights.up_bias.reshape(count, -1).at[keys[order]].get(mode="clip")
        both = (both.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)
    if visits is not None:
        added = visits.up(x, order)
        both = (both.astype(jnp.float32) + (added if given is None else added * given)).astype(x.dtype)
    hidden = activate(both.reshape(tokens * active, parts, -1))
    hidden = hidden.reshape(tokens * active, -1)
    down = matmul(hidden, _flat(weights.down, hidden.shape[1]), sizes)
    each = down[inverse].astype(jnp.float32)
    if visits is not None:
        each += visits.down(hidden)
    each = each.reshape(tokens, active, embed)
    return jnp.sum(each * scores[:, :, None], axis=1) + _shared(routed_tokens, weights, activate, add)


def _flat(weight: Weight, inputs: int) -> Weight:
    """Experts' matrices as the grouped matmul takes them; a Matrix knows which of its dimensions are inputs."""
    return weight if isinstance(weight, Matrix) else weight.reshape(weight.shape[0], inputs, -1)


def dispatch_all(layer: int, routed_tokens: RoutedTokens, weights: ExpertWeights, activate: Activate) -> jax.Array:
    """An ExpertDispatch where one device has all experts."""
    sizes = tokens_per_expert(routed_tokens.routed.experts, weights.up.shape[0])
    matmul = partial(grouped_matmul, dtype=routed_tokens.x.dtype)
    return apply_experts(routed_tokens, weights, 0, sizes, activate, matmul)


def tokens_per_expert(experts: jax.Array, count: int) -> jax.Array:
    """How often each of `count` experts is among experts int32[T, k]: int32[count]. Numbers of none are in no count."""
    return jnp.zeros(count, jnp.int32).at[experts.reshape(-1)].add(1, mode="drop")


def _shared(routed_tokens: RoutedTokens, weights: ExpertWeights, activate: Activate, add: AddLora) -> jax.Array:
    """What the shared expert adds: float32[T, E]; 0 without one."""
    if weights.shared_up is None or weights.shared_down is None:
        return jnp.zeros((), jnp.float32)
    x, loras = routed_tokens.x, weights.loras
    both = matmul(x, weights.shared_up)
    if loras is not None:
        both = add_shared(both, x, loras.shared_up, loras.tokens, add)
    hidden = activate(both.astype(x.dtype))
    y = matmul(hidden, weights.shared_down)
    if loras is not None:
        y = add_shared(y, hidden, loras.shared_down, loras.tokens, add)
    return y if routed_tokens.shared is None else y * routed_tokens.shared


def activate(name: str, gated: bool, up: jax.Array) -> jax.Array:
    """Of the activation of a config; see Activate."""
    return ACTIVATIONS[name](*jnp.split(up, 2, axis=-1)) if gated else ungated_mlp.ACTIVATIONS[name](up)


def _scores(x: jax.Array, kernel: Parameter, bias: Parameter | None) -> jax.Array:
    """x[T, E] times a matrix [E, N], plus a bias [N]: float32[T, N]."""
    y = matmul(x, ROUTER.matrix(kernel))
    return y if bias is None else y + bias[...].astype(jnp.float32)[None]


def _biases(routed: Routed, bias: jax.Array) -> jax.Array:
    """The experts' biases [X, E], weighted as their outputs are: float32[T, E]. A matmul, smaller than those of the experts."""
    number = jnp.arange(bias.shape[0], dtype=jnp.int32)
    weight = jnp.sum(jnp.where(routed.experts[:, :, None] == number[None, None], routed.weights[:, :, None], 0.0), axis=1)
    return jnp.einsum("tx,xe->te", weight, bias.astype(jnp.float32))
