import jax
import pytest
from jax.sharding import PartitionSpec

from sharding import make_mesh, named_sharding, partition_spec


def test_mesh_of_the_first_devices():
    mesh = make_mesh(4)
    assert mesh.shape == {"data": 1, "tensor": 4}
    assert list(mesh.devices.flat) == jax.devices()[:4]
    assert list(make_mesh(2, jax.devices()[4:]).devices.flat) == jax.devices()[4:6]


def test_too_few_devices():
    with pytest.raises(ValueError, match="'tensor' of size 64 needs 64 devices, but there are 8"):
        make_mesh(64)
    with pytest.raises(ValueError, match="at least 1"):
        make_mesh(0)


def test_logical_axes():
    assert partition_spec(("embed", "heads", None)) == PartitionSpec(None, "tensor", None)
    assert named_sharding(make_mesh(2), ("vocab", "embed")).shard_shape((10, 4)) == (5, 4)
    with pytest.raises(ValueError, match=r"unknown logical axes \['hats'\]"):
        partition_spec(("hats",))
