"""Weights on CPUs lie in huge pages: steps of few rows are as fast as weights are read."""

import mmap
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from jaxserve.weights.packing import aligned_zeros
from sharding import make_mesh

VOCABULARY = 5120  # tables of 40 MiB: beyond 32, malloc never hands out what other tests of this process have used
HF = {"architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": 2048, "intermediate_size": 64}
HF |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
TABLE_BYTES = VOCABULARY * 2048 * 4
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not SETTING.is_file() or "[never]" in SETTING.read_text(), reason="there are no huge pages"
)


def huge_bytes(address, size):
    """Bytes in huge pages of the memory that a range is in."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            begin, end = (int(bound, 16) for bound in bounds.groups())
            inside = begin < address + size and address < end
        elif inside and line.startswith("AnonHugePages:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.fixture(autouse=True)
def there_are_some():
    """The system runs out of them beside others who take memory: what it gives to a plain mapping tells."""
    with mmap.mmap(-1, 2 * TABLE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as plain:
        plain.madvise(mmap.MADV_HUGEPAGE)
        memory = np.frombuffer(plain, np.uint8)
        memory[:] = 1
        found = huge_bytes(memory.ctypes.data, memory.nbytes)
        del memory
    if found < 2 * TABLE_BYTES * 3 // 4:
        pytest.skip(f"the system has huge pages for {found} of {2 * TABLE_BYTES} bytes")


def test_what_weights_are_read_into():
    memory = aligned_zeros((TABLE_BYTES,), np.dtype(np.uint8))
    memory[:] = 1
    assert huge_bytes(memory.ctypes.data, memory.nbytes) >= TABLE_BYTES // 2  # the system may have run out of some


@pytest.mark.parametrize("packed", [False, True])
def test_dummy_weights(packed):
    config, mesh = decoder_config(HF), make_mesh(1)
    packer = Packer(config, mesh) if packed else None
    params = load_params("nowhere", config, mesh, "float32", load_format="dummy", packer=packer)
    for table in jax.tree.leaves((params["embedding"], params["head"])):
        assert table.nbytes == TABLE_BYTES
        assert huge_bytes(table.unsafe_buffer_pointer(), table.nbytes) >= TABLE_BYTES // 2  # the system may have run out of some
