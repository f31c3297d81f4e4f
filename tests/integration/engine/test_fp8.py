"""An engine on two devices whose matrices are in FP8: its tokens are those of the same numbers and rows that numpy rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import build_engine
from jaxserve.engine.preparation import prepare
from jaxserve.errors import ConfigError
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.memory import device_bytes
from jaxserve.models.binding import Params, param_products
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.sampling.params import SamplingParams
from pallas_kernels.matmul import Layout, Matrix
from pallas_kernels.quantization import FP8
from tests.golden.reading import forward, logits_of, read_golden
from tests.support.engine import run, silent
from tests.support.schemes import RoundedRows

STORED = "mistral-fp8-channels"
LENGTH, NEAR = 16, 1e-3
GREEDY = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
SETTINGS = {
    "dtype": "float32",
    "page_size": 8,
    "max_num_seqs": 4,
    "before_ready": "fewest",
    "max_num_batched_tokens": 4,
    "max_model_len": 128,
}


def config_for(golden, **more):
    return EngineConfig.from_settings({"model": str(golden.directory), **SETTINGS, **more})


@pytest.mark.parametrize("quantization", ["none", "fp8"])
def test_greedy_tokens_are_those_of_rounded_rows(quantization):
    """In chunks of prompts beside decodes, and again from the prefix cache."""
    golden = read_golden(STORED)
    built = build_engine(
        config_for(golden, tensor_parallel_size=2, quantization=quantization),
        strict_length=True,
        clock=RealClock(),
        progress=silent,
    )
    assert isinstance(built.core.executor, LocalExecutor)
    held = built.core.executor.weights.tree
    assert built.report.memory.weights == device_bytes(held)
    decoder = decoder_config(read_hf_config(golden.directory))
    products = param_products(decoder)

    def wide(keys, leaf):
        if not isinstance(leaf, Matrix):
            return jnp.asarray(np.asarray(leaf))
        assert isinstance(leaf.scheme, FP8)
        numbers = jnp.asarray(np.asarray(jax.jit(Matrix.plain)(leaf)))
        return Matrix(numbers, None, Layout(products[tuple(key.key for key in keys)].inputs), RoundedRows())

    params: Params = jax.tree.map_with_path(wide, held, is_leaf=lambda leaf: isinstance(leaf, Matrix))
    reference = forward(decoder, params)

    prompt = golden.prompts[golden.full_prompt]
    prompts = [prompt, prompt[:3], prompt[:20] + prompt[:7]]
    first = run(built, prompts, GREEDY)
    again = run(built, [prompts[0], *prompts], GREEDY)
    assert again.tokens == [first.tokens[0], *first.tokens]
    assert max(update.num_cached for updates in again.updates for update in updates) > 0
    for asked, tokens in zip(prompts, first.tokens, strict=True):
        rows = logits_of(reference, asked + tokens)[len(asked) - 1 : -1]
        chosen = rows[np.arange(LENGTH), tokens]
        assert (chosen >= rows.max(axis=1) - NEAR).all()


def test_what_cannot_be_is_refused_before_anything_is_loaded():
    golden = read_golden("llama-biases")
    with pytest.raises(ConfigError, match="quantization 'fp8' needs bfloat16 or float32, not float16"):
        prepare(config_for(golden, quantization="fp8", tensor_parallel_size=2, dtype="float16"))
    with pytest.raises(ConfigError, match=r"'fp8' needs GPUs of compute capability 8\.9 or later, or several devices"):
        prepare(config_for(golden, quantization="fp8"))
