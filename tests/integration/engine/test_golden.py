"""The engine gives transformers' tokens and log-probabilities for every golden checkpoint, however the work is scheduled."""

import math
import re

import numpy as np
import pytest

from jaxserve.config.windows import most_pages
from jaxserve.executor.local import LocalExecutor
from jaxserve.sampling.params import MAX_LOGPROBS, SamplingParams
from tests.golden.reading import NAMES, TOLERANCE, read_golden
from tests.support.engine import build, run
from tests.support.tiers import tiered

LENGTH = 64
STEP = 8  # rows, and tokens: chunks of prompts and decodes have one step shape, which is compiled once
GREEDY = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True, logprobs=MAX_LOGPROBS)


# One of each part that the engine schedules, stores or computes its own way: groups of heads, windows (of all layers, of
# some, of chunks), soft caps, sinks, shared keys and per-layer inputs, experts (of all layers, of some), quantized matrices,
# latents, indexers (one a layer, shared), delta rules, Mamba-2, short convolutions.
CORE = {
    *("llama-tied", "qwen2-gqa7", "mistral-window", "gemma2-caps", "gemma3-local", "gemma4-shared"),
    *("gpt-oss-window", "qwen3-moe-some", "llama-w4a16", "qwen3-fp8", "llama4-chunks"),
    *("deepseek-v3-groups", "deepseek-v32-sparse", "glm5-shared"),
    *("qwen3-next-experts", "granite4-dense", "nemotron-h-latent", "lfm2-experts"),
}
# Of those, in steps of every shape: plain layers, windows beside experts, and recurrent states.
EVERY_SHAPE = {"llama-tied", "gpt-oss-window", "qwen3-next-experts"}


@pytest.mark.parametrize("name", tiered(NAMES, CORE))
def test_greedy_tokens(name):
    golden = read_golden(name)
    every_shape = name in EVERY_SHAPE
    step = 3 * STEP if every_shape else STEP
    built = build(golden.directory, max_num_seqs=8, max_num_batched_tokens=step, max_model_len=160, every_shape=every_shape)
    prompts, wanted = golden.prompts, [list(tokens) for tokens in golden.greedy]

    # 17 requests, prompts in chunks of `step` tokens at most, and 8 rows have the pages of two: where all layers have windows,
    # those are fewer than the longest sequence would fill.
    windows = built.core.executor.capabilities().windows
    num_pages = 1 + 2 * sum(most_pages(window, 160, 8, step) for window in windows)
    mixed = run(built, prompts, GREEDY, num_pages=num_pages, growth_reserve=0.0 if any(windows) else 1.0)
    assert mixed.tokens == wanted
    assert mixed.scheduler.num_preemptions > 0 or min(map(len, prompts)) > 1  # rows that all grow long are let in one by one
    check_logprobs(mixed, golden)

    few, theirs = prompts[::2], wanted[::2]
    again = run(built, [*few, *few[::-1]], GREEDY)  # the second half finds its prompts in the prefix cache
    assert again.tokens == theirs + theirs[::-1]
    assert again.scheduler.cache.hit_tokens > 0
    assert again.scheduler.num_preemptions == 0

    assert run(built, prompts[-1:], GREEDY).tokens == wanted[-1:]


def check_logprobs(mixed, golden):
    for updates, last in zip(mixed.updates, golden.last, strict=True):
        rows, index = updates[0].logprobs.rows, 0
        reference = last.astype(np.float64) - np.logaddexp.reduce(last.astype(np.float64))
        order = np.argsort(-reference, kind="stable")[:MAX_LOGPROBS]
        np.testing.assert_allclose(rows.top[index], reference[order], atol=TOLERANCE, rtol=0)
        assert rows.rank[index] == 1
        np.testing.assert_allclose(rows.chosen[index], reference.max(), atol=TOLERANCE, rtol=0)


DIVIDED = [("llama-tied", 2), ("gemma4-keys", 4), ("gemma4-shared", 2), ("deepseek-v32-sparse", 2)]


# Layers that differ in their heads, and latents with index keys; test_tensor_parallel.py has layers that are all alike.
@pytest.mark.parametrize(("name", "devices"), tiered(DIVIDED, {("gemma4-keys", 4), ("deepseek-v32-sparse", 2)}))
def test_tensor_parallel(name, devices):
    """Devices that share every layer, KV cache and vocabulary give the same tokens; also where layers differ in their heads."""
    golden = read_golden(name)
    built = build(golden.directory, max_num_seqs=8, max_num_batched_tokens=STEP, max_model_len=160, tensor_parallel_size=devices)
    num_pages = 1 + 40 * len(built.core.executor.capabilities().windows)
    assert run(built, golden.prompts, GREEDY, num_pages=num_pages).tokens == [list(tokens) for tokens in golden.greedy]
    assert isinstance(built.core.executor, LocalExecutor)
    for text in built.core.executor.program_texts():
        gathered = re.findall(r"= \(?\w+\[([\d,]+)\]\S* all-gather", text)
        sizes = [math.prod(map(int, shape.split(","))) for shape in gathered]
        cache = built.report.memory.kv_cache // 4
        assert all(size < cache // 8 for size in sizes), "a step gathers the cache"


LATENTS = [("deepseek-v2-lite", 1), ("deepseek-v3-groups", 2), ("glm4-lite", 1)]


# Queries of the hidden states on one device, queries of latents on two.
@pytest.mark.parametrize(("name", "devices"), tiered(LATENTS, {("deepseek-v2-lite", 1), ("deepseek-v3-groups", 2)}))
def test_long_prompts_over_latents(name, devices):
    """Prompts of so many tokens that keys and values are made of their latents, alone and beside short ones and decodes."""
    golden, ends = read_golden(name), 6
    prompts = [prompt + tokens[:-ends] for prompt, tokens in zip(golden.prompts, golden.greedy, strict=True)]
    wanted = [list(tokens[-ends:]) for tokens in golden.greedy]
    prompts += golden.prompts[:4]
    wanted += [list(tokens[:ends]) for tokens in golden.greedy[:4]]
    built = build(golden.directory, max_num_seqs=8, max_num_batched_tokens=160, max_model_len=160, tensor_parallel_size=devices)
    params = SamplingParams(temperature=0.0, max_tokens=ends, ignore_eos=True)
    assert run(built, prompts, params).tokens == wanted
    few, theirs = prompts[::2], wanted[::2]
    again = run(built, [*few, *few[::-1]], params)  # the second half behind what the prefix cache has
    assert again.tokens == theirs + theirs[::-1]
    assert again.scheduler.cache.hit_tokens > 0
    assert isinstance(built.core.executor, LocalExecutor)
    workspace = f"f32[1,41,2,{4 // devices},8,32]"  # the null page, those of the longest row, and of a step's tokens
    assert any(workspace in text for text in built.core.executor.program_texts()), "no step makes keys and values"
