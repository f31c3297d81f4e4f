"""The decoder computes what transformers computed, for every golden checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.executor.experts import ShardedDispatch
from jaxserve.models.binding import Params, bind
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from sharding import make_mesh
from tests.golden.cases import CASES
from tests.golden.reading import NAMES, TOLERANCE, check_greedy, forward, load, logits_of, read_golden
from tests.support.tiers import tiered


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_greedy_tokens(name: str) -> None:
    golden = read_golden(name)
    run = forward(*load(golden.directory))
    full = logits_of(run, golden.prompts[golden.full_prompt])
    np.testing.assert_allclose(full, golden.full, atol=TOLERANCE, rtol=0)
    for prompt, tokens, last in zip(golden.prompts, golden.greedy, golden.last, strict=True):
        np.testing.assert_allclose(check_greedy(run, prompt, tokens), last, atol=TOLERANCE, rtol=0)


def test_the_goldens_tell_models_apart() -> None:
    """Continuations that are varied and clear of ties, or comparing them would prove little."""
    for name in NAMES:
        golden = read_golden(name)
        best = np.sort(golden.last, axis=-1)
        assert (best[:, -1] - best[:, -2]).min() > 10 * TOLERANCE
        assert golden.full.std() > 1
        assert len({token for tokens in golden.greedy for token in tokens}) > 50
        assert min(map(len, golden.prompts)) == next(case.shortest for case in CASES if case.name == name)
        assert len(golden.prompts) == 17


MESHES = [
    ("llama-biases", 2, 1),
    ("llama-linear", 4, 1),
    ("llama-w4a16", 2, 1),
    ("mistral-window", 4, 1),
    ("qwen2-yarn", 2, 1),
    ("qwen3-fp8", 2, 1),
    ("gemma2-caps", 4, 1),
    ("gemma3-local", 2, 1),
    ("gemma4-keys", 2, 1),
    ("gemma4-shared", 4, 1),
    ("gemma4-experts", 2, 2),
    ("gemma4-unified", 4, 1),
    ("phi3-short", 4, 1),
    ("olmo2-gqa", 4, 1),
    ("olmo3-yarn", 2, 1),
    ("smollm3-nope", 4, 1),
    ("granite-factors", 2, 1),
    ("lfm2-conv", 4, 1),
    ("lfm2-experts", 2, 2),
    ("glm-biases", 4, 1),
    ("glm4-around", 2, 1),
    ("cohere2-window", 2, 1),
    ("ministral3-long", 2, 1),
    ("seed-oss-biases", 2, 1),
    ("mixtral-full", 2, 2),
    ("qwen2-moe-shared", 2, 2),
    ("qwen3-moe-some", 1, 2),
    ("deepseek-v2-lite", 2, 2),
    ("deepseek-v3-groups", 4, 1),
    ("deepseek-v32-sparse", 2, 2),
    ("glm4-moe-norms", 2, 2),
    ("glm4-lite", 2, 2),
    ("glm5-shared", 2, 2),
    ("minimax-m2-part", 2, 2),
    ("qwen3-next-experts", 1, 2),
    ("granite4-dense", 4, 1),
    ("granite4-experts", 2, 2),
    ("llama4-chunks", 2, 2),
    ("nemotron-h-dense", 4, 1),
    ("nemotron-h-experts", 2, 2),
    ("nemotron-h-latent", 2, 2),
    ("qwen3-5-dense", 2, 1),
    ("qwen3-5-experts", 2, 1),
]
# One of each part that is sharded its own way: GQA, windows, experts, latents, an indexer, per-layer inputs, quantized
# matrices, delta rule, Mamba-2, short convolution, chunked attention.
CORE_MESHES = {
    ("llama-linear", 4, 1),
    ("llama-w4a16", 2, 1),
    ("qwen3-fp8", 2, 1),
    ("gemma4-shared", 4, 1),
    ("gemma3-local", 2, 1),
    ("mixtral-full", 2, 2),
    ("deepseek-v32-sparse", 2, 2),
    ("deepseek-v3-groups", 4, 1),
    ("qwen3-next-experts", 1, 2),
    ("granite4-dense", 4, 1),
    ("lfm2-experts", 2, 2),
    ("llama4-chunks", 2, 2),
}


@pytest.mark.parametrize(("name", "tensor", "experts"), tiered(MESHES, CORE_MESHES))
def test_logits_do_not_depend_on_the_mesh(name: str, tensor: int, experts: int) -> None:
    """Every family on devices that share all matrices, and groups of them the experts."""
    golden = read_golden(name)
    mesh = make_mesh(tensor, expert=experts)
    config = decoder_config(read_hf_config(golden.directory))
    params = load_params(golden.directory, config, mesh, "float32")
    tokens = np.array(golden.prompts[golden.full_prompt], np.int32)

    @jax.jit
    def run(params: Params, ids: jax.Array) -> jax.Array:
        decoder, dispatch = bind(config, params), ShardedDispatch(mesh, jnp.int32(len(tokens)))
        return decoder.logits(decoder.hidden(ids, jnp.arange(len(tokens)), dense_attend, dispatch))

    logits = np.asarray(run(params, tokens))[:, : config.vocab_size]
    np.testing.assert_allclose(logits, golden.full, atol=TOLERANCE, rtol=0)
