"""SamplingBatch: what one step's rows ask of the sampler, as arrays of fixed shapes."""

from __future__ import annotations

from dataclasses import dataclass

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """One entry a row. The flags say what any row needs, so that one compiled program serves every mix cheaply.

    Attributes:
        temperature: f32 [R], 0 for greedy.
        top_k: int32 [R], 0 for all.
        top_p: f32 [R], 1 for all.
        min_p: f32 [R], 0 for all.
        presence: f32 [R], presence penalty, 0 for none.
        frequency: f32 [R], frequency penalty, 0 for none.
        repetition: f32 [R], repetition penalty, 1 for none.
        key: uint32 [R, 2], `key_of_seed` of the request's seed.
        position: int32 [R], position in the sequence of the token being chosen.
        suppress: int32 [R, N], token ids that may not be chosen now, padded with -1.
        has_bias: bool [R], whether the row's slot holds a bias of its own; others' slots may hold one left from before.
        slot: int32 [R], the row's slot in `SamplerState`; rows that do not sample use the spare one.
        any_random: bool, some row has a temperature above 0.
        any_truncated: bool, some row has top_k, top_p or min_p.
        any_penalty: bool, some row has a penalty.
        any_suppressed: bool, some row suppresses tokens.
        any_logprobs: bool, some row wants log-probabilities.
    """

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    presence: jax.Array
    frequency: jax.Array
    repetition: jax.Array
    key: jax.Array
    position: jax.Array
    suppress: jax.Array
    has_bias: jax.Array
    slot: jax.Array
    any_random: jax.Array
    any_truncated: jax.Array
    any_penalty: jax.Array
    any_suppressed: jax.Array
    any_logprobs: jax.Array
