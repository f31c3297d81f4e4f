"""Settings, shapes by name, and the ledger's arithmetic."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from jaxserve.aot.ledger import CompiledMemory
from jaxserve.aot.settings import TargetConfig
from jaxserve.aot.shapes import decoder, known_decoder
from jaxserve.config.fields import EngineConfig
from jaxserve.errors import ConfigError
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.planner import catalogue
from jaxserve.step.buckets import Bucket, BucketGrid


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3-70b", "llama-2-7b"])
def test_a_shape_has_as_many_parameters_as_the_planner_counts(name: str) -> None:
    assert known_decoder(name).num_parameters == catalogue.model(name).num_parameters


def test_every_shape_of_the_planner_is_a_decoder() -> None:
    for name in catalogue.model_names():
        assert known_decoder(name).num_parameters == catalogue.model(name).num_parameters


def test_first_layers_alone() -> None:
    cut = decoder("llama-3-8b", 3)
    assert cut.num_layers == len(cut.windows) == 3
    with pytest.raises(ConfigError, match="layers is 33, but llama-3-8b has 32"):
        decoder("llama-3-8b", 33)


def test_a_checkpoint_directory_is_read() -> None:
    directory = str(files("jaxserve") / "assets" / "pico")
    assert decoder(directory, None) == decoder_config(read_hf_config(Path(directory)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": "1,x"}, "rows must be numbers above 0 with commas, 'all' or 'none', got '1,x'"),
        ({"tokens": "0"}, "tokens must be numbers above 0"),
        ({"rows": "none", "tokens": "none"}, "nothing to compile"),
        ({"rows": "300"}, "rows names 300, more than max_num_seqs, which is 256"),
        ({"tokens": "4096"}, "tokens names 4096, more than max_num_batched_tokens, which is 2048"),
        ({"max_num_batched_tokens": 255}, "max_num_batched_tokens must be at least 256"),
        ({"num_pages": 1}, "num_pages must be at least 2"),
        ({"dtype": "fp8"}, "dtype must be one of 'auto'"),
        ({"attention_kernel": "a@b"}, "attention_kernel must be 'auto'"),
        ({"tp": 0}, "tp must be at least 1"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"max_model_len": 1}, "max_model_len must be at least 2"),
        ({"gpu_memory_fraction": 1.5}, "gpu_memory_fraction must be in"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TargetConfig(**settings)


GRID = BucketGrid.for_platform("gpu", max_rows=64, max_tokens=128)


def buckets(**settings: Any) -> list[tuple[int, int]]:
    config = TargetConfig(max_num_seqs=64, max_num_batched_tokens=128, **settings)
    return [(bucket.tokens, bucket.rows) for bucket in config.buckets(GRID)]


def test_buckets_by_number_are_sorted_and_once() -> None:
    assert buckets(rows="32, 1,32", tokens="none") == [(1, 1), (32, 32)]
    assert buckets(rows="none", tokens="128,16") == [(16, 16), (128, 32)]


def test_all_buckets_are_the_engines() -> None:
    decode = [(rows, rows) for rows in (1, 2, 4, 8, 16, 32, 48, 64)]
    prompts = [(64, 32), (64, 63), (128, 32), (128, 64)]
    assert buckets(rows="all", tokens="none") == decode
    assert buckets(rows="none", tokens="all") == prompts
    assert sorted(buckets(rows="all", tokens="all")) == sorted((bucket.tokens, bucket.rows) for bucket in GRID.buckets)


def test_the_settings_reach_the_engine() -> None:
    config = TargetConfig(
        tp=4,
        ep=2,
        dtype="float16",
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=100,
        page_size=32,
        num_pages=50,
        gpu_memory_fraction=0.5,
        attention_kernel="xla",
        kv_write_kernel="xla@0-1",
        grouped_matmul_kernel="xla@1",
        speculative_config='{"method": "ngram", "num_speculative_tokens": 3}',
        rows="2",
        tokens="16",
    )
    engine = EngineConfig.from_settings(
        {
            "model": "llama-3-8b",
            "tensor_parallel_size": 4,
            "expert_parallel_size": 2,
            "dtype": "float16",
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "max_model_len": 100,
            "page_size": 32,
            "num_pages": 50,
            "gpu_memory_fraction": 0.5,
            "attention_kernel": "xla",
            "kv_write_kernel": "xla@0-1",
            "grouped_matmul_kernel": "xla@1",
            "speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}',
        }
    )
    assert config.engine() == engine


def test_steps_with_drafts_are_compiled_beside_those_without() -> None:
    settings: dict[str, Any] = {"rows": "2,4", "tokens": "64", "max_num_seqs": 8, "max_num_batched_tokens": 64}
    grid = BucketGrid.make(max_rows=8, max_tokens=64, min_rows=1)
    plain = TargetConfig(**settings).buckets(grid)
    assert plain == [Bucket(2, 2), Bucket(4, 4), Bucket(64, 8)]
    drafted = TargetConfig(speculative_config='{"method": "suffix", "num_speculative_tokens": 3}', **settings)
    assert drafted.buckets(grid.with_drafts(3)) == [*plain, Bucket(8, 2, 3), Bucket(16, 4, 3), Bucket(64, 8, 3)]


def test_draft_models_are_not_compiled_for_other_machines() -> None:
    with pytest.raises(ConfigError, match="programs of draft models"):
        TargetConfig(speculative_config='{"model": "draft", "num_speculative_tokens": 3}')


LEDGER = CompiledMemory(memory=100_000, usable=90_000, weights=50_000, state=4_000, temporary=6_000, token=10)


def test_what_is_left_is_cache() -> None:
    assert (LEDGER.cache, LEDGER.tokens) == (30_000, 3_000)
    assert replace(LEDGER, weights=95_000).tokens == 0


def test_room_for_one_sequence() -> None:
    LEDGER.require_room(3_000, target="h100:1")
    with pytest.raises(ConfigError, match=r"h100:1 is too small: 0\.00 GB short on each GPU"):
        LEDGER.require_room(3_001, target="h100:1")
    big = CompiledMemory(memory=80 * 10**9, usable=72 * 10**9, weights=141 * 10**9, state=10**9, temporary=2 * 10**9, token=10**5)
    with pytest.raises(ConfigError, match=r"too small: 72\.80 GB short.*weights take 141\.00, state 1\.00, workspace 2\.00"):
        big.require_room(8_000, target="h100:1")
