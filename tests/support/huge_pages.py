"""Prints how much of weights lies in huge pages, as JSON: in a process of its own, whose memory nobody has used before."""

import ctypes
import json
import mmap
import re
from pathlib import Path

import jax
import numpy as np

from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from jaxserve.weights.packing import aligned_zeros
from sharding import make_mesh

VOCABULARY = 5120  # tables of 40 MiB: beyond 32, malloc always maps anew
HF = {"architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": 2048, "intermediate_size": 64}
HF |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
TABLE_BYTES = VOCABULARY * 2048 * 4


def huge_bytes(address: int, size: int) -> int:
    """Bytes in huge pages of the memory that a range is in."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            begin, end = (int(bound, 16) for bound in bounds.groups())
            inside = begin < address + size and address < end
        elif inside and line.startswith("AnonHugePages:"):
            found += int(line.split()[1]) * 1024
    return found


def of_a_plain_mapping() -> int:
    """What the system gives to whoever asks: it runs out of huge pages beside others who take memory."""
    plain = mmap.mmap(-1, 2 * TABLE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    plain.madvise(mmap.MADV_HUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(plain))
    ctypes.memset(address, 1, 2 * TABLE_BYTES)
    return huge_bytes(address, 2 * TABLE_BYTES) // 2


def of_what_weights_are_read_into() -> int:
    memory = aligned_zeros((TABLE_BYTES,), np.dtype(np.uint8))
    memory[:] = 1
    return huge_bytes(memory.ctypes.data, memory.nbytes)


def of_dummy_weights(*, packed: bool) -> int:
    config, mesh = decoder_config(HF), make_mesh(1)
    packer = Packer(config, mesh) if packed else None
    params = load_params("nowhere", config, mesh, "float32", load_format="dummy", packer=packer)
    tables = jax.tree.leaves((params["embedding"], params["head"]))
    assert all(table.nbytes == TABLE_BYTES for table in tables)
    return min(huge_bytes(table.unsafe_buffer_pointer(), table.nbytes) for table in tables)


if __name__ == "__main__":
    found = {"plain": of_a_plain_mapping(), "read into": of_what_weights_are_read_into()}
    found |= {"dummy": of_dummy_weights(packed=False), "packed dummy": of_dummy_weights(packed=True)}
    print(json.dumps({name: size / TABLE_BYTES for name, size in found.items()}))
