"""Matrices in words of which several Hoppers hold a part each: which, that they are the same numbers, and why others are not."""

import jax
import numpy as np
import pytest

from jaxserve.errors import ConfigError
from jaxserve.executor.memory import device_bytes
from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from jaxserve.weights.recheck import BlockSums
from pallas_kernels.matmul import Matrix, Words
from sharding import make_mesh
from tests.golden.reading import DATA
from tests.support.guarded import found_by_guard
from tests.support.held import is_matrix, loaded, on_hopper, plain, planned
from tests.support.stored_formats import FORMATS, FP8_BLOCKS, LLAMA, write
from tests.support.tiers import tiered

WIDE = LLAMA | {"hidden_size": 256, "intermediate_size": 256}
WIDER = LLAMA | {"hidden_size": 512, "intermediate_size": 512}
STORED = FORMATS | {"fp8 blocks": FP8_BLOCKS}


def words(params):
    leaves = jax.tree.leaves_with_path(params, is_leaf=is_matrix)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves if is_matrix(leaf) and isinstance(leaf.layout, Words)}


# One of each scheme, and one on four devices, where each of the two KV heads is held twice.
CASES = [("awq", 2), ("gptq", 4), ("int8", 2), ("packed int8", 4), ("fp8 blocks", 2)]


@pytest.mark.parametrize(("name", "devices"), tiered(CASES, {("awq", 2), ("packed int8", 4), ("fp8 blocks", 2)}))
def test_each_device_holds_its_part_of_the_stored_numbers(tmp_path, monkeypatch, name, devices):
    model = WIDE if devices == 2 else WIDER
    on_hopper(monkeypatch)
    method, quantized, scheme = STORED[name]
    directory, sums = write(tmp_path / name, method, quantized, model), BlockSums()
    held = loaded(directory, "bfloat16", devices=devices, sums=sums)
    assert found_by_guard(held.params, sums) is None
    matrices = words(held.params)
    assert [matrix.scheme for matrix in matrices.values()] == [scheme] * (4 * 2)
    exact = load_params(directory, decoder_config(model), make_mesh(devices), "float32")
    jax.tree.map(np.testing.assert_array_equal, plain({"layers": held.params["layers"]}), {"layers": exact["layers"]})
    for matrix in matrices.values():
        blocks = {shard.index for shard in matrix.values.addressable_shards}
        assert len(blocks) == devices
    assert device_bytes(held.params) == device_bytes(held.shapes)
    described: object = jax.tree.structure(held.shapes)
    assert described == jax.tree.structure(held.params)


@pytest.mark.parametrize("quantization", ["int4", "int8"])
def test_rounded_are_the_numbers_of_one_device(tmp_path, monkeypatch, quantization):
    """Bit for bit, wherever they lie; the head too, whose part is no multiple of 64 outputs."""
    on_hopper(monkeypatch)
    model = WIDE | {"vocab_size": 208, "num_key_value_heads": 4}
    directory = write(tmp_path / "plain", {}, lambda rng, *shape: {"weight": rng.normal(size=shape).astype(np.float32)}, model)
    (directory / "config.json").write_text((directory / "config.json").read_text().replace('"quantization_config"', '"none"'))
    alone, divided = (loaded(directory, "bfloat16", devices=devices, quantization=quantization).params for devices in (1, 2))
    assert words(alone).keys() == words(divided).keys()
    assert len(words(divided)) == 4 * 2 + 1
    assert divided["head"]["kernel"].values.sharding.shard_shape(divided["head"]["kernel"].values.shape)[1] == 104

    def by_columns(matrix: Matrix) -> np.ndarray:
        """[inputs, outputs], whose order is not that of one device where it was packed by shards."""
        numbers = np.asarray(plain(matrix)).reshape(matrix.inputs, matrix.outputs)
        return numbers[:, np.lexsort(numbers)]

    for path, matrix in words(divided).items():
        np.testing.assert_array_equal(by_columns(matrix), by_columns(words(alone)[path]))


@pytest.mark.parametrize(
    ("devices", "model", "reason"),
    [
        (4, WIDE | {"vocab_size": 256}, "inputs must be a multiple of 128, not 64"),
        (2, WIDE | {"vocab_size": 200}, "outputs must be a multiple of 8, not 100"),
        (2, WIDE, "outputs must be 64 at least, not 16"),
    ],
)
def test_parts_that_the_kernel_does_not_take_are_refused(tmp_path, monkeypatch, devices, model, reason):
    on_hopper(monkeypatch)
    directory = write(tmp_path / "awq", *FORMATS["awq"][:2], model)
    with pytest.raises(ConfigError, match=rf"'int4' needs .*or Hoppers, whose kernel reads it \(here: .*{reason}") as caught:
        planned(directory, "bfloat16", devices, "int4")
    assert caught.value.param == "quantization"


def test_a_checkpoint_s_are_dequantized_where_a_device_s_part_does_not_fit(tmp_path, monkeypatch):
    """Those whose inputs are divided, of four devices: the others stay."""
    on_hopper(monkeypatch)
    held = loaded(write(tmp_path / "awq", *FORMATS["awq"][:2], WIDE), "bfloat16", devices=4).params
    assert {path.split("'")[-2] for path in words(held)} == {"qkv", "gate_up"}


def test_several_cpus_dequantize_and_refuse():
    assert words(loaded(DATA / "llama-w4a16", devices=2).params) == {}
    with pytest.raises(
        ConfigError, match=r"quantization 'int4' needs one CPU device, whose .* read it, or Hoppers, whose kernel .* it$"
    ):
        loaded(DATA / "llama-biases", devices=2, quantization="int4")
