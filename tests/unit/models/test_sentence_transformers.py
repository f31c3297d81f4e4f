"""What directories of sentence-transformers say: modules, poolings, prompts, and where an older release put the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.config.fields import ModelConfig
from jaxserve.engine.poolers import served_of
from jaxserve.errors import JaxserveError, UnsupportedModelError
from jaxserve.models.registry import decoder_config
from jaxserve.models.sentence_transformers import dense_folders, read_sentence_transformer, transformer_folder
from tests.support.minimal_config import hf

CLS = {"pooling_mode_cls_token": True}


def made(
    directory: Path, pooling: dict[str, Any] = CLS, *, folder: str = "", modules: tuple[str, ...] = (), **files: Any
) -> Path:
    """A directory with a Transformer in a folder, poolings and further files; returns the Transformer's."""
    kinds = [
        ("Transformer", folder),
        ("Pooling", "1_Pooling"),
        *((kind, f"{place}_{kind}") for place, kind in enumerate(modules, 2)),
    ]
    written = {
        "modules.json": [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds],
        "1_Pooling/config.json": pooling,
        f"{folder}/config.json".removeprefix("/"): {},
        **{name.replace("__", "."): content for name, content in files.items()},
    }
    for name, content in written.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(json.dumps(content))
    return transformer_folder(directory)


@pytest.mark.format("embedders", "`pooling_mode` as a text, as a list of one, and as `pooling_mode_*` flags", "read")
@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (CLS, "first"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["lasttoken"]}, "last"),
        ({"pooling_mode": ["cls"], "include_prompt": False}, "first"),  # there are no prompts to leave out
    ],
)
def test_poolings(tmp_path: Path, pooling: dict[str, Any], expected: str) -> None:
    found = read_sentence_transformer(made(tmp_path, pooling))
    assert found is not None
    assert found.pooling == expected


@pytest.mark.format("embedders", "several modes of pooling, several modules `Pooling`", "refused")
@pytest.mark.parametrize(
    ("pooling", "modules", "words"),
    [
        ({"pooling_mode": ["cls", "mean"]}, (), r"1_Pooling/config\.json: pooling cls, mean is not supported"),
        ({"pooling_mode": [["cls"]]}, (), r"1_Pooling/config\.json: pooling \['cls'\] is not supported"),
        ({"pooling_mode": 7}, (), r"1_Pooling/config\.json: pooling 7 is not supported"),
        ({}, (), r"1_Pooling/config\.json: pooling none is not supported"),
        (CLS, ("Pooling",), "several modules Pooling"),
    ],
)
def test_poolings_that_are_not_computed_are_refused_by_name(
    tmp_path: Path, pooling: dict[str, Any], modules: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        read_sentence_transformer(made(tmp_path, pooling, modules=modules))


@pytest.mark.format("embedders", "`include_prompt: false` beside prompts, for pooling of the first token or the mean", "refused")
@pytest.mark.parametrize(("mode", "refused"), [("cls", True), ("mean", True), ("lasttoken", False)])
def test_prompts_that_are_to_be_left_out(tmp_path: Path, mode: str, refused: bool) -> None:
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    directory = made(tmp_path, {"pooling_mode": mode, "include_prompt": False}, config_sentence_transformers__json=prompts)
    if refused:
        with pytest.raises(UnsupportedModelError, match="include_prompt false is not supported"):
            read_sentence_transformer(directory)
    else:
        assert read_sentence_transformer(directory) is not None


@pytest.mark.format("embedders", "`0_Transformer/`", "read")
def test_a_model_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """As sentence-transformers saved it before 2.0, beside the folders of its other modules."""
    directory = made(tmp_path, folder="0_Transformer", modules=("Normalize",))
    assert directory == tmp_path / "0_Transformer"
    found = read_sentence_transformer(directory)
    assert found is not None
    assert found.normalizes
    assert dense_folders(directory) == {}
    assert transformer_folder(directory) == directory


@pytest.mark.format("embedders", "`do_lower_case`, `max_seq_length` of sentence_bert_config.json", "read")
def test_texts_are_made_lower_case_where_the_file_says_so(tmp_path: Path) -> None:
    for value in (True, False):
        directory = made(tmp_path / str(value), sentence_bert_config__json={"do_lower_case": value, "max_seq_length": 128})
        found = read_sentence_transformer(directory)
        assert found is not None
        assert (found.lowercases, found.max_length) == (value, 128)
        given = hf("Qwen3Model", model_type="qwen3")
        pooler = served_of(ModelConfig(), given, found, decoder_config(given), None).pooler
        assert pooler is not None
        assert pooler.prompted("Ein TEXT") == ("ein text" if value else "Ein TEXT")


def activation(**fields: Any) -> str:
    labels = {"model_type": "qwen3", "num_labels": 1, "id2label": {"0": "LABEL_0"}}
    given = hf("Qwen3ForSequenceClassification", **labels, **fields)
    pooler = served_of(ModelConfig(), given, None, decoder_config(given), None).pooler
    assert pooler is not None
    return pooler.activation


@pytest.mark.format("embedders", "other activations of cross-encoders", "refused")
@pytest.mark.format(
    "embedders",
    "`activation_fn` of cross-encoders, also under its older key: Identity, Sigmoid",
    "read",
)
def test_a_cross_encoders_activation_is_its_files() -> None:
    assert activation() == "sigmoid"
    assert activation(sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity", "version": "5"}) == "none"
    assert activation(sbert_ce_default_activation_function="torch.nn.modules.linear.Identity") == "none"
    assert activation(sentence_transformers={"activation_fn": "torch.nn.modules.activation.Sigmoid"}) == "sigmoid"
    with pytest.raises(JaxserveError, match=r"sentence_transformers\.activation_fn 'torch\.nn\.ReLU' is not supported"):
        activation(sentence_transformers={"activation_fn": "torch.nn.ReLU"})
