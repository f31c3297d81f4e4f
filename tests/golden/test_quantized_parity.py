"""Live: what `jaxserve.quantize` writes, transformers loads with compressed-tensors, and both choose the same tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxserve import quantize
from jaxserve.models.registry import decoder_config, weight_rules
from tests.golden import make_quantized
from tests.golden.reading import check_greedy, forward, load

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # of torch and transformers
CASES = [(model, scheme) for model, schemes in make_quantized.CASES.items() for scheme in schemes]
WIDE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
"""A model that blocks of 128 fit, which golden models are too small for."""


def check(written: Path, prompts: dict[int, list[int]]) -> None:
    ours, answers = forward(*load(written)), make_quantized.answers(written, prompts)
    assert len(answers) >= 2, "all the others came near a tie"
    for answer in answers:
        check_greedy(ours, prompts[answer["prompt"]], answer["greedy"])


@pytest.fixture(autouse=True)
def libraries() -> None:
    for name in ("torch", "transformers", "compressed_tensors"):
        pytest.importorskip(name, reason=f"NOT CHECKED: {name} is not installed, which `make parity` does")


@pytest.mark.parametrize(("model", "scheme"), CASES)
def test_tokens_of_golden_models(tmp_path: Path, model: str, scheme: str) -> None:
    assert quantize.main(make_quantized.arguments(model, scheme, tmp_path)) == 0
    check(tmp_path / f"{model}-{scheme}", make_quantized.prompts_of(model))


def test_tokens_in_blocks(tmp_path: Path) -> None:
    rng, plain = np.random.default_rng(0), tmp_path / "plain"
    plain.mkdir()
    rules = weight_rules(decoder_config(WIDE))
    shapes = {source.name: source.shape for rule in rules for source in rule.sources}
    drawn = {name: rng.normal(size=shape, scale=1.5 * shape[-1] ** -0.5) for name, shape in shapes.items()}
    save_file({name: array.astype(np.float32) for name, array in drawn.items()}, plain / "model.safetensors")
    (plain / "config.json").write_text(json.dumps(WIDE))
    assert quantize.main([str(plain), str(tmp_path / "out"), "--scheme", "fp8-block"]) == 0
    check(tmp_path / "out", {number: rng.integers(97, size=number).tolist() for number in range(5, 70, 4)})
