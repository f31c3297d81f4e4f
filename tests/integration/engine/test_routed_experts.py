"""Which experts tokens visited, against a plain forward pass of the same sequence, whatever became of its pages."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve import LLM, RequestOutput, SamplingParams
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.local import LocalEngine
from jaxserve.engine.remote.model import model_engine
from jaxserve.errors import ConfigError
from jaxserve.models.binding import Params, bind
from jaxserve.models.config import DecoderConfig
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.experts import dispatch_all
from tests.support.families import hf_config
from tests.support.live import on_devices, random_tensors
from tests.support.rollouts import PROMPTS, SETTINGS, engine

WINDOWS = {
    **hf_config("qwen2_moe"),
    "use_sliding_window": True,
    "sliding_window": 6,
    "max_window_layers": 1,
    "mlp_only_layers": [],
}
CONFIGS = {"shared": hf_config("qwen2_moe"), "latent": hf_config("deepseek_v2"), "windows": WINDOWS}
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
ASKED = "enable_return_routed_experts"
LONGEST = 36


def visited(llm: LLM, tokens: list[int]) -> np.ndarray[Any, Any]:
    """int32[T,layers,active], layer after layer, without pages or batches."""
    executor: Any = llm._built.core.executor
    padded = np.zeros(LONGEST, np.int32)  # one shape for all sequences; attention is causal, so padding changes nothing
    padded[: len(tokens)] = tokens
    return np.stack(plain_forward(executor._layout.config, executor.weights.tree, padded), axis=1)[: len(tokens)]


@partial(jax.jit, static_argnums=0)
def plain_forward(config: DecoderConfig, params: Params, tokens: jax.Array) -> list[jax.Array]:
    """The experts of each layer."""
    layers = []

    def dispatch(layer: int, routed_tokens: Any, weights: Any, activate: Any) -> Any:
        layers.append(routed_tokens.routed.experts)
        return dispatch_all(layer, routed_tokens, weights, activate)

    bind(config, params).hidden(tokens, jnp.arange(LONGEST, dtype=jnp.int32), dense_attend, dispatch)
    return layers


def check(llm: LLM, request: RequestOutput) -> None:
    for output in request.outputs:
        tokens = [*request.prompt_token_ids, *output.token_ids][:-1]
        assert output.routed_experts is not None
        assert output.routed_experts.dtype == np.uint8
        np.testing.assert_array_equal(output.routed_experts, visited(llm, tokens))


def keeping(name: str, **settings: Any) -> LLM:
    config = CONFIGS[name]
    return LLM.from_params(config, on_devices(random_tensors(config, 1)), **{**SETTINGS, ASKED: True, **settings})


@pytest.fixture(scope="module", params=CONFIGS)
def llm(request: pytest.FixtureRequest) -> LLM:
    return keeping(request.param)


def test_as_a_plain_forward_pass_has_them(llm):
    first = llm.generate(PROMPTS, GREEDY)
    again = llm.generate(PROMPTS, GREEDY)  # prompts are found in the prefix cache
    assert sum(output.num_cached_tokens for output in again) > 0
    for output in (*first, *again):
        check(llm, output)


def test_samples_of_a_prompt_and_a_stop_string_and_what_goes_on(llm):
    many, stopped, goes_on = llm.generate(
        [PROMPTS[0], PROMPTS[1], {"prompt_token_ids": [200, 1, 1, 60, 42], "output_token_ids": [4, 9]}],
        [
            SamplingParams(temperature=1.0, n=3, seed=5, max_tokens=6, ignore_eos=True),
            SamplingParams(temperature=0.0, max_tokens=8, stop_token_ids=(fourth_token(llm),)),
            GREEDY,
        ],
    )
    assert (len(many.outputs), stopped.outputs[0].finish_reason) == (3, "stop")
    assert goes_on.outputs[0].token_ids[:2] == [4, 9]
    for output in (many, stopped, goes_on):
        check(llm, output)


def fourth_token(llm: LLM) -> int:
    token: int = llm.generate(PROMPTS[1], GREEDY)[0].outputs[0].token_ids[3]
    return token


@pytest.mark.parametrize("swap_space", [0.0, 0.01])
def test_preempted_sequences_recomputed_or_swapped(swap_space):
    crowded = keeping("shared", num_pages=14, swap_space=swap_space, prefix_caching=False, growth_reserve=0.0)
    outputs = crowded.generate(PROMPTS * 3, SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True))
    assert crowded._built.core.scheduler.num_preemptions > 0
    for output in outputs:
        check(crowded, output)


def test_two_devices():
    small = {"max_num_seqs": 4, "max_num_batched_tokens": 4}
    one, two = (keeping("shared", tensor_parallel_size=devices, **small).generate(PROMPTS, GREEDY) for devices in (1, 2))
    for output, other in zip(one, two, strict=True):
        assert output.outputs[0].token_ids == other.outputs[0].token_ids
        np.testing.assert_array_equal(output.outputs[0].routed_experts, other.outputs[0].routed_experts)


def test_a_call_that_ends_early_leaves_nothing(llm):
    class Enough(Exception):
        pass

    def stop(output: RequestOutput) -> None:
        raise Enough

    with pytest.raises(Enough):
        llm.generate(PROMPTS, GREEDY, on_output=stop)
    assert not llm._built.routed._kept


def test_models_without_experts_are_refused():
    with pytest.raises(ConfigError, match=rf"{ASKED}: .* has no experts"):
        engine("qwen3", 1, **{ASKED: True})


async def test_servers_refuse_it():
    asked = {"model": {ASKED: True}}
    with pytest.raises(ConfigError, match=f"{ASKED} is for LLM"):
        model_engine(asked, lambda *told: None)
    with pytest.raises(ConfigError, match=f"{ASKED} is for LLM"):
        await LocalEngine.start(EngineConfig.from_settings({ASKED: True}), lambda *told: None)


def test_pages_are_counted_with_them(llm):
    executor: Any = llm._built.core.executor
    cache = executor._forward.cache
    assert llm.report.memory.kv_cache == sum(array.nbytes for array in (cache.stored, cache.routed))
