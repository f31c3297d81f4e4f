"""The benchmark model with random weights, as every engine wants it: a Hugging Face directory and GGUF files.

Weights are normal, in bfloat16, with the usual deviations, but for those of `decisive`. Every token is a word of four characters
(see `benchmarks.batch_requests`): a text tells how many tokens it is, whichever server sent it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from benchmarks.batch_requests import VOCABULARY, word, write_checkpoint
from benchmarks.llama150m import CONFIG
from benchmarks.peers import decisive
from benchmarks.peers.gguf import Blocks, Tensor, write_gguf

Array = npt.NDArray[Any]
DEVIATION = 0.02
_NORMAL, _CONTROL = 1, 3  # token types of GGUF
_FLOAT16, _BFLOAT16 = 1, 32  # file types of GGUF
_FILE_TYPES: Mapping[Blocks, int] = MappingProxyType({"q4_0": 2, "q8_0": 7})
_SPECIAL = 3  # ids 0, 1 and 2: unknown, beginning, end
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TO_RESIDUAL = ("o_proj", "down_proj")  # deviations of these are divided by the root of how many there are, as GPT-2's are
_OUTER_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


@dataclass(frozen=True, slots=True)
class Models:
    """Where the model lies: a Hugging Face directory and a GGUF file in bfloat16, and a GGUF file in float16.

    Rounded to blocks, both GGUF files are one.
    """

    checkpoint: Path
    gguf: Path
    gguf_float16: Path


def write_models(directory: Path, blocks: Blocks | None = None) -> Models:
    """Write all three, some 400 MB each; the same every time. With `blocks` the GGUF file is rounded to them."""
    tensors = dict(weights())
    written = write_directory(directory / "llama150m", tensors)
    if blocks is not None:
        rounded = directory / f"llama150m-{blocks}.gguf"
        held = [gguf_tensor(name, array, np.float32, blocks) for name, array in tensors.items()]
        write_gguf(rounded, {**gguf_fields(), "general.file_type": _FILE_TYPES[blocks]}, held)
        return Models(written, rounded, rounded)
    found = Models(written, directory / "llama150m.gguf", directory / "llama150m-float16.gguf")
    fields = gguf_fields()
    for path, file_type, dtype in ((found.gguf, _BFLOAT16, ml_dtypes.bfloat16), (found.gguf_float16, _FLOAT16, np.float16)):
        held = [gguf_tensor(name, array, dtype) for name, array in tensors.items()]
        write_gguf(path, {**fields, "general.file_type": file_type}, held)
    return found


def write_directory(directory: Path, tensors: Mapping[str, Array]) -> Path:
    """Write the Hugging Face directory; its path again."""
    write_checkpoint(directory)
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    save_file(dict(tensors), directory / "model.safetensors", {"format": "pt"})
    return directory


def weights(seed: int = 0) -> Iterator[tuple[str, Array]]:
    """Names of Hugging Face's Llama and their tensors, bfloat16."""
    size = {name: int(str(CONFIG[name])) for name in ("hidden_size", "intermediate_size", "vocab_size", "head_dim")}
    hidden, ffn, vocabulary = size["hidden_size"], size["intermediate_size"], size["vocab_size"]
    queries, keys = (int(str(CONFIG[name])) * size["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (vocabulary, hidden), "model.norm": (hidden,)}
    shapes["lm_head"] = (vocabulary, hidden)
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }
    layers = int(str(CONFIG["num_hidden_layers"]))
    for number in range(layers):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    random = np.random.default_rng(seed)
    table, looking = decisive.embedding(random), decisive.attention(random, queries, keys)
    made = {"model.embed_tokens": table, "lm_head": decisive.head(table, looking, DEVIATION)}
    made |= {f"model.layers.{decisive.LAYER}.self_attn.{name}_proj": array for name, array in looking.items()}
    for name, shape in shapes.items():
        values = made.get(name)
        if values is None:
            values = random.standard_normal(shape, np.float32) * DEVIATION + (1.0 if len(shape) == 1 else 0.0)
            if name.endswith(_TO_RESIDUAL):
                values /= (2 * layers) ** 0.5
            if name.endswith(_TO_RESIDUAL) or len(shape) == 1:
                decisive.unmarked(values)
        yield f"{name}.weight", values.astype(ml_dtypes.bfloat16)


def gguf_fields() -> dict[str, Any]:
    """What a GGUF file says of the model, its tokenizer included."""
    words = [word(token).replace(" ", "Ġ") for token in range(VOCABULARY)]
    return {
        "general.architecture": "llama",
        "general.name": "llama150m",
        "llama.block_count": CONFIG["num_hidden_layers"],
        "llama.context_length": CONFIG["max_position_embeddings"],
        "llama.embedding_length": CONFIG["hidden_size"],
        "llama.feed_forward_length": CONFIG["intermediate_size"],
        "llama.attention.head_count": CONFIG["num_attention_heads"],
        "llama.attention.head_count_kv": CONFIG["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": CONFIG["rms_norm_eps"],
        "llama.rope.dimension_count": CONFIG["head_dim"],
        "llama.rope.freq_base": CONFIG["rope_theta"],
        "llama.vocab_size": VOCABULARY,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [_CONTROL] * _SPECIAL + [_NORMAL] * (VOCABULARY - _SPECIAL),
        "tokenizer.ggml.merges": [f"{words[3][0]} {words[3][1]}"],  # readers want one; prompts come as token ids
        "tokenizer.ggml.bos_token_id": CONFIG["bos_token_id"],
        "tokenizer.ggml.eos_token_id": CONFIG["eos_token_id"],
        "tokenizer.ggml.add_bos_token": False,
    }


def gguf_tensor(name: str, array: Array, dtype: npt.DTypeLike, blocks: Blocks | None = None) -> Tensor:
    """A tensor under GGUF's name: matrices in this dtype, norms in float32, q and k with the halves of a head interleaved.

    Llama in GGUF rotates neighbouring values, in Hugging Face's layout the two halves of a head. Matrices of products are rounded
    to `blocks`, if any; the embedding table, of which a token reads a row, to the finer ones.
    """
    stem = name.removesuffix(".weight")
    if stem in _OUTER_NAMES:
        renamed = _OUTER_NAMES[stem]
    else:
        _, _, number, rest = stem.split(".", 3)
        renamed = f"blk.{number}.{_LAYER_NAMES[rest]}"
        if rest in ("self_attn.q_proj", "self_attn.k_proj"):
            half = int(str(CONFIG["head_dim"])) // 2
            array = array.reshape(-1, 2, half, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
    if array.ndim == 1:
        return Tensor(f"{renamed}.weight", array.astype(np.float32))
    finer: Blocks = "q8_0"
    rounded = finer if blocks is not None and renamed == _OUTER_NAMES["model.embed_tokens"] else blocks
    return Tensor(f"{renamed}.weight", array.astype(dtype), rounded)
