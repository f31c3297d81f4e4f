"""Every family computes the same logits however many devices share it."""

from functools import cache
from itertools import product

import numpy as np
import pytest

from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from sharding import make_mesh
from tests.golden.reading import forward, logits_of
from tests.support.families import FAMILIES, VOCAB, hf_config
from tests.support.tiers import tiered

TOKENS = [3, 141, 59, 26, 5, 35, 300, 0, 97, 93, 23, 84]


def logits(family, tensor):
    config = decoder_config(hf_config(family))
    params = load_params("", config, make_mesh(tensor), "float32", load_format="dummy", seed=7)
    return logits_of(forward(config, params), TOKENS)


@cache
def on_one_device(family):
    return logits(family, 1)


# Each family on as many devices as there are, where some hold KV heads twice; heads and latents on two, too.
CORE = {*((family, 8) for family in FAMILIES), ("mistral", 2), ("deepseek_v3", 2)}


@pytest.mark.parametrize(("family", "tensor"), tiered(product(FAMILIES, (2, 4, 8)), CORE))
def test_the_same_logits(family, tensor):
    expected = on_one_device(family)
    assert expected.shape == (len(TOKENS), VOCAB)
    assert expected.std() > 0.5
    np.testing.assert_allclose(logits(family, tensor), expected, atol=1e-5, rtol=0)
