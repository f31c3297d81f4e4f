"""The devices' counts become the host's: without waiting for a step, and beyond what 32 bits hold."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.executor.expert_tokens import ExpertTokens
from jaxserve.models.registry import decoder_config
from tests.support.families import hf_config

CONFIG = decoder_config(hf_config("qwen2_moe"))  # of two layers, the first has experts: eight
READ = jax.jit(jnp.copy)


def visited(*first):
    return jnp.asarray(np.array([[*first, *[0] * (8 - len(first))]], np.uint32))


def tokens(counted):
    ((layer, counts),) = counted
    assert layer == 0
    return counts[:2]


def test_while_steps_run_the_reading_before_is_told():
    counts = ExpertTokens(CONFIG, READ)
    assert tokens(counts.counted(visited(3, 1), in_flight=True)) == (0, 0)
    assert tokens(counts.counted(visited(5, 1), in_flight=True)) == (3, 1)
    assert tokens(counts.counted(visited(6, 2), in_flight=False)) == (6, 2)
    assert tokens(counts.counted(visited(9, 2), in_flight=True)) == (6, 2)


def test_the_devices_may_count_past_32_bits():
    counts = ExpertTokens(CONFIG, READ)
    assert tokens(counts.counted(visited(2**32 - 2, 7), in_flight=False)) == (2**32 - 2, 7)
    assert tokens(counts.counted(visited(5, 8), in_flight=False)) == (2**32 + 5, 8)


def test_a_dense_model_has_none():
    counts = ExpertTokens(replace(CONFIG, experts=None), READ)
    assert counts.counted(jnp.zeros((0, 0), jnp.uint32), in_flight=False) == ()
