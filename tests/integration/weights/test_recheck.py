"""Weights on devices are compared with what was loaded, block by block, by a thread that keeps nothing alive."""

import gc
import threading
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.errors import EngineDeadError
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from jaxserve.weights.recheck import BlockSums, WeightGuard
from sharding import make_mesh
from tests.golden.reading import DATA

PLAIN = DATA / "llama3-layout4"
THREAD = "jaxserve-weights"


@pytest.fixture(scope="module")
def loaded():
    sums = BlockSums()
    params = load_params(PLAIN, decoder_config(read_hf_config(PLAIN)), make_mesh(2), "bfloat16", sums=sums)
    return params, sums


def blocks(params):
    return sum(len(leaf.addressable_shards) for leaf in jax.tree.leaves(params))


def with_lost_bit(params):
    """The same parameters, but for one bit in the second device's part of one."""
    lost = jax.tree.map(lambda leaf: leaf, params)
    down = lost["layers"]["1"]["mlp"]["down"]
    array = np.array(down)
    array.reshape(-1).view(np.uint16)[-1] ^= 1
    lost["layers"]["1"]["mlp"]["down"] = jax.device_put(jnp.asarray(array), down.sharding)
    return lost


def test_a_round_sees_every_block_once(loaded):
    params, sums = loaded
    guard = WeightGuard(params, sums, 1.0)
    for _ in range(2 * blocks(params)):
        guard.check_next()
        guard.require_intact()
    assert guard.checked == 2 * blocks(params)


def test_a_lost_bit_is_told_by_parameter_and_device(loaded, caplog):
    params, sums = loaded
    lost = with_lost_bit(params)
    guard = WeightGuard(lost, sums, 1.0)
    checks = 0
    while guard.error is None and checks < blocks(params):
        guard.check_next()
        checks += 1
    assert guard.checked == checks - 1
    device = lost["layers"]["1"]["mlp"]["down"].sharding.mesh.devices.flat[1]
    with pytest.raises(EngineDeadError, match=rf"the weights layers\.1\.mlp\.down\[1:2, .* on {device} are not what was loaded"):
        guard.require_intact()
    assert "its memory may be faulty (checksum " in caplog.text


def wait_until(condition):
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came")


def runs():
    return any(thread.name == THREAD for thread in threading.enumerate())


def test_the_thread_finds_it_and_ends(loaded):
    params, sums = loaded
    guard = WeightGuard(with_lost_bit(params), sums, 0.0001)
    guard.start()
    wait_until(lambda: guard.error is not None and not runs())


def test_the_thread_keeps_no_weights_in_memory(loaded):
    params, sums = loaded
    guard = WeightGuard(params, sums, 0.001)
    guard.start()
    wait_until(partial(getattr, guard, "checked"))
    del guard
    gc.collect()
    wait_until(lambda: not runs())
