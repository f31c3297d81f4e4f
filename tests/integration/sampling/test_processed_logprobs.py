"""Log-probabilities of what tokens were drawn by, against distributions enumerated in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxserve.sampling.logprobs import token_logprobs
from jaxserve.sampling.options import PROCESSED, STANDARD
from jaxserve.sampling.sampler import Reading, sample_and_read
from jaxserve.sampling.state import SamplerState
from jaxserve.sampling.variants import asking, variants_of
from jaxserve.sampling.vocabulary import Vocabulary
from sharding import TENSOR, make_mesh

from .builders import make_batch, mask_words, penalized, probabilities

ROWS, VOCAB, TOP = 8, 50, 4
STRAIGHT = variants_of(STANDARD, straight=True)
ABLE = [asking(STANDARD), *(variant for variant in STRAIGHT if PROCESSED in variant.needs)]
COMBINATIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 2.5},
    {"temperature": 0.0},
    {"temperature": [0.0, 1.0, 0.3, 4.0] * 2},
    {"top_k": 5, "temperature": 0.8},
    {"top_k": 1},
    {"top_p": 0.7},
    {"min_p": 0.1, "temperature": 1.5},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
    {"top_n_sigma": 1.0},
    {"typical_p": 0.6},
    {"presence": 0.7, "frequency": 0.3, "repetition": 1.4},
    {"presence": -0.7, "repetition": 0.8, "temperature": 0.0},
    {"presence": 0.5, "repetition": 1.2, "temperature": 0.7, "top_k": 12, "top_p": 0.8, "min_p": 0.01},
    {"bias": True},
    {"bias": True, "temperature": 0.0},
    {"bias": True, "masked": 1, "top_p": 0.9, "frequency": 0.4},
    {"masked": [0, 1] * 4, "temperature": [0.0, 0.0, 1.0, 1.0] * 2},
    {"suppress": [[3, 7, -1]] * ROWS, "temperature": 0.5},
]


def words_of(vocabulary, scores, tokens):
    chosen, rank, ids, top = token_logprobs(scores, tokens, TOP, vocabulary)
    floats = jax.lax.bitcast_convert_type(jnp.concatenate([chosen[:, None], top], axis=1), jnp.int32)
    return jnp.concatenate([rank[:, None], ids, floats], axis=1)


def choose(vocabulary, variant, logits, batch, state, masks):
    reading = Reading(2 + 2 * TOP, partial(words_of, vocabulary))
    return sample_and_read(logits, batch, state, vocabulary, variant, reading, masks=masks)


alone = partial(jax.jit, static_argnums=0)(partial(choose, Vocabulary(VOCAB)))


def the_state(rng: np.random.Generator) -> SamplerState:
    bias = np.where(rng.random((ROWS + 1, VOCAB)) < 0.2, -np.inf, rng.standard_normal((ROWS + 1, VOCAB)))
    counts, in_prompt = rng.integers(0, 3, (ROWS + 1, VOCAB)).astype(np.int32), rng.random((ROWS + 1, VOCAB)) < 0.3
    return SamplerState(counts, in_prompt, bias.astype(np.float32))  # type: ignore[arg-type]  # arrays all the same


def oracle(logits: np.ndarray, state: SamplerState, allowed: np.ndarray, row: int, params: dict[str, Any]) -> np.ndarray:
    """The probabilities f64[V] that a row's token is drawn by; of a greedy row those of temperature 1, not truncated."""
    of_row = {name: value[row] if isinstance(value, list) else value for name, value in params.items()}
    counts, prompt = np.asarray(state.output_counts[row]), np.flatnonzero(np.asarray(state.in_prompt[row])).tolist()
    penalties = [of_row.pop(name, neutral) for name, neutral in (("presence", 0.0), ("frequency", 0.0), ("repetition", 1.0))]
    scores = penalized(logits, np.repeat(np.arange(VOCAB), counts).tolist(), prompt, *penalties)
    if of_row.pop("bias", False):
        scores += np.asarray(state.bias[row], np.float64)
    for token in of_row.pop("suppress", []):
        scores[token if token >= 0 else slice(0)] = -np.inf
    if of_row.pop("masked", 0):
        scores[~allowed] = -np.inf
    return probabilities(scores) if of_row.get("temperature") == 0.0 else probabilities(scores, **of_row)


