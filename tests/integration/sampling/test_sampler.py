"""The sampler against enumerated distributions and a plain numpy reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.sampling.options import STANDARD
from jaxserve.sampling.params import key_of_seed
from jaxserve.sampling.sampler import NO_TOKEN, sample
from jaxserve.sampling.state import SamplerState, empty_state, load_row, record_tokens
from jaxserve.sampling.truncation import kept_tokens
from jaxserve.sampling.variants import asking, variants_of
from jaxserve.sampling.vocabulary import Vocabulary

from .builders import make_batch, mask_words, penalized, probabilities

VOCAB = 40
DRAWS = 20_000


ASKING = asking(STANDARD)
STRAIGHT = variants_of(STANDARD, straight=True)


@partial(jax.jit, static_argnames="variant")
def run(logits, batch, state, masks=None, variant=ASKING):
    return sample(logits, batch, state, Vocabulary(logits.shape[1]), variant, masks=masks)


@partial(jax.jit, static_argnames=("variant", "vocab"))
def keep(deficit, batch, variant, vocab):
    return kept_tokens(deficit, batch, Vocabulary(vocab), variant)


load = jax.jit(load_row)
record = jax.jit(record_tokens, static_argnums=3)


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 0, scale: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * scale).astype(np.float32)


def draw(logits: np.ndarray, count: int = DRAWS, **params) -> np.ndarray:
    """Shares of the tokens among draws of one row at consecutive positions."""
    repeated = jnp.broadcast_to(jnp.asarray(logits)[None, :], (count, len(logits)))
    batch = make_batch(count, slots=0, positions=np.arange(count), **params)
    tokens = np.asarray(run(repeated, batch, empty_state(0, len(logits))))
    return np.bincount(tokens, minlength=len(logits)) / count


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"top_k": 7, "top_p": 0.8},
        {"top_k": 10, "top_p": 0.9, "min_p": 0.05, "temperature": 1.5},
        {"top_k": 1000},
        {"top_p": 1e-6},
        {"min_p": 1.0},
        {"top_n_sigma": 1.0},
        {"top_n_sigma": 0.5, "temperature": 2.0},
        {"typical_p": 0.5},
        {"typical_p": 1e-6},
        {"typical_p": 0.8, "top_k": 20, "top_p": 0.9, "temperature": 0.7},
    ],
    ids=str,
)
def test_distribution(params):
    logits = random_logits(1, seed=3)[0]
    want = probabilities(logits, **params)
    got = draw(logits, **params)
    assert (got[want == 0] == 0).all()
    kept = want > 0
    chi_square = DRAWS * ((got[kept] - want[kept]) ** 2 / want[kept]).sum()
    freedom = kept.sum() - 1
    # Five standard deviations of a chi-square distribution; seeds are fixed, so this never flickers.
    assert chi_square <= freedom + 5 * np.sqrt(2 * freedom) + 1e-9


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0, "bias": False},
        {"bias": False},
        {"temperature": [0.0, 1.0] * 4, "bias": False},
        {"top_k": [0, 3] * 4, "bias": False},
        {"top_p": [1.0, 0.7, 0.2, 1.0] * 2, "top_k": 9, "min_p": 0.01, "bias": False},
        {"temperature": [0.0, 1.0] * 4, "repetition": [1.0, 2.0, 1.0, 1.0] * 2, "frequency": 0.5},
        {"masked": [0, 1] * 4, "temperature": [0.0, 0.0, 1.0, 1.0] * 2, "bias": False},
        {"temperature": 0.0, "suppress": [[VOCAB - 1, -1, -1]] * 8, "bias": False},
        {"typical_p": [1.0, 0.5] * 4, "top_n_sigma": [0.0, 0.0, 1.0, 0.0] * 2, "bias": False},
    ],
    ids=str,
)
def test_every_variant_that_does_what_rows_need_chooses_the_same(params):
    rng = np.random.default_rng(1)
    state = SamplerState(
        jnp.asarray(rng.integers(0, 3, (9, VOCAB)), jnp.int32),
        jnp.asarray(rng.random((9, VOCAB)) < 0.3),
        jnp.asarray(rng.standard_normal((9, VOCAB)), jnp.float32),
    )
    masks = mask_words(rng.random((8, VOCAB)) < 0.3)
    tried = set[str]()
    for position in range(3):
        batch = make_batch(8, seeds=np.arange(8), positions=position, **params)
        logits = jnp.asarray(random_logits(8, seed=position))
        want = run(logits, batch, state, masks).tolist()
        needs = STANDARD.needed(np.asarray(batch.words), np.ones(8, np.bool_))
        able = [variant for variant in STRAIGHT if variant.needs >= needs]
        tried.update(variant.name for variant in able)
        for variant in able:
            assert run(logits, batch, state, masks, variant).tolist() == want, variant.name
    assert "general" in tried


def test_a_variant_is_chosen_for_each_need():
    cheapest = {need.name: next(variant.name for variant in STRAIGHT if need in variant.needs) for need in STANDARD.needs}
    assert cheapest == {
        "random": "random",
        "logprobs": "logprobs",
        "processed_logprobs": "processed",
        "truncation": "truncated",
        "rules": "general",
        **dict.fromkeys(("penalties", "bias", "suppression", "masking"), "penalized"),
    }
    assert STRAIGHT[0].needs == frozenset()
    assert STRAIGHT[-1].needs == frozenset(STANDARD.needs)


@pytest.mark.parametrize("variant", [ASKING, STRAIGHT[-1]], ids=["asking", "straight"])
def test_truncation_matches_sorting(variant):
    rng = np.random.default_rng(0)
    rows, vocab = 64, 97
    logits = random_logits(rows, vocab, seed=1, scale=3.0)
    logits[::4] = np.round(logits[::4])  # many ties
    top_k = rng.integers(0, vocab + 5, rows).astype(np.int32)
    top_p = np.where(rng.random(rows) < 0.3, 1.0, rng.uniform(0.01, 1.0, rows)).astype(np.float32)
    min_p = np.where(rng.random(rows) < 0.5, 0.0, rng.uniform(0.0, 0.3, rows)).astype(np.float32)
    top_n_sigma = np.where(rng.random(rows) < 0.5, 0.0, rng.uniform(0.1, 3.0, rows)).astype(np.float32)
    typical_p = np.where(rng.random(rows) < 0.5, 1.0, rng.uniform(0.01, 1.0, rows)).astype(np.float32)
    deficit = logits.max(axis=1, keepdims=True) - logits
    columns: dict[str, Any] = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "top_n_sigma": top_n_sigma, "typical_p": typical_p}
    batch = make_batch(rows, **columns)
    got = np.asarray(keep(jnp.asarray(deficit), batch, variant, vocab))
    for row in range(rows):
        want = probabilities(-deficit[row], **{name: values[row].item() for name, values in columns.items()}) > 0
        np.testing.assert_array_equal(got[row], want, err_msg=f"row {row}")


@pytest.mark.parametrize("variant", [ASKING, STRAIGHT[-1]], ids=["asking", "straight"])
def test_ties_are_cut_by_id(variant):
    def kept(deficit: list[float], **params) -> list[int]:
        """Of the first tokens of every row, behind which all are impossible."""
        rows = np.full((64, 97), 1e4, np.float32)
        rows[:, : len(deficit)] = deficit
        found = np.asarray(keep(rows, make_batch(64, **params), variant, 97))
        np.testing.assert_array_equal(found, found[:1].repeat(64, axis=0))
        return np.flatnonzero(found[0]).tolist()

    assert kept([1.0, 0.0, 1.0, 0.0, 1.0, 1.0], top_k=4) == [0, 1, 2, 3]
    assert kept([0.0] * 6, top_p=0.5) == [0, 1, 2]


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "general"])
def test_greedy_takes_the_lowest_of_equals(bias):
    logits = np.zeros((8, VOCAB), np.float32)
    logits[0, [7, 9]] = 3.0
    batch = make_batch(8, temperature=0.0, bias=bias)
    assert np.asarray(run(jnp.asarray(logits), batch, empty_state(8, VOCAB))).tolist() == [7, *[0] * 7]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0, "bias": False},
        {"temperature": 0.0},
        {"temperature": [0.0, 1.0] * 4},
        {"top_k": 3, "top_p": 0.9},
        {"min_p": 0.5},
        {"temperature": [0.0, 1.0] * 4, "repetition": 2.0, "frequency": 0.5},
        {"repetition": [1.0] * 7 + [2.0]},
        {"temperature": 0.0, "suppress": [[VOCAB - 1, -1, -1]] * 8},
    ],
    ids=str,
)
def test_a_row_without_valid_logits_has_no_token_and_its_neighbours_do_not_notice(params):
    logits = random_logits(8, seed=5)
    state = load(empty_state(8, VOCAB), np.int32(2), np.ones(VOCAB, np.int32), np.ones(VOCAB, bool), np.zeros(VOCAB, np.float32))
    clean = np.asarray(run(jnp.asarray(logits), make_batch(8, **params), state))
    bad = logits.copy()
    bad[0], bad[2, 0], bad[3, 17], bad[5, VOCAB - 2], bad[6, 1] = np.nan, np.nan, np.nan, np.nan, np.inf
    got = np.asarray(run(jnp.asarray(bad), make_batch(8, **params), state))
    assert got[[0, 2, 3, 5, 6]].tolist() == [NO_TOKEN] * 5
    assert got[[1, 4, 7]].tolist() == clean[[1, 4, 7]].tolist()
    assert ((clean >= 0) & (clean < VOCAB)).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_nan_in_a_wide_row_is_noticed(temperature):
    """Wide enough for XLA's vectorised maximum, which does not see NaN."""
    logits = random_logits(2, vocab=32_000)
    logits[0, 12_345] = np.nan
    got = np.asarray(run(jnp.asarray(logits), make_batch(2, temperature=temperature, top_k=1), empty_state(2, 32_000)))
    assert got.tolist() == [NO_TOKEN, logits[1].argmax()]


