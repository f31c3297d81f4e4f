"""Embeddings and scores are those of sentence-transformers and transformers, beside each other in steps of several chunks."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve import LLM, PoolingParams
from jaxserve.errors import CheckpointError, ConfigError, InvalidRequestError, UnsupportedModelError
from tests.golden.reading import DATA

POOLED = DATA.parent / "pooled"
SIZES: dict[str, Any] = {
    "max_num_seqs": 4,
    "before_ready": "fewest",
    "max_num_batched_tokens": 32,
    "max_model_len": 512,
    "dtype": "float32",
    "page_size": 8,
}
ENCODERS = ("bert-mean", "xlm-roberta-cls", "modernbert-cls")
BOTH_WAYS = ("gemma3-both-ways", *ENCODERS)
CROSS_ENCODERS = ("bert-cross", "xlm-roberta-cross", "modernbert-cross")
WHOLE: dict[str, Any] = {"max_num_batched_tokens": 256, "max_model_len": 256}  # prompts are computed in one step
RERANKER: dict[str, Any] = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["to", "te"]}


def load(name: str, **settings: Any) -> Any:
    return LLM(str(POOLED / name), **{**SIZES, **settings})


def golden(name: str) -> Any:
    return json.loads((POOLED / name / "pooled.json").read_text())


@pytest.mark.parametrize("name", ["qwen3-last", "mistral-last", "llama-mean", *BOTH_WAYS])
def test_embeddings(name: str) -> None:
    llm, wanted = load(name, **WHOLE if name in BOTH_WAYS else {}), golden(name)
    assert not llm.report.model.generates
    for kind, embeddings in wanted["embeddings"].items():
        outputs = llm.embed(wanted["texts"], prompt_name=None if kind == "plain" else kind, use_tqdm=False)
        for output, embedding in zip(outputs, embeddings, strict=True):
            got = np.array(output.outputs.embedding)
            cosine = got @ embedding / (np.linalg.norm(got) * np.linalg.norm(embedding))
            assert cosine > 0.99999
            np.testing.assert_allclose(got, embedding, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("qwen2-cross", {}), ("qwen3-reranker", {"hf_overrides": RERANKER}), *((name, WHOLE) for name in CROSS_ENCODERS)],
)
def test_scores_of_pairs(name: str, settings: Any) -> None:
    wanted = golden(name)
    first, second = zip(*wanted["pairs"], strict=True)
    llm = load(name, **settings)
    outputs = llm.score(list(first), list(second), use_tqdm=False)
    np.testing.assert_allclose([one.outputs.score for one in outputs], wanted["scores"], atol=1e-4)


def test_classes() -> None:
    llm, wanted = load("llama-classes"), golden("llama-classes")
    probs = [one.outputs.probs for one in llm.classify(wanted["texts"], use_tqdm=False)]
    np.testing.assert_allclose(probs, wanted["probs"], atol=1e-4)
    rewards = llm.encode(wanted["texts"], PoolingParams(task="reward"), use_tqdm=False)
    np.testing.assert_allclose([one.outputs.data for one in rewards], wanted["logits"], atol=2e-4)
    with pytest.raises(InvalidRequestError, match="served for classify, reward"):
        llm.embed("a")
    with pytest.raises(InvalidRequestError, match="not to generate text"):
        llm.generate("a")


def test_embeddings_are_cut_where_the_model_declares_it() -> None:
    llm = load("qwen3-last", hf_overrides={"matryoshka_dimensions": [8, 16]})
    whole = np.array(llm.embed("tea", use_tqdm=False)[0].outputs.embedding)
    cut = llm.embed("tea", pooling_params=PoolingParams(dimensions=8), use_tqdm=False)[0].outputs.embedding
    np.testing.assert_allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)
    for dimensions, words in ((9, "one of 8, 16, got 9"), (64, "at most 32, got 64")):
        with pytest.raises(InvalidRequestError, match=words) as caught:
            llm.embed("tea", pooling_params=PoolingParams(dimensions=dimensions))
        assert caught.value.param == "dimensions"


@pytest.mark.parametrize(
    ("name", "settings", "error", "words"),
    [
        ("qwen3-last", {"runner": "generate"}, ConfigError, "Qwen3Model has no head for logits"),
        ("qwen3-last", {"convert": "classify"}, ConfigError, "no head that classifies"),
        ("qwen3-last", {"hf_overrides": "{"}, ConfigError, "hf_overrides: not JSON"),
        ("qwen3-last", {"hf_overrides": {"matryoshka_dimensions": [0]}}, CheckpointError, "positive integers"),
        ("llama-classes", {"hf_overrides": {"id2label": {"1": "a"}}}, CheckpointError, "id2label must name"),
        ("qwen3-reranker", {"hf_overrides": {**RERANKER, "classifier_from_token": ["to", "xyz"]}}, CheckpointError, "3 tokens"),
    ],
)
def test_what_a_checkpoint_cannot_do_is_said_at_the_start(
    name: str, settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        load(name, **settings)


DENSE = json.loads((POOLED / "gemma3-both-ways" / "2_Dense" / "config.json").read_text())


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"in_features": 31}, CheckpointError, "2_Dense: in_features is 31, and what comes has 32 numbers"),
        ({"out_features": 47}, CheckpointError, "3_Dense: in_features is 48, and what comes has 47 numbers"),
        ({"activation_function": "torch.nn.modules.activation.ReLU"}, UnsupportedModelError, "supported are Identity, Tanh"),
        ({"bias": True}, CheckpointError, "2_Dense/linear.bias"),
    ],
)
def test_dense_layers_that_do_not_fit_are_named(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    directory = shutil.copytree(POOLED / "gemma3-both-ways", tmp_path / "model")
    (directory / "2_Dense" / "config.json").write_text(json.dumps({**DENSE, **change}))
    with pytest.raises(error, match=words):
        LLM(str(directory), **{**SIZES, **WHOLE})


@pytest.mark.parametrize("name", ["modernbert-cls", "gemma3-both-ways"])
def test_two_devices_give_the_same(name: str) -> None:
    wanted = golden(name)
    outputs = load(name, **WHOLE, tensor_parallel_size=2).embed(wanted["texts"], use_tqdm=False)
    got = np.array([one.outputs.embedding for one in outputs])
    np.testing.assert_allclose(got, wanted["embeddings"]["plain"], atol=1e-4, rtol=1e-4)


def test_a_prompt_must_fit_into_a_step() -> None:
    with pytest.raises(
        ConfigError, match="max_model_len is 512 tokens, and this model computes a prompt in one step, which has 32"
    ):
        load("gemma3-both-ways")
    with pytest.raises(ConfigError, match="caches nothing that could be swapped"):
        load("gemma3-both-ways", **WHOLE, swap_space=0.01)


@pytest.mark.parametrize(
    ("file", "content", "error", "words"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "max"}, UnsupportedModelError, "pooling max is not supported"),
        ("1_Pooling/config.json", {}, UnsupportedModelError, "pooling none is not supported"),
        ("modules.json", [{"type": "a.Dense", "path": ""}], UnsupportedModelError, "a module Dense is not supported"),
        ("modules.json", {"type": 1}, CheckpointError, "no list of modules"),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, CheckpointError, "an object of texts"),
        ("config_sentence_transformers.json", {"default_prompt_name": "a"}, CheckpointError, "not among the prompts"),
    ],
)
def test_modules_that_are_not_here_are_refused_by_name(
    tmp_path: Path, file: str, content: Any, error: type[Exception], words: str
) -> None:
    directory = shutil.copytree(POOLED / "qwen3-last", tmp_path / "model")
    (directory / file).write_text(json.dumps(content))
    with pytest.raises(error, match=words):
        LLM(str(directory), **SIZES)
