"""Every family computes the same logits however many devices share it."""

import numpy as np
import pytest

from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from sharding import make_mesh
from tests.golden.reading import forward, logits_of
from tests.support.families import FAMILIES, VOCAB, hf_config

TOKENS = [3, 141, 59, 26, 5, 35, 300, 0, 97, 93, 23, 84]


def logits(family, tensor):
    config = decoder_config(hf_config(family))
    params = load_params("", config, make_mesh(tensor), "float32", load_format="dummy", seed=7)
    return logits_of(forward(config, params), TOKENS)


@pytest.fixture(scope="module", params=FAMILIES)
def one_device(request):
    return request.param, logits(request.param, 1)


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_the_same_logits(one_device, tensor):
    family, expected = one_device
    assert expected.shape == (len(TOKENS), VOCAB)
    assert expected.std() > 0.5
    np.testing.assert_allclose(logits(family, tensor), expected, atol=1e-5, rtol=0)