def test_a_suppressed_token_may_have_any_logit():
    logits = random_logits(8)
    logits[:2, 3] = [np.nan, np.inf]
    batch = make_batch(8, temperature=[0.0, 1.0] * 4, suppress=[[3, -1, -1]] * 8)
    got = np.asarray(run(jnp.asarray(logits), batch, empty_state(8, VOCAB)))
    assert got[0] == np.nanargmax(logits[0])
    assert got[1] not in (NO_TOKEN, 3)


def test_greedy_among_random_rows():
    logits = random_logits(8)
    temperature = np.where(np.arange(8) % 2 == 0, 0.0, 2.0)
    got = np.asarray(run(jnp.asarray(logits), make_batch(8, temperature=temperature), empty_state(8, VOCAB)))
    assert (got[::2] == logits[::2].argmax(axis=1)).all()


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 1e-6}], ids=str)
def test_narrow_sampling_equals_greedy(params):
    logits = random_logits(64)
    got = run(jnp.asarray(logits), make_batch(64, positions=np.arange(64), **params), empty_state(64, VOCAB))
    np.testing.assert_array_equal(np.asarray(got), logits.argmax(axis=1))


def test_top_k_one_with_ties_equals_greedy():
    got = run(jnp.zeros((64, VOCAB)), make_batch(64, positions=np.arange(64), top_k=1), empty_state(64, VOCAB))
    assert (np.asarray(got) == 0).all()


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"repetition": 2.0}, {"temperature": 0.01}], ids=str)
def test_huge_logits(params):
    logits = np.full((8, VOCAB), -3e38, np.float32)
    logits[0, 5] = 3e38
    logits[1, [5, 6]] = 3e38
    logits[2, 5] = -np.inf
    logits[3] = -np.inf
    state = load(empty_state(8, VOCAB), np.int32(0), np.ones(VOCAB, np.int32), np.ones(VOCAB, bool), np.zeros(VOCAB, np.float32))
    got = np.asarray(run(jnp.asarray(logits), make_batch(8, **params), state))
    assert got[0] == 5
    assert got[1] in (5, 6)
    assert got[2] != 5
    assert ((got >= 0) & (got < VOCAB)).all()


