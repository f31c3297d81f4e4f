from typing import Any

import jax
import pytest
from jax.sharding import PartitionSpec

from sharding import KV_PAGES_AXES, make_mesh, named_sharding, partition_spec


def test_mesh_of_the_first_devices() -> None:
    mesh = make_mesh(4)
    assert mesh.shape == {"data": 1, "sequence": 1, "expert": 1, "tensor": 4}
    assert list(mesh.devices.flat) == jax.devices()[:4]
    assert list(make_mesh(2, jax.devices()[4:]).devices.flat) == jax.devices()[4:6]


def test_all_axes_and_tensor_neighbours() -> None:
    mesh = make_mesh(2, data=2, expert=2)
    assert mesh.shape == {"data": 2, "sequence": 1, "expert": 2, "tensor": 2}
    assert list(mesh.devices[1, 0, 0]) == jax.devices()[4:6]
    assert make_mesh(sequence=4).shape["sequence"] == 4


def test_too_few_devices() -> None:
    with pytest.raises(ValueError, match=r"^axis 'tensor' of size 64 needs 64 devices, but there are 8"):
        make_mesh(64)
    with pytest.raises(ValueError, match=r"^axis 'data' of size 3 and axis 'tensor' of size 4 needs 12 devices"):
        make_mesh(4, data=3)


@pytest.mark.parametrize("axis", ["data", "tensor", "expert", "sequence"])
def test_no_devices_on_an_axis(axis: str) -> None:
    sizes: dict[str, Any] = {axis: 0}
    with pytest.raises(ValueError, match=f"at least 1 device on axis '{axis}', got 0"):
        make_mesh(**sizes)


def test_logical_axes() -> None:
    assert partition_spec(("embed", "heads", None)) == PartitionSpec(None, ("expert", "tensor"), None)
    assert named_sharding(make_mesh(2), ("vocab", "embed")).shard_shape((10, 4)) == (5, 4)
    assert partition_spec(KV_PAGES_AXES) == PartitionSpec(None, None, None, ("expert", "tensor"), None, None)
    with pytest.raises(ValueError, match=r"unknown logical axes \['hats'\]"):
        partition_spec(("hats",))
