"""The prefix cache's keys tell apart what a checkpoint's weights are held in."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxserve.executor.weight_schemes import describe_weights
from jaxserve.models.registry import decoder_config
from jaxserve.weights.abstract import placed_params
from jaxserve.weights.packed import Packer
from pallas_kernels import native
from pallas_kernels.matmul import Layout, pack
from pallas_kernels.quantization import SCHEMES, Float8Weight, FourBit
from sharding import make_mesh
from tests.support.families import hf_config

MODEL = decoder_config(hf_config("llama"))
QKV = ("layers", "0", "attention", "qkv")


def engine_holds(quantization: Any = "none", stored: Any = (), dtype: str = "float32", devices: int = 1) -> str:
    mesh = make_mesh(devices)
    return describe_weights(Packer(MODEL, mesh, quantization, stored).shapes(placed_params(MODEL, mesh, dtype)))


def test_what_an_engine_holds_its_weights_in():
    if native.missing() is not None:
        pytest.skip(f"NOT CHECKED: native kernels: {native.missing()}")
    held = [
        engine_holds(),  # what FP8 is dequantized to, too
        engine_holds(dtype="bfloat16"),
        engine_holds("int8"),
        engine_holds("w8a8"),
        engine_holds("fp8", devices=2),  # multiplied as FP8
        engine_holds(stored=((QKV, (SCHEMES["int8"],)),)),
        engine_holds(stored=((QKV, (Float8Weight(None),)),)),
    ]
    assert len(set(held)) == len(held)
    assert engine_holds("int8") == held[2]


def test_layouts_of_devices_that_share_a_matrix_do_not_count():
    assert engine_holds(devices=2) == engine_holds()


def test_schemes_and_names_count():
    def held(name: str, scheme: Any) -> str:
        plain = jnp.ones((256, 64), jnp.float32)
        return describe_weights({"layers": {name: pack(plain, Layout((0,)), scheme)}, "norm": jnp.ones(4)})

    schemes = [SCHEMES["none"], SCHEMES["int8"], SCHEMES["w8a8"], SCHEMES["fp8"], Float8Weight(None)]
    schemes += [FourBit("int4", 128, False), FourBit("int4", 64, False)]
    described = [held("up", scheme) for scheme in schemes]
    assert len(set(described)) == len(schemes)
    assert held("down", SCHEMES["int8"]) not in described
    assert describe_weights({"norm": jax.ShapeDtypeStruct((4,), jnp.float32)}) == describe_weights({"norm": jnp.zeros(4)})
