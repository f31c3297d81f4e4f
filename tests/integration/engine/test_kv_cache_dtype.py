"""A KV cache in 8 bits: the tokens of a dense attention whose keys and values are rounded alike, however work is scheduled."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.cache.swap import SwapSpace
from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import build_engine
from jaxserve.executor.cache_arrays import describe_cache
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.indexer import Index
from jaxserve.models.latent_heads import LatentHeads
from jaxserve.sampling.params import MAX_LOGPROBS, SamplingParams
from pallas_kernels.rotate_and_write import rotate
from tests.golden.reading import TOLERANCE, check_greedy, forward, load, logits_of, read_golden
from tests.support.engine import run, silent
from tests.support.tiers import tiered

LENGTH = 40
GREEDY = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
LARGEST = {"fp8": 448.0, "int8": 127.0}


def build(directory: Any, kv_cache_dtype: str, devices: int = 1, **more: Any) -> Any:
    settings = {"model": str(directory), "dtype": "float32", "max_model_len": 160, "page_size": 8, "swap_space": 0.01}
    limits = {
        "max_num_seqs": 8,
        "before_ready": "fewest",
        "max_num_batched_tokens": 8,
        "tensor_parallel_size": devices,
        "late_compiles": "raise",
    }
    config = EngineConfig.from_settings({**settings, **limits, "kv_cache_dtype": kv_cache_dtype, **more})
    return build_engine(config, strict_length=True, clock=RealClock(), progress=silent)


def rounded(x: jax.Array, kind: str) -> jax.Array:
    """[T,K,D], each vector as 8 bits have it, with a scale in bfloat16."""
    scale = (jnp.abs(x).max(axis=-1, keepdims=True) / LARGEST[kind]).astype(jnp.bfloat16).astype(jnp.float32)
    scaled = x / scale
    numbers = jnp.round(scaled) if kind == "int8" else scaled.astype(jnp.float8_e4m3fn).astype(jnp.float32)
    return numbers * scale


def rounded_attend(
    kind: str,
    layer: int,
    q: Any,
    k: Any,
    v: Any,
    rope: Any,
    options: Any,
    sinks: Any,
    index: Index | None = None,
    heads: LatentHeads | None = None,
) -> jax.Array:
    if index is not None:
        index = index._replace(keys=rounded(k, kind)[:, 0, q.shape[2] :])
    if rope is not None:
        q, k = rotate(q, rope), rotate(k, rope)
    values = None if v is None else rounded(v, kind)
    return dense_attend(layer, q, rounded(k, kind), values, None, options, sinks, index, heads)


def check(directory: Any, kind: str, prompts: list[list[int]], tokens: list[list[int]]) -> None:
    oracle = forward(*load(directory), partial(rounded_attend, kind))
    for prompt, got in zip(prompts, tokens, strict=True):
        assert len(got) == LENGTH
        check_greedy(oracle, prompt, got)


@pytest.mark.parametrize(("kind", "devices"), tiered([("fp8", 1), ("fp8", 2), ("int8", 2)], {("fp8", 1), ("int8", 2)}))
def test_greedy_tokens(kind, devices):
    golden = read_golden("llama-tied")
    built = build(golden.directory, kind, devices)
    prompts = golden.prompts[:9]
    undisturbed = run(built, prompts, GREEDY)
    check(golden.directory, kind, prompts, undisturbed.tokens)

    mixed = run(built, prompts, GREEDY, num_pages=25, growth_reserve=0.0)  # few pages: sequences are computed again
    assert mixed.preemptions
    assert mixed.tokens == undisturbed.tokens

    swap = SwapSpace(60, 0.0)
    swapped = run(built, prompts, GREEDY, num_pages=25, growth_reserve=0.0, swap=swap)
    assert any(event.swapped for event in swapped.preemptions)
    assert swapped.tokens == undisturbed.tokens

    again = run(built, [*prompts, *prompts[::-1]], GREEDY)  # the second half finds its prompts in the prefix cache
    assert again.scheduler.cache.hit_tokens > 0
    assert again.tokens == [*undisturbed.tokens, *undisturbed.tokens[::-1]]

    # What is cached in one dtype is not found by an engine that is the same but for that.
    cache, prompt = again.scheduler.cache, max(prompts, key=len)
    namespace, dtypes = built.intake.rules.namespace, ("float8_e4m3fn", "int8", "float32")
    names = {dtype: replace(namespace, kv_dtype=describe_cache(dtype)) for dtype in dtypes}
    found = {dtype: cache.find(name.root(), prompt, []).num_tokens for dtype, name in names.items()}
    assert found.pop(built.report.kv_dtype) > 0
    assert list(found.values()) == [0, 0]


# With index keys, which are rounded too, or without.
@pytest.mark.parametrize("name", tiered(["deepseek-v2-lite", "deepseek-v32-sparse"], {"deepseek-v32-sparse"}))
def test_latents(name):
    golden = read_golden(name)
    prompts = golden.prompts[:4]
    check(golden.directory, "fp8", prompts, run(build(golden.directory, "fp8"), prompts, GREEDY).tokens)


def test_a_long_context_has_about_the_logits_of_bfloat16(tmp_path):
    """After 2000 tokens of a model with random weights: what the 20 likeliest tokens differ by, beside how far they are apart."""
    config = read_hf_config(read_golden("llama-tied").directory) | {"max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    prompt = np.random.default_rng(0).integers(3, config["vocab_size"], 2000).tolist()
    sizes: dict[str, Any] = {
        "load_format": "dummy",
        "max_model_len": 2048,
        "max_num_seqs": 1,
        "max_num_batched_tokens": 256,
        "swap_space": 0.0,
    }
    likeliest, asked = {}, SamplingParams(temperature=0.0, max_tokens=1, logprobs=MAX_LOGPROBS)
    for kind in ("bfloat16", *LARGEST):
        (update, *_), *_ = run(build(tmp_path, kind, **sizes), [prompt], asked).updates
        assert update.logprobs is not None
        likeliest[kind] = np.sort(update.logprobs.rows.top[0])
    apart = np.ptp(likeliest["bfloat16"])
    assert 0 < np.abs(likeliest["fp8"] - likeliest["bfloat16"]).max() < apart / 10
    assert 0 < np.abs(likeliest["int8"] - likeliest["bfloat16"]).max() < apart / 50


@pytest.mark.parametrize("kind", LARGEST)
def test_the_rounding_shows(kind):
    """Else the oracle would prove nothing: it has other logits than the checkpoint, and not by little."""
    golden = read_golden("llama-tied")
    prompt = golden.prompts[golden.full_prompt]
    logits = logits_of(forward(*load(golden.directory), partial(rounded_attend, kind)), prompt)
    assert np.abs(logits - golden.full).max() > 20 * TOLERANCE
