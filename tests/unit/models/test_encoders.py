"""What config.json says of an encoder, and what is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import load_file

from jaxserve.engine.poolers import with_separator
from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.models.sentence_transformers import read_sentence_transformer, with_modules
from jaxserve.planner.hf import shape_from_hf
from tests.golden.reading import DATA

POOLED = DATA.parent / "pooled"


def described(name: str, **change: Any) -> Any:
    return decoder_config({**read_hf_config(POOLED / name), **change})


def test_positions_begin_behind_the_one_of_padding() -> None:
    config = described("xlm-roberta-cls")
    assert (config.encoder.positions, config.encoder.first_position, config.max_position_embeddings) == (300, 2, 298)
    assert described("bert-mean").max_position_embeddings == 512


def test_windows_are_of_both_sides() -> None:
    """Of 12 neighbours there are 6 to either side, and the token itself; the first of three layers sees all."""
    assert described("modernbert-cls").windows == (None, 7, 7)
    assert described("modernbert-cls").cache_windows == (None, None, None)
    assert described("gemma3-both-ways").windows == (6, None, 6)


@pytest.mark.parametrize(
    ("name", "change", "error", "words"),
    [
        ("bert-mean", {"hidden_act": "swish"}, UnsupportedModelError, "hidden_act='swish' is not supported; supported are gelu"),
        ("bert-mean", {"position_embedding_type": "relative_key"}, UnsupportedModelError, "supported is absolute"),
        ("bert-mean", {"is_decoder": True}, UnsupportedModelError, "supported are encoders"),
        ("bert-mean", {"model_type": "roberta"}, UnsupportedModelError, "goes with 'bert'"),
        ("bert-mean", {"architectures": ["BertForMaskedLM"]}, UnsupportedModelError, "BertForMaskedLM in config.json"),
        ("bert-mean", {"type_vocab_size": 0}, CheckpointError, "type_vocab_size must be a positive integer"),
        ("modernbert-cls", {"attention_bias": True}, UnsupportedModelError, "attention_bias=True"),
        ("modernbert-cls", {"hidden_activation": "silu"}, UnsupportedModelError, "supported is gelu"),
        ("modernbert-cls", {"layer_types": ["full_attention"]}, CheckpointError, "layer_types has 1 entries for 3 layers"),
    ],
)
def test_what_is_not_implemented_is_named(name: str, change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        described(name, **change)


@pytest.mark.parametrize(
    ("name", "unused"),
    [
        ("bert-mean", ("pooler.",)),  # which embeddings do not go through
        ("bert-cross", ()),
        ("xlm-roberta-cls", ("pooler.",)),
        ("xlm-roberta-cross", ()),
        ("modernbert-cls", ()),
        ("modernbert-cross", ()),
        ("gemma3-both-ways", ()),
    ],
)
def test_parameters_are_counted(name: str, unused: tuple[str, ...]) -> None:
    """As many as the checkpoint's files hold."""
    config, sentences = described(name), read_sentence_transformer(POOLED / name)
    config = config if sentences is None else with_modules(config, sentences)
    files = [load_file(path) for path in (POOLED / name).rglob("*.safetensors")]
    tensors = [tensor for file in files for name, tensor in file.items() if not name.startswith(unused or "-")]
    assert config.num_parameters == sum(tensor.size for tensor in tensors)


def test_nothing_is_told_apart_where_nothing_stands_between() -> None:
    """Of a tokenizer that puts nothing around a text, no token is behind the first of two."""
    config, silent = described("bert-mean"), SimpleNamespace(encode=lambda text: [])
    assert with_separator(config, silent) == config  # type: ignore[arg-type]
    ends = SimpleNamespace(encode=lambda text: [1, 2])
    assert with_separator(config, ends).encoder.separator == 2  # type: ignore[arg-type,union-attr]


def test_plans_are_of_models_with_a_cache() -> None:
    hf = read_hf_config(POOLED / "gemma3-both-ways")
    with pytest.raises(UnsupportedModelError, match="has no KV cache to plan"):
        shape_from_hf(hf, "gemma3-both-ways")