def test_a_row_does_not_depend_on_its_neighbours():
    logits = random_logits(16)
    params: dict[str, Any] = {
        "temperature": np.linspace(0.0, 2.0, 16),
        "top_k": np.arange(16),
        "top_p": np.linspace(0.5, 1.0, 16),
        "seeds": np.arange(16) + 5,
        "positions": np.arange(16) * 3,
    }

    def chosen(rows: np.ndarray) -> np.ndarray:
        """Of eight rows at a time."""
        parts = [rows[:8], rows[8:]]
        batches = [make_batch(8, **{name: values[part] for name, values in params.items()}) for part in parts]
        runs = [run(logits[part], batch, empty_state(8, VOCAB)) for part, batch in zip(parts, batches, strict=True)]
        return np.concatenate(runs)

    together = chosen(np.arange(16))
    for row in range(16):
        alone = make_batch(1, slots=0, **{name: values[row] for name, values in params.items()})
        assert np.asarray(run(jnp.asarray(logits[row : row + 1]), alone, empty_state(0, VOCAB)))[0] == together[row]
    order = np.random.default_rng(0).permutation(16)
    np.testing.assert_array_equal(chosen(order), together[order])


def test_seeds_and_positions_differ():
    logits, many = np.zeros((DRAWS, VOCAB), np.float32), np.arange(DRAWS)
    state = empty_state(0, VOCAB)
    by_seed = np.asarray(run(logits, make_batch(DRAWS, slots=0, seeds=many), state))
    by_position = np.asarray(run(logits, make_batch(DRAWS, slots=0, positions=many), state))
    assert len(set(by_seed.tolist())) > 30
    assert len(set(by_position.tolist())) > 30
    assert (by_seed == by_position).mean() < 0.2


