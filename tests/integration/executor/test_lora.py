"""What adapters add to products, as CPUs and as GPUs compute it, against one row after the other."""

from __future__ import annotations

from math import prod

import jax
import numpy as np
import pytest

from jaxserve.config.lora import LoraShape
from jaxserve.executor.flat_params import FlatParams
from jaxserve.executor.lora import ShardedLora, abstract_loras, adapter_size, put_adapter
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.lora import lora_arrays, lora_rules
from jaxserve.models.registry import decoder_config
from sharding import make_mesh
from tests.contract.kernels.needs import NATIVE
from tests.golden.reading import DATA

SLOTS, RANK = 3, 8
TOKENS = np.array([2, 0, 3], np.int32)  # of each slot; two rows behind them have no adapter, one is padding
SLOT_OF_ROW = (0, 0, 2, 2, 2, None, None, None)
COLUMNS, ROWS = ("layers", "0", "attention", "qkv"), ("layers", "0", "mlp", "down")


@pytest.mark.parametrize("implementation", [pytest.param("cpu_native", marks=NATIVE), "xla"], ids=["as on CPUs", "as on GPUs"])
@pytest.mark.parametrize("devices", [1, 2])
def test_every_row_has_its_own_adapter_or_none(implementation, devices):
    config = decoder_config(read_hf_config(DATA / "llama-biases"))
    mesh, rng = make_mesh(devices), np.random.default_rng(1)
    shapes = abstract_loras(config, mesh, "float32", LoraShape(SLOTS, RANK))
    loras = FlatParams.of(jax.tree.map(lambda one: jax.device_put(np.zeros(one.shape, one.dtype), one.sharding), shapes))
    put, numbers = jax.jit(put_adapter), []
    for slot in range(SLOTS):
        numbers.append(rng.standard_normal(adapter_size(shapes)).astype(np.float32))
        loras = put(loras, np.int32(slot), numbers[-1])
    products, rules = ShardedLora(mesh, implementation), lora_rules(config)
    for path, run in ((COLUMNS, products.columns), (ROWS, products.rows)):
        a, _ = lora_arrays(rules[path], devices, RANK)
        x = rng.standard_normal((len(SLOT_OF_ROW), *a[1:])).astype(np.float32)
        x[-1] = np.nan  # padding may hold anything
        bs = parts_of(numbers[0], rules, path, devices)[1]
        y = rng.standard_normal((len(SLOT_OF_ROW), *np.concatenate(bs, axis=-1).shape[1:])).astype(np.float32)
        got = np.asarray(jax.jit(run)(y, x, loras.tree()[path], TOKENS))
        for row, own in enumerate(SLOT_OF_ROW):
            added = 0.0 if own is None else one_row(x[row], *parts_of(numbers[own], rules, path, devices))
            np.testing.assert_allclose(got[row], y[row] + added, rtol=2e-3, atol=2e-3)


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
    shrunk = np.tensordot(a, x, axes=x.ndim).reshape(len(bs), RANK)
    return np.concatenate([np.tensordot(part, b, axes=1) for part, b in zip(shrunk, bs, strict=True)], axis=-1)
