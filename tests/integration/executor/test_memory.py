"""Bytes counted from shapes are those of the arrays; devices say what they can still give."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxserve.config.fields import EngineConfig
from jaxserve.config.resolve import WORKSPACE_BYTES, ModelFacts, resolve
from jaxserve.config.states import StatePlaces
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.memory import count_bytes, device_bytes, device_facts
from jaxserve.executor.options import ExecutorOptions
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from sharding import make_mesh
from tests.support.families import hf_config

DATA = Path(__file__).parents[2] / "golden" / "data"


def held(tree, device):
    """Bytes of the parts of arrays that are on a device."""
    shards = [shard for array in jax.tree.leaves(tree) for shard in array.addressable_shards if shard.device == device]
    return sum(shard.data.nbytes for shard in shards)


@pytest.mark.parametrize("tensor", [1, 8])
@pytest.mark.parametrize("family", ["mistral", "deepseek_v2"])
def test_counted_bytes_are_those_of_the_arrays(family, tensor):
    """Of 8 devices, several hold the same KV head or latent, and the vocabulary is padded."""
    decoder, mesh = decoder_config(hf_config(family)), make_mesh(tensor)
    assert tensor == 1 or (decoder.num_kv_heads < tensor and decoder.vocab_size % tensor)
    settings = {"page_size": 8, "num_pages": 5, "max_num_seqs": 2, "max_num_batched_tokens": 4, "dtype": "float16"}
    config = EngineConfig.from_settings(settings | {"tensor_parallel_size": tensor, "max_model_len": 32})
    counted = count_bytes(decoder, mesh, config, "float16", "float32")
    params = load_params("", decoder, mesh, "float16", load_format="dummy")
    options = ExecutorOptions(
        max_num_seqs=2,
        max_num_batched_tokens=4,
        max_model_len=32,
        num_pages=5,
        page_size=8,
        dtype="float16",
        kv_dtype="float32",
    )
    lowering = Lowering(decoder, mesh, options)
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), lowering.state)
    for device in (mesh.devices.flat[0], mesh.devices.flat[-1]):
        assert counted.weights == held(params, device)
        assert counted.page * 5 == held(state.forward.cache, device)
        assert counted.state == held(state, device) - held(state.forward.cache, device)
    assert device_bytes(params) == device_bytes(lowering.params) == counted.weights


@pytest.mark.parametrize("tensor", [1, 8])
def test_every_device_has_one_latent_of_a_token(tensor):
    decoder, mesh = decoder_config(hf_config("deepseek_v2")), make_mesh(tensor)
    config = EngineConfig.from_settings({"page_size": 8, "num_pages": 5, "tensor_parallel_size": tensor})
    layers, rank, rope, itemsize = 2, 20, 8, 2
    assert count_bytes(decoder, mesh, config, "float32", "bfloat16").page == layers * 8 * (rank + rope) * itemsize


@dataclass
class Gpu:
    """Says what jax's CUDA devices say (`memory_stats` of jax 0.11.2), for a GPU of which jax took 90 % at the start."""

    stats: dict[str, int | None] | None
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100 80GB HBM3"
    compute_capability: str = "9.0"
    core_count: int = field(default=132)

    def memory_stats(self):
        return self.stats


LIMIT = 76_448_530_432
STATS = {
    "num_allocs": 4,
    "bytes_in_use": 1_048_576,
    "peak_bytes_in_use": 2_097_152,
    "largest_alloc_size": 1_048_576,
    "bytes_limit": LIMIT,
    "bytes_reserved": 0,
    "peak_bytes_reserved": 0,
    "bytes_reservable_limit": None,
    "largest_free_block_bytes": LIMIT - 1_048_576,
    "pool_bytes": LIMIT,
    "peak_pool_bytes": LIMIT,
}


def test_a_gpu_gives_what_jax_took_and_nobody_uses():
    facts = device_facts(Gpu(STATS), 8)
    assert (facts.platform, facts.count, facts.memory) == ("gpu", 8, LIMIT - 1_048_576)
    assert not facts.slow_bfloat16_scatter


def test_the_cache_of_a_gpu_is_the_rest_of_what_jax_took():
    """`gpu_memory_fraction` is in jax's limit already, and is not taken twice."""
    decoder, mesh = decoder_config(hf_config("llama")), make_mesh(1)
    config = EngineConfig.from_settings({"gpu_memory_fraction": 0.9})
    counted = count_bytes(decoder, mesh, config, "bfloat16", "bfloat16")
    facts = device_facts(Gpu(STATS), 1)
    resolved = resolve(config, ModelFacts("llama", "bfloat16", 2048), facts, lambda *dtypes: counted)
    left = LIMIT - 1_048_576 - WORKSPACE_BYTES - counted.weights - counted.state
    assert resolved.num_pages == left // counted.page


def test_a_device_that_says_nothing_has_nothing():
    assert device_facts(Gpu(None), 1).memory == 0


def test_cpus_share_what_the_host_has_free():
    facts = device_facts(jax.devices("cpu")[0], 4)
    assert (facts.platform, facts.count) == ("cpu", 4)
    assert 0 < facts.memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_sampling_on_a_cpu_takes_little_more_than_the_logits():
    """Above 32 MiB a step's workspace is new memory at every step."""
    rows, vocabulary = 32, 131072
    decoder = decoder_config(hf_config("mistral") | {"vocab_size": vocabulary})
    options = ExecutorOptions(
        max_num_seqs=rows,
        max_num_batched_tokens=rows,
        max_model_len=32,
        num_pages=2 * rows,
        page_size=16,
        dtype="float32",
        kv_dtype="float32",
    )
    lowering = Lowering(decoder, make_mesh(1), options)
    (variant,) = lowering.variants
    program = lowering.choose(rows, variant).compile()
    assert program.memory_analysis().temp_size_in_bytes < 16 << 20


@pytest.mark.parametrize("checkpoint", ["qwen3-next-experts", "granite4-experts", "lfm2-conv"])
def test_a_step_copies_no_table_of_recurrent_states(checkpoint):
    """However many places there are: XLA copies what it thinks must be laid out otherwise, at every step."""
    decoder = decoder_config(read_hf_config(DATA / checkpoint))

    def workspace(snapshots):
        options = ExecutorOptions(
            max_num_seqs=2,
            max_num_batched_tokens=4,
            max_model_len=32,
            num_pages=8,
            page_size=16,
            dtype="bfloat16",
            kv_dtype="float32",
            states=StatePlaces(slots=2, width=1, snapshots=snapshots, interval=16),
        )
        lowering = Lowering(decoder, make_mesh(1), options)
        program = lowering.forward(lowering.grid.buckets[0]).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert workspace(4) == workspace(1000)
