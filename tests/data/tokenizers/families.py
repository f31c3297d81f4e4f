"""tokenizer.json of every family in small: its published structure, with a vocabulary of a few dozen words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers

from tests.data.tokenizers.samples import write_json

WORDS = ["hello", "world", "there", "again", "quick", "brown", "we", "don", "'t", "naïve", "日本", "12", "123", "ing", "tion"]

Json = dict[str, Any]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = O200K.replace(_SUFFIX, "").replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)


def write_family(folder: Path, name: str) -> Path:
    """A checkpoint's tokenizer files of the kind `name` of FAMILIES."""
    folder.mkdir(parents=True, exist_ok=True)
    FAMILIES[name](folder)
    return folder


def _save(folder: Path, tokenizer: Json, config: Json) -> None:
    whole = {"version": "1.0", "truncation": None, "padding": None, **tokenizer}
    (folder / "tokenizer.json").write_text(json.dumps(whole, ensure_ascii=False), encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **config})


def _added(first: int, *names: str, special: bool = True, **flags: bool) -> list[Json]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [{"id": first + i, "content": name, **plain, "special": special, **flags} for i, name in enumerate(names)]


def _merges(pieces: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """The tokens and merges that build each word from left to right."""
    tokens: dict[str, None] = {}
    merges: dict[tuple[str, str], None] = {}
    for letters in pieces:
        whole = letters[0]
        for letter in letters[1:]:
            merges[whole, letter] = None
            whole += letter
            tokens[whole] = None
    return list(tokens), [list(pair) for pair in merges]


def _byte_level_bpe(**choices: Any) -> tuple[Json, int]:
    """A BPE over bytes, and how many tokens it has."""
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = [list(spelled.pre_tokenize_str(text)[0][0]) for word in WORDS for text in (word, f" {word}")]
    tokens, merges = _merges(pieces)
    vocab = {token: i for i, token in enumerate(dict.fromkeys([*sorted(pre_tokenizers.ByteLevel.alphabet()), *tokens]))}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": ""}
    return {**model, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": merges, **choices}, len(vocab)


def _behind(names: tuple[str, ...], model: Json, size: int) -> tuple[Json, int]:
    """A model whose tokens come behind these."""
    first = {name: i for i, name in enumerate(names)}
    return {**model, "vocab": first | {token: i + len(names) for token, i in model["vocab"].items()}}, size + len(names)


def _byte_fallback_bpe(*specials: str) -> tuple[Json, int]:
    """A BPE over characters that spells unknown ones in bytes, as SentencePiece does; special tokens first."""
    pieces = [list(text.replace(" ", "▁")) for word in WORDS for text in (word, f" {word}")]
    tokens, merges = _merges(pieces)
    letters = sorted({letter for piece in pieces for letter in piece} | set("abcdefghijklmnopqrstuvwxyz<>|"))
    names = [*specials, *(f"<0x{value:02X}>" for value in range(256)), "\n", *letters, *tokens]
    vocab = {name: i for i, name in enumerate(dict.fromkeys(names))}
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    return {**model, "vocab": vocab, "merges": merges}, len(vocab)


def _split(pattern: str, behavior: str = "Isolated") -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def _bytes(**choices: bool) -> Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False, **choices}


def _sequence(key: str, *steps: Json) -> Json:
    return {"type": "Sequence", key: list(steps)}


def _begin(name: str, token_id: int) -> Json:
    begin, text = ({"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}})
    special = {name: {"id": name, "ids": [token_id], "tokens": [name]}}
    pair = [begin, text, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": [begin, text], "pair": pair, "special_tokens": special}


def _replace(old: str, new: str) -> Json:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _fallback_decoder(*last: Json) -> Json:
    return _sequence("decoders", _replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *last)


_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def _llama3(folder: Path) -> None:
    """Also Llama 4 and SmolLM3: words of a BPE over bytes are taken whole, whatever its merges."""
    model, size = _byte_level_bpe(ignore_merges=True)
    names = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|eot_id|>")
    tokenizer = {
        "added_tokens": _added(size, *names),
        "normalizer": None,
        "pre_tokenizer": _sequence("pretokenizers", _split(LLAMA3), _bytes()),
        "post_processor": _sequence("processors", _bytes(use_regex=True), _begin(names[0], size)),
        "decoder": _bytes(use_regex=True),
        "model": model,
    }
    _save(folder, tokenizer, {"bos_token": names[0], "eos_token": names[1], "clean_up_tokenization_spaces": False})


def _qwen(folder: Path) -> None:
    """Qwen 2 and 3: texts are composed (NFC), no token begins them, and `<think>` is text."""
    model, size = _byte_level_bpe()
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer = {
        "added_tokens": [*_added(size, *names), *_added(size + 3, "<think>", "<tool_call>", special=False)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": _sequence("pretokenizers", _split(QWEN), _bytes()),
        "post_processor": _bytes(trim_offsets=False),
        "decoder": _bytes(trim_offsets=False),
        "model": model,
    }
    config = {"add_bos_token": False, "bos_token": None, "eos_token": names[2], "pad_token": names[0]}
    _save(folder, tokenizer, {**config, "additional_special_tokens": list(names[1:]), "add_prefix_space": False})


def _o200k(folder: Path) -> None:
    """gpt-oss: OpenAI's o200k_harmony, whose special tokens name the parts of a conversation."""
    model, size = _byte_level_bpe(ignore_merges=True)
    names = ("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>")
    tokenizer = {
        "added_tokens": _added(size, *names),
        "normalizer": None,
        "pre_tokenizer": _sequence("pretokenizers", _split(O200K, "Removed") | {"invert": True}, _bytes()),
        "post_processor": _bytes(trim_offsets=False),
        "decoder": _bytes(),
        "model": model,
    }
    _save(folder, tokenizer, {"bos_token": names[0], "eos_token": names[2], "pad_token": names[1]})


def _deepseek2(folder: Path) -> None:
    """DeepSeek-V2: every digit alone, lines alone."""
    model, size = _byte_level_bpe()
    names = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
    steps = [_split("[\r\n]"), _split(r"\s?\p{L}+"), _split(r"\s?\p{P}+"), _split("[一-龥ࠀ-一가-퟿]+")]
    tokenizer = {
        "added_tokens": _added(size, *names, normalized=True),
        "normalizer": _sequence("normalizers"),
        "pre_tokenizer": _sequence("pretokenizers", *steps, {"type": "Digits", "individual_digits": True}, _bytes()),
        "post_processor": _bytes(trim_offsets=False),
        "decoder": _bytes(use_regex=True),
        "model": model,
    }
    _save(folder, tokenizer, {"add_bos_token": True, "add_eos_token": False, "bos_token": names[0], "eos_token": names[1]})


def _deepseek3(folder: Path) -> None:
    """DeepSeek-V3 and R1: the first token is named twice, by the file and by the configuration."""
    model, size = _byte_level_bpe()
    names = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
    tokenizer = {
        "added_tokens": [*_added(size, *names[:2]), *_added(size + 2, *names[2:], special=False)],
        "normalizer": _sequence("normalizers"),
        "pre_tokenizer": _sequence("pretokenizers", *map(_split, DEEPSEEK3), _bytes()),
        "post_processor": _begin(names[0], size),
        "decoder": _bytes(use_regex=True),
        "model": model,
    }
    first = {
        "__type": "AddedToken",
        "content": names[0],
        **dict.fromkeys(("lstrip", "rstrip", "single_word"), False),
        "normalized": True,
    }
    named = {"bos_token": first, "eos_token": names[1]}
    _save(folder, tokenizer, {"add_bos_token": True, "add_eos_token": False, **named})


def _granite(folder: Path) -> None:
    """Granite 3 and StarCoder: digits alone, and GPT-2's own pattern."""
    model, size = _byte_level_bpe()
    names = ("<|end_of_text|>", "<fim_prefix>", "<|start_of_role|>")
    tokenizer = {
        "added_tokens": _added(size, *names),
        "normalizer": None,
        "pre_tokenizer": _sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, _bytes(use_regex=True)),
        "post_processor": None,
        "decoder": _bytes(use_regex=True),
        "model": model,
    }
    _save(folder, tokenizer, {"add_bos_token": False, "bos_token": names[0], "eos_token": names[0], "pad_token": names[0]})


def _phi3(folder: Path) -> None:
    """Phi-3: Llama 2's vocabulary, with tokens that take the white space after them."""
    model, size = _byte_fallback_bpe("<unk>", "<s>", "</s>")
    added = [*_added(0, "<unk>", "<s>"), *_added(2, "</s>", special=False, rstrip=True)]
    tokenizer = {
        "added_tokens": [*added, *_added(size, "<|endoftext|>"), *_added(size + 1, "<|assistant|>", "<|end|>", rstrip=True)],
        "normalizer": _sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, _replace(" ", "▁")),
        "pre_tokenizer": None,
        "post_processor": _begin("<s>", 1),
        "decoder": _fallback_decoder(_STRIP),
        "model": model,
    }
    _save(folder, tokenizer, {"add_bos_token": False, "add_eos_token": False, "bos_token": "<s>", "eos_token": "<|endoftext|>"})


def _mixtral(folder: Path) -> None:
    """Mistral and Mixtral: Llama 2's, marked by the pre-tokenizer and only at the beginning of a text."""
    model, _ = _byte_fallback_bpe("<unk>", "<s>", "</s>", "[INST]", "[/INST]")
    mark = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    tokenizer = {
        "added_tokens": _added(0, "<unk>", "<s>", "</s>", "[INST]", "[/INST]"),
        "normalizer": None,
        "pre_tokenizer": mark,
        "post_processor": _begin("<s>", 1),
        "decoder": _fallback_decoder(_STRIP),
        "model": model,
    }
    _save(folder, tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": False})


def _gemma(folder: Path) -> None:
    """Gemma 2 and 3: no mark at the beginning, and runs of spaces and lines that are tokens."""
    model, size = _byte_fallback_bpe("<pad>", "<eos>", "<bos>", "<unk>", "▁▁", "▁▁▁")
    tokenizer = {
        "added_tokens": [
            *_added(0, "<pad>", "<eos>", "<bos>", "<unk>"),
            *_added(4, "▁▁", "▁▁▁", special=False),
            *_added(size, "<start_of_turn>", "<end_of_turn>"),
        ],
        "normalizer": _replace(" ", "▁"),
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": _begin("<bos>", 2),
        "decoder": _fallback_decoder(),
        "model": model,
    }
    config = {"add_bos_token": True, "add_eos_token": False, "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    _save(folder, tokenizer, {**config, "extra_special_tokens": {"boi_token": "<start_of_turn>"}})


def _olmo2(folder: Path) -> None:
    """OLMo 2: OpenAI's cl100k with the names of GPT-NeoX. What its configuration says of BOS counts for nothing here."""
    model, size = _byte_level_bpe()
    names = ("<|extra_id_0|>", "<|endoftext|>", "<|pad|>")
    tokenizer = {
        "added_tokens": [*_added(size, names[0], special=False), *_added(size + 1, *names[1:])],
        "normalizer": None,
        "pre_tokenizer": _sequence("pretokenizers", _split(LLAMA3, "Removed") | {"invert": True}, _bytes()),
        "post_processor": None,
        "decoder": _bytes(use_regex=True),
        "model": model,
    }
    named = {"bos_token": names[1], "eos_token": names[1], "pad_token": names[2]}
    _save(folder, tokenizer, {**named, "add_bos_token": True, "add_eos_token": True})


def _cohere(folder: Path) -> None:
    """Command R and Command A: texts are composed, digits alone, GPT-2's own pattern, and special tokens before all others."""
    names = ("<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>", "<EOS_TOKEN>", "<EOP_TOKEN>")
    model, size = _behind(names, *_byte_level_bpe())
    turns = ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>")
    tokenizer = {
        "added_tokens": [*_added(0, *names), *_added(size, *turns, special=False)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": _sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, _bytes(use_regex=True)),
        "post_processor": _begin("<BOS_TOKEN>", 5),
        "decoder": _bytes(use_regex=True),
        "model": model,
    }
    named = {"bos_token": "<BOS_TOKEN>", "eos_token": turns[1], "pad_token": "<PAD>", "unk_token": None}
    _save(folder, tokenizer, {**named, "add_bos_token": True, "add_eos_token": False})


def _tekken(folder: Path) -> None:
    """Ministral 3 and Nemotron-H: words by case and single digits, special tokens before all others."""
    names = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]")
    model, _ = _behind(names, *_byte_level_bpe(ignore_merges=True))
    tokenizer = {
        "added_tokens": _added(0, *names),
        "normalizer": None,
        "pre_tokenizer": _sequence("pretokenizers", _split(TEKKEN), _bytes()),
        "post_processor": _begin("<s>", 1),
        "decoder": _bytes(use_regex=True),
        "model": model,
    }
    _save(folder, tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})


def _glm4(folder: Path) -> None:
    """GLM-4 to 5: Llama 3's pattern; no token begins a text, the chat template writes those that begin a conversation."""
    model, size = _byte_level_bpe(ignore_merges=True)
    names = ("<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>")
    tokenizer = {
        "added_tokens": [*_added(size, *names), *_added(size + len(names), "<think>", "<tool_call>", special=False)],
        "normalizer": None,
        "pre_tokenizer": _sequence("pretokenizers", _split(LLAMA3), _bytes()),
        "post_processor": _bytes(trim_offsets=False),
        "decoder": _bytes(use_regex=True),
        "model": model,
    }
    config = {"eos_token": names[0], "pad_token": names[0], "additional_special_tokens": list(names)}
    _save(folder, tokenizer, {**config, "clean_up_tokenization_spaces": False})


FAMILIES: dict[str, Callable[[Path], None]] = {
    "llama3": _llama3,
    "qwen": _qwen,
    "o200k": _o200k,
    "deepseek2": _deepseek2,
    "deepseek3": _deepseek3,
    "granite": _granite,
    "phi3": _phi3,
    "mixtral": _mixtral,
    "gemma": _gemma,
    "olmo2": _olmo2,
    "cohere": _cohere,
    "tekken": _tekken,
    "glm4": _glm4,
}
OF_MODEL_TYPE = {
    "llama": "llama3",
    "mistral": "mixtral",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "gemma2": "gemma",
    "gemma3_text": "gemma",
    "phi3": "phi3",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "smollm3": "llama3",
    "granite": "granite",
    "granitemoehybrid": "granite",
    "mixtral": "mixtral",
    "qwen2_moe": "qwen",
    "qwen3_moe": "qwen",
    "qwen3_next": "qwen",
    "gpt_oss": "o200k",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek3",
    "cohere2": "cohere",
    "glm": "glm4",
    "glm4": "glm4",
    "glm4_moe": "glm4",
    "glm4_moe_lite": "glm4",
    "glm_moe_dsa": "glm4",
    "deepseek_v32": "deepseek3",
    "llama4_text": "llama3",
    "ministral3": "tekken",
    "nemotron_h": "tekken",
    "lfm2": "llama3",
    "lfm2_moe": "llama3",
}
"""Which of FAMILIES the published checkpoints of a `model_type` have."""
TEXTS = (
    "hello world",
    "  two  spaces   and\n\n\tlines\r\n",
    "We don't SHOUT: I'LL say naïve café, e\u0301 and 日本語 again.",
    "12345 tokens, 3.14 and x=[1,2]!",
    "👩\u200d👩\u200d👧 family ﬁne \ufeff",
)
