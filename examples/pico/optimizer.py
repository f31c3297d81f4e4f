"""Muon for the matrices inside the layers, Adam for embeddings and norms, with a rate that the caller applies."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)
UPDATE_RMS = 0.2  # about what Adam's updates have, so that one rate serves both


class MuonState(NamedTuple):
    """The running sum of gradients."""

    momentum: Any


def orthogonalize(matrix: Array, steps: int = 5) -> Array:
    """The orthogonal matrix near ``matrix``, by Newton-Schulz iterations in bfloat16, as a float32 array."""
    a, b, c = NEWTON_SCHULZ
    tall = matrix.shape[0] > matrix.shape[1]
    x: Array = (matrix.T if tall else matrix) / (jnp.linalg.norm(matrix) + 1e-7)
    for _ in range(steps):
        half = x.astype(jnp.bfloat16)
        gram = jnp.einsum("ik,jk->ij", half, half, preferred_element_type=jnp.float32)
        g = gram.astype(jnp.bfloat16)
        # The gram matrix and its square are symmetric, so contracting last axes is the plain product.
        poly = b * gram + c * jnp.einsum("ik,jk->ij", g, g, preferred_element_type=jnp.float32)
        x = a * x + jnp.einsum("ik,kj->ij", poly.astype(jnp.bfloat16), half, preferred_element_type=jnp.float32)
    return x.T if tall else x


def scale_by_muon(beta: float = 0.95) -> optax.GradientTransformation:
    """Nesterov momentum, orthogonalized, at a root mean square of ``UPDATE_RMS``."""

    def init(params: Any) -> MuonState:
        return MuonState(jax.tree.map(jnp.zeros_like, params))

    def update(grads: Any, state: MuonState, params: Any = None) -> tuple[Any, MuonState]:
        del params
        momentum = jax.tree.map(lambda m, g: beta * m + g, state.momentum, grads)
        nesterov = jax.tree.map(lambda m, g: beta * m + g, momentum, grads)
        updates = jax.tree.map(lambda x: orthogonalize(x) * (UPDATE_RMS * max(x.shape) ** 0.5), nesterov)
        return updates, MuonState(momentum)

    return optax.GradientTransformation(init, update)


def make_optimizer(name: str, weight_decay: float) -> optax.GradientTransformation:
    """A descent direction for a rate of 1, behind gradient clipping; the training step multiplies by the rate."""

    def label(params: dict[str, Array]) -> dict[str, str]:
        return {k: "muon" if name == "muon" and "_proj" in k else "adam" for k in params}

    def decayed(params: dict[str, Array]) -> dict[str, bool]:
        return {k: isinstance(v, optax.MaskedNode) or v.ndim > 1 for k, v in params.items()}

    adam = optax.scale_by_adam(b2=0.98)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.multi_transform({"muon": scale_by_muon(), "adam": adam}, label),
        optax.add_decayed_weights(weight_decay, mask=decayed),
        optax.scale(-1.0),
    )
