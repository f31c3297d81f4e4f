"""A prompt of 256K tokens in chunks, and another that begins as it does: logits are those of plain numpy in float64."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxserve.llm import LLM
from jaxserve.models.registry import decoder_config
from jaxserve.models.rope import inverse_frequencies
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import TokensPrompt
from tests.support.tiny_checkpoint import write_tiny_checkpoint

LONGEST, EMBED, DIM, PAGE, CHUNK = 2**18, 32, 8, 64, 4096
CHANGED = 500  # the last tokens of the second prompt
YARN = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}
SIZES = {"hidden_size": EMBED, "head_dim": DIM, "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 16}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """One layer, so that a token's hidden state needs no more of the others than their keys and values."""
    path = write_tiny_checkpoint(tmp_path_factory.mktemp("long"), LONGEST)
    config = json.loads((path / "config.json").read_text()) | SIZES | {"num_hidden_layers": 1, "rope_scaling": YARN}
    (path / "config.json").write_text(json.dumps(config))
    rng, block = np.random.default_rng(0), "model.layers.0."
    shapes = {
        "model.embed_tokens": (config["vocab_size"], EMBED),
        **{f"{block}self_attn.{name}_proj": (DIM, EMBED) for name in "qkv"},
        f"{block}self_attn.o_proj": (EMBED, DIM),
        **{f"{block}mlp.{name}_proj": (16, EMBED) for name in ("gate", "up")},
        f"{block}mlp.down_proj": (EMBED, 16),
        **dict.fromkeys(("model.norm", f"{block}input_layernorm", f"{block}post_attention_layernorm"), (EMBED,)),
    }
    save_file(
        {f"{name}.weight": rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()},
        path / "model.safetensors",
    )
    return path


def plain_logprobs(directory, tokens: np.ndarray) -> np.ndarray:
    """Of the token after all these: float64[V]."""
    weights = {name: array.astype(np.float64) for name, array in load_file(directory / "model.safetensors").items()}
    config = decoder_config(json.loads((directory / "config.json").read_text()))
    rope, table, block = config.ropes[0], weights["model.embed_tokens.weight"], "model.layers.0."
    assert rope is not None
    angles = np.arange(len(tokens), dtype=np.float32)[:, None] * inverse_frequencies(rope, DIM)[None]
    cos, sin = (rope.attention_factor * function(angles.astype(np.float64)) for function in (np.cos, np.sin))

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        scaled: np.ndarray = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + config.norm_eps) * weights[f"{name}.weight"]
        return scaled

    def turned(x: np.ndarray, at: slice) -> np.ndarray:
        a, b = x[..., : DIM // 2], x[..., DIM // 2 :]
        return np.concatenate([a * cos[at] - b * sin[at], b * cos[at] + a * sin[at]], axis=-1)

    x = table[tokens]
    normed = norm(x, f"{block}input_layernorm")
    q, k, v = (normed @ weights[f"{block}self_attn.{name}_proj.weight"].T for name in "qkv")
    scores = turned(k, slice(None)) @ turned(q[-1:], slice(-1, None))[0] / np.sqrt(DIM)
    weight = np.exp(scores - scores.max())
    x = x[-1] + weight @ v / weight.sum() @ weights[f"{block}self_attn.o_proj.weight"].T
    normed = norm(x, f"{block}post_attention_layernorm")
    gate, up = (normed @ weights[f"{block}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    x = x + gate / (1 + np.exp(-gate)) * up @ weights[f"{block}mlp.down_proj.weight"].T
    logits = norm(x, "model.norm") @ table.T
    top = logits.max()
    logprobs: np.ndarray = logits - top - np.log(np.exp(logits - top).sum())
    return logprobs


def test_256k_tokens_in_chunks_and_from_the_prefix_cache(directory):
    llm = LLM(
        str(directory),
        dtype="float32",
        max_num_seqs=2,
        max_num_batched_tokens=CHUNK,
        page_size=PAGE,
        num_pages=(LONGEST + 2 * CHANGED) // PAGE + 8,
    )
    rng = np.random.default_rng(1)
    first = rng.integers(4, 250, LONGEST - 8)
    second = np.concatenate([first[:-CHANGED], rng.integers(4, 250, CHANGED)])
    for tokens, cached in ((first, 0), (second, (len(first) - CHANGED) // PAGE * PAGE)):
        params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=5)
        (output,) = llm.generate([TokensPrompt(prompt_token_ids=tokens.tolist())], params)
        assert output.num_cached_tokens == cached
        said = output.outputs[0]
        assert said.logprobs is not None
        for place in range(4):
            expected = plain_logprobs(directory, np.concatenate([tokens, said.token_ids[:place]]).astype(np.int64))
            assert said.token_ids[place] == expected.argmax()
            for token, found in said.logprobs[place].items():
                assert found.logprob == pytest.approx(expected[token], abs=2e-3)
