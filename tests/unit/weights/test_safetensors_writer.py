"""Safetensors as they are written: what the format's own library reads, aligned, in files of bounded size."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from jaxserve.weights.checkpoint import whole
from jaxserve.weights.safetensors import SafetensorsCheckpoint
from jaxserve.weights.safetensors_writer import TensorSpec, write_safetensors

ARRAYS = {
    "bytes": np.arange(7, dtype=np.int8),
    "halves": np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3),
    "eights": np.arange(5, dtype=np.float32).astype(ml_dtypes.float8_e4m3fn),
    "longs": np.array([3, 4]),
    "singles": np.linspace(0, 1, 9, dtype=np.float32).reshape(3, 3).T,
    "none": np.zeros((0, 4), np.float32),
}
SPECS = [TensorSpec(name, array.dtype.name, array.shape) for name, array in ARRAYS.items()]


@pytest.mark.parametrize("file_bytes", [10**6, 40])
def test_what_is_written_is_read(tmp_path, file_bytes):
    write_safetensors(tmp_path, SPECS, reversed(ARRAYS.items()), file_bytes)
    with SafetensorsCheckpoint(tmp_path) as checkpoint:
        assert set(checkpoint.shapes) == set(ARRAYS)
        for name, array in ARRAYS.items():
            assert checkpoint.dtypes[name] == array.dtype.name
            np.testing.assert_array_equal(checkpoint.read(name, whole(array.shape)), array)
    files = sorted(tmp_path.glob("*.safetensors"))
    for file in files:
        with safe_open(file, framework="numpy") as opened:
            assert opened.metadata() == {"format": "pt"}
        data = file.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__")
        for name, entry in header.items():
            assert (8 + length + entry["data_offsets"][0]) % ARRAYS[name].dtype.itemsize == 0
        assert len(data) - 8 - length <= file_bytes
    if file_bytes == 40:
        assert [file.name for file in files] == [f"model-0000{at}-of-00002.safetensors" for at in (1, 2)]
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(array.nbytes for array in ARRAYS.values())
    else:
        assert [file.name for file in files] == ["model.safetensors"]


def test_a_tensor_larger_than_a_file_has_one_of_its_own(tmp_path):
    write_safetensors(tmp_path, SPECS, ARRAYS.items(), 1)
    with SafetensorsCheckpoint(tmp_path) as checkpoint:
        assert set(checkpoint.shapes) == set(ARRAYS)


def test_what_differs_from_its_specification_is_not_written(tmp_path):
    with pytest.raises(ValueError, match=r"bytes is int64 \[7\], not int8 \[7\]"):
        write_safetensors(tmp_path, SPECS[:1], [("bytes", np.arange(7))])


def test_a_tensor_that_does_not_come_is_told(tmp_path):
    with pytest.raises(ValueError, match="1 tensors were not written, the first bytes"):
        write_safetensors(tmp_path, SPECS[:1], [])
