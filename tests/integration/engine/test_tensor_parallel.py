"""Devices that share every layer, the KV cache and the vocabulary choose the tokens that one device chooses."""

import math
from typing import Any

import jax
import numpy as np
import pytest

from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import build_engine
from jaxserve.models.binding import abstract_params, param_shardings
from jaxserve.models.registry import decoder_config
from jaxserve.sampling.params import SamplingParams
from sharding import make_mesh
from tests.support import hlo
from tests.support.engine import run, silent
from tests.support.families import VOCAB, hf_config, write_config
from tests.support.tiers import tiered

LAYERS, HIDDEN, ROWS, SLOTS, PAGE, HEAD_DIM = 2, 32, 2, 3, 8, 8
PROMPTS = [[1, 2, 3, 4, 5], [300, 7], [42], [9, 8, 7, 6, 5, 4, 3], [10, 11], [12, 13, 14]]
LENGTH: dict[str, Any] = {"max_tokens": 16, "ignore_eos": True, "logprobs": 5}
PARAMS = [
    SamplingParams(temperature=0.0, prompt_logprobs=2, **LENGTH),
    SamplingParams(temperature=1.0, seed=1, **LENGTH),
    SamplingParams(temperature=1.0, seed=2, top_p=0.8, **LENGTH),
    SamplingParams(temperature=1.5, seed=3, top_k=20, min_p=0.01, **LENGTH),
    SamplingParams(temperature=0.8, seed=4, repetition_penalty=1.3, frequency_penalty=0.5, **LENGTH),
    SamplingParams(temperature=1.0, seed=5, logit_bias={300: 4.0, 5: -100.0}, min_tokens=4, **LENGTH),
]


GROUPS = {"deepseek_v2": 2}  # of the devices, which share the experts


def built(directory, tensor, groups=1):
    config = EngineConfig.from_settings(
        {
            "model": str(directory),
            "load_format": "dummy",
            "dtype": "float32",
            "max_model_len": 40,
            "page_size": PAGE,
            "num_pages": 40,  # larger than any block of keys that attention gathers
            "max_num_seqs": ROWS,
            "max_num_batched_tokens": 4,
            "tensor_parallel_size": tensor,
            "expert_parallel_size": groups,
        }
    )
    return build_engine(config, strict_length=True, clock=RealClock(), progress=silent)


def scores(result):
    """All log-probabilities of the generated tokens and of the first prompt's, as one array, and all ids beside them."""
    updates = [update for updates in result.updates for update in updates]
    rows = [update.logprobs.rows for update in updates if update.logprobs is not None]
    rows += [update.prompt_logprobs.rows for update in updates if update.prompt_logprobs is not None]
    numbers = [np.concatenate([row.chosen.ravel(), row.top.ravel()]) for row in rows]
    ids = [np.concatenate([row.rank.ravel(), row.top_ids.ravel()]) for row in rows]
    return np.concatenate(numbers), np.concatenate(ids)


CASES = {"llama": (2, 8), "mistral": (8,), "qwen2": (8,), "qwen3": (4,), "deepseek_v2": (8,), "deepseek_v32": (2,)}


# Heads shared and repeated, latents beside experts, an indexer. tests/golden/test_golden.py divides windows, biases and norms.
CORE = {"llama", "deepseek_v2", "deepseek_v32"}


@pytest.mark.parametrize("family", tiered(CASES, CORE))
def test_the_same_tokens(family, tmp_path):
    directory = write_config(tmp_path, family)
    one = run(built(directory, 1), PROMPTS, PARAMS)
    assert len({token for tokens in one.tokens for token in tokens}) > 30, "varied"
    for tensor in CASES[family]:
        engine = built(directory, tensor, GROUPS.get(family, 1))
        several = run(engine, PROMPTS, PARAMS)
        assert several.tokens == one.tokens
        for got, want in zip(scores(several), scores(one), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)
        check_programs(engine, family, tensor)
        check_memory(engine, family, tensor)


def check_programs(engine, family, tensor):
    """What every compiled program exchanges, copies and updates in place."""
    decoder = decoder_config(hf_config(family))
    executor = engine.core.executor
    *steps, copy_pages = executor.program_texts()
    assert hlo.collectives(copy_pages) == []
    seen = []
    for text in steps:
        always = hlo.every_step(text)
        tokens = always[0][1][0][0]
        assert always == [("all-reduce", [(tokens, HIDDEN)])] * (2 * LAYERS + 1)
        seen.append(tokens)
        assert hlo.collectives(text) == always
        assert "input_output_alias" in text
        pages = executor.capabilities().num_pages
        cache = LAYERS * pages * PAGE * token_numbers(decoder, tensor)
        copied = hlo.copies(text)
        assert max(map(math.prod, copied), default=0) < cache
        assert not {hlo.unordered((SLOTS, math.ceil(VOCAB / tensor))), *matrices(decoder, tensor, GROUPS.get(family, 1))} & set(
            copied
        )
    assert sorted(seen) == sorted(bucket.tokens for bucket in executor.grid.buckets)
    for (_, variant), text in executor.choice_texts().items():
        # A straight line, whatever rows need; for the likeliest tokens, 20 numbers a row and device.
        assert hlo.collectives(text) == hlo.every_step(text) != []
        assert " conditional(" not in text
        assert len(hlo.collectives(text)) == 1 or variant != "greedy"
        assert hlo.largest_exchange(text) <= ROWS * max(20 * tensor, 32)
        assert "input_output_alias" in text
        tables = hlo.unordered((SLOTS, math.ceil(VOCAB / tensor)))
        assert tables not in hlo.copies(text)


def matrices(decoder, tensor, groups):
    """Shapes of the matrices on one device."""
    shardings = param_shardings(decoder, make_mesh(tensor // groups, expert=groups))
    leaves = jax.tree_util.tree_leaves_with_path(abstract_params(decoder, "float32", tensor))
    parts = [shardings[tuple(key.key for key in path)].shard_shape(leaf.shape) for path, leaf in leaves]
    return {shape for shape in map(hlo.unordered, parts) if len(shape) > 1}


def token_numbers(decoder, tensor):
    """Numbers that one device caches of a token in a layer: its share of the heads, one at least; all of a latent."""
    if decoder.latent is not None:
        return decoder.latent.cached
    return 2 * max(decoder.num_kv_heads // tensor, 1) * HEAD_DIM


def check_memory(engine, family, tensor):
    """A device holds no more of the cache than it works on."""
    memory = engine.report.memory
    numbers = token_numbers(decoder_config(hf_config(family)), tensor)
    assert memory.kv_cache == (memory.kv_tokens + PAGE) * LAYERS * numbers * 4
