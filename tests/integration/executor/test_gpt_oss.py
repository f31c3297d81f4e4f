"""gpt-oss on meshes: sinks, experts' biases and columns that alternate in the checkpoint, each where its device looks for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.executor.experts import ShardedDispatch
from jaxserve.models.binding import bind
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from sharding import make_mesh
from tests.golden.reading import TOLERANCE, read_golden


@pytest.mark.parametrize(
    ("name", "devices", "groups"), [("gpt-oss-window", 2, 1), ("gpt-oss-window", 4, 2), ("gpt-oss-mxfp4", 4, 4)]
)
def test_logits_do_not_depend_on_the_mesh(name, devices, groups):
    golden = read_golden(name)
    config = decoder_config(read_hf_config(golden.directory))
    mesh = make_mesh(devices // groups, expert=groups)
    params = load_params(golden.directory, config, mesh, "float32")
    tokens = np.array(golden.prompts[golden.full_prompt], np.int32)

    @jax.jit
    def run(params, ids):
        decoder, dispatch = bind(config, params), ShardedDispatch(mesh, jnp.int32(len(tokens)))
        return decoder.logits(decoder.hidden(ids, jnp.arange(len(tokens)), dense_attend, dispatch))

    logits = np.asarray(run(params, tokens))[:, : config.vocab_size]
    np.testing.assert_allclose(logits, golden.full, atol=TOLERANCE, rtol=0)