@pytest.mark.parametrize("params", COMBINATIONS, ids=str)
def test_they_are_those_of_the_distribution_that_was_drawn_from(params):
    rng = np.random.default_rng(5)
    state, allowed = the_state(rng), rng.random((ROWS, VOCAB)) < 0.4
    needs = None
    for position in range(4):
        logits = (rng.standard_normal((ROWS, VOCAB)) * 2).astype(np.float32)
        batch = make_batch(ROWS, seeds=np.arange(ROWS), positions=position, num_processed=TOP, **{"bias": False, **params})
        needs = STANDARD.needed(np.asarray(batch.words), np.ones(ROWS, np.bool_))
        for variant in (variant for variant in ABLE if variant.needs >= needs):
            tokens, words = map(np.asarray, alone(variant, jnp.asarray(logits), batch, state, mask_words(allowed)))
            rank, ids = words[:, 0], words[:, 1 : 1 + TOP]
            floats = words[:, 1 + TOP :].view(np.float32)
            for row in range(ROWS):
                with np.errstate(divide="ignore"):
                    want = np.log(oracle(logits[row], state, allowed[row], row, dict(params)))
                token = tokens[row]
                assert np.isfinite(floats[row, 0])
                np.testing.assert_allclose(floats[row, 0], want[token], rtol=1e-5, atol=1e-5)
                assert rank[row] == 1 + (want > want[token]).sum()
                finite = floats[row, 1:] > -np.inf
                assert finite.sum() == min(TOP, (want > -np.inf).sum())
                np.testing.assert_allclose(floats[row, 1:], np.sort(want)[::-1][:TOP], rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(want[ids[row][finite]], floats[row, 1:][finite], rtol=1e-5, atol=1e-5)
    assert needs is not None
    assert PROCESSED in needs


def test_eight_devices_tell_the_same():
    devices, columns = 8, -(-VOCAB // 8)
    rng = np.random.default_rng(6)
    state, variant = the_state(rng), STRAIGHT[-1]
    logits = (rng.standard_normal((ROWS, VOCAB)) * 2).astype(np.float32)
    batch = make_batch(ROWS, seeds=np.arange(ROWS), num_processed=TOP, presence=0.5, top_p=0.8, top_k=20, temperature=0.7)
    masks = mask_words(np.ones((ROWS, devices * columns + 32), np.bool_))

    def padded(values: Any, fill: float = 0) -> Any:
        return jnp.asarray(np.pad(values, ((0, 0), (0, devices * columns - VOCAB)), constant_values=fill))

    by_vocab, everywhere = PartitionSpec(None, TENSOR), PartitionSpec()
    eight = jax.jit(
        jax.shard_map(
            partial(choose, Vocabulary(VOCAB, TENSOR), variant),
            mesh=make_mesh(devices),
            in_specs=(by_vocab, everywhere, by_vocab, everywhere),
            out_specs=everywhere,
            check_vma=False,
        )
    )
    tokens, words = alone(variant, jnp.asarray(logits), batch, state, masks)
    others, other_words = eight(padded(logits, -np.inf), batch, jax.tree.map(padded, state), masks)
    np.testing.assert_array_equal(tokens, others)
    np.testing.assert_array_equal(words[:, : 1 + TOP], other_words[:, : 1 + TOP])
    floats, other_floats = (np.asarray(each)[:, 1 + TOP :].view(np.float32) for each in (words, other_words))
    np.testing.assert_allclose(floats, other_floats, rtol=1e-5, atol=1e-5)


def test_nothing_is_read_where_no_row_asks():
    rng = np.random.default_rng(7)
    logits = jnp.asarray(rng.standard_normal((ROWS, VOCAB)), jnp.float32)
    masks = mask_words(np.ones((ROWS, VOCAB), np.bool_))
    _, words = alone(ABLE[0], logits, make_batch(ROWS, temperature=0.7, bias=False), the_state(rng), masks)
    assert not np.asarray(words).any()
