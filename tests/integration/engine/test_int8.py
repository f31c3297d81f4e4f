"""An engine that rounds its matrices to int8, on one device and on several: its tokens are those of the rounded numbers."""

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
from jaxserve.models.binding import Params, bind
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.registry import decoder_config
from jaxserve.sampling.params import SamplingParams
from pallas_kernels import native
from pallas_kernels.matmul import Matrix
from tests.golden.reading import read_golden
from tests.support.engine import run, silent

NAME, SHARED, LATENT = "llama-biases", "qwen2-moe-shared", "deepseek-v2-lite"
NATIVE = pytest.mark.skipif(native.missing() is not None, reason=f"NOT CHECKED: native kernels: {native.missing()}")
LENGTH = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
SETTINGS = {"quantization": "int8", "dtype": "float32", "page_size": 8}
SETTINGS |= {"max_num_seqs": 4, "before_ready": "fewest", "max_num_batched_tokens": 4, "max_model_len": 128}


@jax.jit
def plain(held: Params) -> Params:
    """The numbers that matrices stand for."""

    def is_matrix(leaf: object) -> bool:
        return isinstance(leaf, Matrix)

    numbers: Params = jax.tree.map(lambda leaf: leaf.plain() if is_matrix(leaf) else leaf, held, is_leaf=is_matrix)
    return numbers


def config_for(golden, **more):
    return EngineConfig.from_settings({"model": str(golden.directory), **SETTINGS, **more})


@pytest.mark.parametrize(
    ("name", "tensor", "expert"),
    [
        pytest.param(NAME, 1, 1, marks=[NATIVE, pytest.mark.extended]),  # a model of experts has all of its products
        pytest.param(SHARED, 1, 1, marks=NATIVE),
        pytest.param(NAME, 2, 1, marks=pytest.mark.extended),
        (SHARED, 4, 2),
        pytest.param(LATENT, 2, 1, marks=pytest.mark.extended),
    ],
)
def test_greedy_tokens_are_those_of_the_rounded_numbers(name, tensor, expert):
    """Of float32 matrices with the same numbers, by XLA's products and dense attention on one device; the report counts bytes."""
    golden = read_golden(name)
    config = config_for(golden, tensor_parallel_size=tensor, expert_parallel_size=expert)
    built = build_engine(config, strict_length=True, clock=RealClock(), progress=silent)
    assert isinstance(built.core.executor, LocalExecutor)
    held = built.core.executor.weights.tree
    assert built.report.memory.weights == device_bytes(held)
    assert any(leaf.dtype == np.int8 and leaf.sharding.num_devices == tensor for leaf in jax.tree.leaves(held))
    decoder = decoder_config(read_hf_config(golden.directory))
    params = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), plain(held))

    @jax.jit
    def best(params: Params, ids: jax.Array) -> jax.Array:
        bound = bind(decoder, params)
        return jnp.argmax(bound.logits(bound.hidden(ids, jnp.arange(len(ids)), dense_attend)), axis=-1)

    prompt = golden.prompts[golden.full_prompt]
    tokens = run(built, [prompt, prompt[:3]], GREEDY).tokens[0]
    assert tokens == np.asarray(best(params, np.array(prompt + tokens, np.int32)))[len(prompt) - 1 : -1].tolist()


def test_what_cannot_be_is_refused_before_anything_is_loaded():
    with pytest.raises(ConfigError, match="quantization 'int8' needs bfloat16 or float32, not float16"):
        prepare(config_for(read_golden(NAME), tensor_parallel_size=2, dtype="float16"))
