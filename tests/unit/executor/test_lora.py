"""What adapters add to products, as CPUs and as GPUs compute it, against one row after the other."""

from __future__ import annotations

from math import prod

import jax
import numpy as np
import pytest

from jaxserve.config.lora import LoraShape
from jaxserve.executor.flat_params import FlatParams
from jaxserve.executor.lora import ShardedLora, abstract_loras, adapter_size, make_put_adapter
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.lora import lora_arrays, lora_rules
from jaxserve.models.registry import decoder_config
from sharding import make_mesh
from tests.golden.reading import DATA

SLOTS, RANK = 3, 8
TOKENS = np.array([2, 0, 3], np.int32)  # of each slot; two rows behind them have no adapter, one is padding
SLOT_OF_ROW = (0, 0, 2, 2, 2, None, None, None)
COLUMNS, ROWS = ("layers", "0", "attention", "qkv"), ("layers", "0", "mlp", "down")


@pytest.mark.parametrize("rank_first", [False, True], ids=["as on CPUs", "as on GPUs"])
@pytest.mark.parametrize("devices", [1, 2])
def test_every_row_has_its_own_adapter_or_none(rank_first, devices):
    config = decoder_config(read_hf_config(DATA / "llama-biases"))
    mesh, rng = make_mesh(devices), np.random.default_rng(1)
    shapes = abstract_loras(config, mesh, "float32", LoraShape(SLOTS, RANK), rank_first=rank_first)
    loras = FlatParams.of(jax.tree.map(lambda one: jax.device_put(np.zeros(one.shape, one.dtype), one.sharding), shapes))
    put, numbers = jax.jit(make_put_adapter(rank_first=rank_first)), []
    for slot in range(SLOTS):
        numbers.append(rng.standard_normal(adapter_size(shapes)).astype(np.float32))
        loras = put(loras, np.int32(slot), numbers[-1])
    products, rules = ShardedLora(mesh, rank_first), lora_rules(config)
    for path, run in ((COLUMNS, products.columns), (ROWS, products.rows)):
        a, _ = lora_arrays(rules[path], devices, RANK)
        x = rng.standard_normal((len(SLOT_OF_ROW), *a[:-1])).astype(np.float32)
        x[-1] = np.nan  # padding may hold anything
        got = np.asarray(jax.jit(run)(x, loras.tree()[path], TOKENS))
        for row, own in enumerate(SLOT_OF_ROW):
            wanted = 0.0 if own is None else one_row(x[row], *parts_of(numbers[own], rules, path, devices))
            np.testing.assert_allclose(got[row], wanted, rtol=2e-3, atol=2e-3)


def parts_of(numbers, rules, path, devices):
    """A and the Bs of one projection, in an adapter's numbers."""
    at = 0
    for name in sorted(rules):
        parts = []
        a, bs = lora_arrays(rules[name], devices, RANK)
        for shape in (a, *bs):
            parts.append(numbers[at : at + prod(shape)].reshape(shape))
            at += prod(shape)
        if name == path:
            return parts[0], parts[1:]
    raise AssertionError(path)


def one_row(x, a, bs):
    """x A, then for each part of it B: side by side in every shard."""
    shrunk = np.tensordot(x, a, axes=x.ndim).reshape(len(bs), RANK)
    return np.concatenate([np.tensordot(part, b, axes=1) for part, b in zip(shrunk, bs, strict=True)], axis=-1)
