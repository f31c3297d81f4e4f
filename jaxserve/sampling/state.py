"""SamplerState: what the sampler remembers of each running sequence, on the device."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from jaxserve.sampling.vocabulary import Vocabulary


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class SamplerState:
    """One slot a running sequence and a spare one, the last, for rows that do not sample. Donate it to every step.

    Columns are tokens, padded as the logits are and divided over devices like them: C on each.

    Attributes:
        output_counts: int32 [slots + 1, C], how often each token was generated.
        in_prompt: bool [slots + 1, C], whether the token is in the prompt.
        bias: f32 [slots + 1, C], added to logits; -inf forbids a token.
    """

    output_counts: jax.Array
    in_prompt: jax.Array
    bias: jax.Array


def empty_state(slots: int, columns: int) -> SamplerState:
    """Make a state of `slots` slots and the spare one: no tokens so far and no bias."""
    return SamplerState(
        output_counts=jnp.zeros((slots + 1, columns), jnp.int32),
        in_prompt=jnp.zeros((slots + 1, columns), jnp.bool_),
        bias=jnp.zeros((slots + 1, columns), jnp.float32),
    )


def load_row(
    state: SamplerState, slot: jax.Array, output_counts: jax.Array, in_prompt: jax.Array, bias: jax.Array
) -> SamplerState:
    """Set one slot for a sequence that starts or comes back; the rows are [C], `slot` is an int32 scalar."""

    def put(table: jax.Array, row: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(table, row[None, :], slot, 0)

    return SamplerState(
        output_counts=put(state.output_counts, output_counts),
        in_prompt=put(state.in_prompt, in_prompt),
        bias=put(state.bias, bias),
    )


def record_tokens(state: SamplerState, slot: jax.Array, tokens: jax.Array, vocabulary: Vocabulary) -> SamplerState:
    """Count the chosen `tokens` int32 [R] in their slots int32 [R]; rows that did not sample name the spare slot."""
    column = vocabulary.columns(tokens, state.output_counts.shape[1])
    # Unconditional and small: under lax.cond the tables would be copied.
    counts = state.output_counts.at[slot, column].add(1, mode="drop")
    return SamplerState(output_counts=counts, in_prompt=state.in_prompt, bias=state.bias)