@pytest.mark.parametrize("seed", [0, 42, 2**31 - 1])
def test_key_of_seed_is_the_threefry_key(seed):
    key = np.asarray(jax.random.key_data(jax.random.key(seed, impl="threefry2x32")))
    assert tuple(key.tolist()) == key_of_seed(seed)


def test_key_of_seed_uses_all_bits():
    assert len({key_of_seed(seed) for seed in (0, 1, -1, 2**32, 2**64 - 2, -(2**63))}) == 6


def test_suppressed_tokens_are_never_chosen():
    logits = np.zeros((8, VOCAB), np.float32)
    logits[:, 3] = 50.0
    logits[:, VOCAB - 1] = 40.0
    suppress = [[-1, -1, -1], [3, -1, -1], [3, VOCAB - 1, -1], [VOCAB - 1, -1, 0]] * 2
    got = np.asarray(run(jnp.asarray(logits), make_batch(8, temperature=0.0, suppress=suppress), empty_state(8, VOCAB)))
    assert got.tolist() == [3, VOCAB - 1, 0, 3] * 2


def test_bias_and_allowed_tokens():
    bias = np.full(VOCAB, -np.inf, np.float32)
    bias[[4, 8]] = [0.0, np.log(3.0)]
    zeros = np.zeros(VOCAB, np.int32)
    state = load(empty_state(0, VOCAB), np.int32(0), zeros, zeros > 0, bias)
    batch = make_batch(DRAWS, slots=0, positions=np.arange(DRAWS))
    tokens = np.asarray(run(np.zeros((DRAWS, VOCAB), np.float32), batch, state))
    assert set(tokens.tolist()) == {4, 8}
    assert (tokens == 8).mean() == pytest.approx(0.75, abs=0.02)


