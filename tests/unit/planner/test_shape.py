"""Counting weights, KV values and attention of dense, expert and latent-attention models."""

from dataclasses import replace

import pytest

from jaxserve.planner import catalogue
from jaxserve.planner.shape import ModelShape

# Billions as published: model cards and papers, all weights and (for experts) those active for a token.
PUBLISHED = {
    "llama-2-7b": 6.74,
    "llama-2-70b": 68.98,
    "llama-3-8b": 8.03,
    "llama-3-70b": 70.55,
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.55,
    "llama-3.1-405b": 405.85,
    "mistral-7b": 7.24,
    "qwen2.5-7b": 7.62,
    "qwen2.5-72b": 72.71,
    "qwen3-8b": 8.19,
    "qwen3-32b": 32.76,
    "qwen3-moe": 30.53,
    "qwen3-235b-a22b": 235.09,
    "mixtral-8x7b": 46.70,
    "deepseek-v3": 671.03,
    "gpt-oss-120b": 116.83,
    "qwen3-next-80b-a3b": 79.67,  # 81.3 with its module for multi-token prediction
}
ACTIVE = {"qwen3-moe": 3.0, "qwen3-235b-a22b": 22, "mixtral-8x7b": 12.9, "deepseek-v3": 37, "gpt-oss-120b": 5.1}


def test_every_named_shape_has_a_published_size() -> None:
    assert set(PUBLISHED) == set(catalogue.model_names())


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name: str) -> None:
    assert catalogue.model(name).num_parameters / 1e9 == pytest.approx(PUBLISHED[name], abs=0.006)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_those_published(name: str) -> None:
    assert catalogue.model(name).num_active / 1e9 == pytest.approx(ACTIVE[name], rel=0.02)


def test_a_tied_table_is_counted_once_and_multiplied() -> None:
    loose = catalogue.model("llama-3-8b")
    tied = replace(loose, tie_embeddings=True)
    assert loose.num_parameters - tied.num_parameters == 128256 * 4096
    assert tied.num_active == loose.num_active


def test_a_latent_is_whole_on_every_device() -> None:
    shape = catalogue.model("deepseek-v3")
    assert shape.kv_values() == shape.kv_values(8) == 512 + 64


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_kv_heads_are_split_and_then_copied(tp: int, heads: int) -> None:
    assert catalogue.model("llama-3-70b").kv_values(tp) == 2 * heads * 128


def test_keys_and_values_are_copied_with_their_heads() -> None:
    shape = catalogue.model("qwen3-235b-a22b")  # 4 KV heads
    part = next(part for part in shape.parts if part.name == "keys and values")
    assert part.on_device(8) == part.count / 4


def brute_force(shape: ModelShape, prompt: int) -> int:
    return sum(min(token + 1, window or prompt) for window in shape.windows for token in range(prompt))


@pytest.mark.parametrize("windows", [(None,), (7,), (None, 7, 100)])
@pytest.mark.parametrize("prompt", [1, 6, 7, 8, 50])
def test_positions_seen_by_a_prompt(windows: tuple[int | None, ...], prompt: int) -> None:
    shape = replace(catalogue.model("llama-3-8b"), windows=windows)
    assert shape.seen_by_all(prompt) == brute_force(shape, prompt)


def test_positions_seen_stop_at_the_window() -> None:
    shape = catalogue.model("mistral-7b")
    assert shape.seen(1000) == 32 * 1000
    assert shape.seen(30000) == 32 * 4096


def test_experts_touched_grow_from_the_active_to_all() -> None:
    shape = catalogue.model("mixtral-8x7b")
    part = next(part for part in shape.parts if part.use == "routed")
    assert shape.touched(part, 1) == pytest.approx(2 / 8)
    assert shape.touched(part, 2) == pytest.approx(1 - 0.75**2)
    assert shape.touched(part, 200) == pytest.approx(1)


def test_attention_flops() -> None:
    assert catalogue.model("llama-3-70b").attention_flops(decode=True) == 4 * 64 * 128
    latent = catalogue.model("deepseek-v3")
    assert latent.attention_flops(decode=True) == 2 * 128 * (512 + 64 + 512)
    assert latent.attention_flops(decode=False) == 2 * 128 * (128 + 64 + 128)