def test_a_bias_left_in_a_slot_touches_no_row_without_one():
    bias = np.zeros(VOCAB, np.float32)
    bias[4] = 50.0
    zeros, state = np.zeros(VOCAB, np.int32), empty_state(8, VOCAB)
    for slot in range(8):
        state = load(state, np.int32(slot), zeros, zeros > 0, bias)
    batch = make_batch(8, temperature=0.0, bias=[False, True] * 4)
    logits = np.zeros((8, VOCAB), np.float32)
    logits[:, 7] = 1.0
    assert np.asarray(run(logits, batch, state)).tolist() == [7, 4] * 4


@pytest.mark.parametrize(("presence", "frequency", "repetition"), [(1.5, 0, 1), (0, 0.7, 1), (0, 0, 1.3), (1, 0.5, 2)])
def test_greedy_generation_with_penalties(presence, frequency, repetition):
    rows, steps = 8, 25
    logits = random_logits(rows, seed=9)
    prompts = [[1, 2, 3], [int(logits[1].argmax())], *[[]] * 6]
    state = empty_state(rows, VOCAB)
    for row, prompt in enumerate(prompts):
        seen = np.isin(np.arange(VOCAB), prompt)
        state = load(state, np.int32(row), np.zeros(VOCAB, np.int32), seen, np.zeros(VOCAB, np.float32))
    batch = make_batch(rows, temperature=0.0, presence=presence, frequency=frequency, repetition=repetition)
    outputs: list[list[int]] = [[] for _ in range(rows)]
    for _ in range(steps):
        tokens = run(jnp.asarray(logits), batch, state)
        state = record(state, batch.slot, tokens, Vocabulary(VOCAB))
        for row, token in enumerate(np.asarray(tokens).tolist()):
            want = penalized(logits[row], outputs[row], prompts[row], presence, frequency, repetition)
            assert token == int(want.argmax())
            outputs[row].append(token)


@pytest.mark.parametrize("params", [{}, {"top_k": 5}, {"top_p": 0.7, "temperature": 2.0}, {"typical_p": 0.5}], ids=str)
def test_what_a_mask_forbids_is_as_if_it_were_not_there(params):
    logits, allowed = random_logits(1)[0], np.random.default_rng(3).random(VOCAB) < 0.3
    repeated = jnp.broadcast_to(jnp.asarray(logits)[None], (DRAWS, VOCAB))
    batch = make_batch(DRAWS, slots=0, positions=np.arange(DRAWS), masked=1, **params)
    words = jnp.broadcast_to(mask_words(allowed[None]), (DRAWS, 2))
    tokens = np.asarray(run(repeated, batch, empty_state(0, VOCAB), words))
    shares = np.bincount(tokens, minlength=VOCAB) / DRAWS
    wanted = np.zeros(VOCAB)
    wanted[allowed] = probabilities(logits[allowed], **params)
    np.testing.assert_allclose(shares, wanted, atol=0.015)
    assert not shares[~allowed].any()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masks_are_for_masked_rows_alone(temperature):
    """The others have masks of nothing, and choose as they would; a masked row may have bits 31 and 32, where words meet."""
    logits, rows = random_logits(8), np.arange(8)
    allowed = np.zeros((8, VOCAB), np.bool_)
    allowed[1, 31] = allowed[3, 32] = True
    chosen = {"temperature": temperature, "positions": rows}
    free = np.asarray(run(logits, make_batch(8, **chosen), empty_state(8, VOCAB)))
    only = make_batch(8, **chosen, masked=[0, 1, 0, 1, *[0] * 4])
    masked = np.asarray(run(logits, only, empty_state(8, VOCAB), mask_words(allowed)))
    assert masked.tolist() == [free[0], 31, free[2], 32, *free[4:]]
