"""One tiny tokenizer of every kind, trained on the spot; the library object each one wraps is the tests' oracle."""

import io
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.config_files import TokenizerConfig
from jaxserve.tokenizer.huggingface import HuggingFaceTokenizer
from jaxserve.tokenizer.sentencepiece import SentencePieceTokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog again and again",
    "naïve café déjà vu, e\u0301 combining, 日本語の文字 and 한국어",
    "tokens\tand  spaces, words 12345 67890 (brackets) [more] {braces}",
    "hello world hello there hello again world of words",
] * 30

KINDS = (
    "byte_level",
    "llama_json",
    "gemma_json",
    "metaspace",
    "words",
    "sp_bpe",
    "sp_unigram",
    "sp_squeezing",
    "sp_gemma",
)
# Kinds whose vocabulary can spell every text, so that encoding and decoding it gives it back.
LOSSLESS = ("byte_level", "llama_json", "gemma_json", "sp_bpe", "sp_unigram", "sp_gemma")


@dataclass(frozen=True)
class Sample:
    """A tokenizer of ours and the library's own object for the same vocabulary."""

    kind: str
    ours: Tokenizer
    library: Any  # tokenizers.Tokenizer or SentencePieceProcessor

    @property
    def is_sentencepiece(self) -> bool:
        return isinstance(self.library, SentencePieceProcessor)


@cache
def sample(kind: str) -> Sample:
    if kind.startswith("sp_"):
        model = sentencepiece_model(kind)
        return Sample(kind, SentencePieceTokenizer(model, sentencepiece_config()), SentencePieceProcessor(model_proto=model))
    tokenizer = HF_BUILDERS[kind]()
    copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    return Sample(kind, HuggingFaceTokenizer(tokenizer, hugging_face_config()), copy)


def hugging_face_config() -> TokenizerConfig:
    named = {"bos_token": AddedToken("<s>", special=True), "eos_token": AddedToken("</s>", special=True)}
    return TokenizerConfig(named=named)


def sentencepiece_config(**changes: object) -> TokenizerConfig:
    """Two added tokens beyond the model's pieces: one special, one that is text."""
    size = 400
    values: dict[str, object] = {
        "added": {
            size: AddedToken("<|turn|>", special=True, normalized=False),
            size + 1: AddedToken("<tool call>", special=False, normalized=False),
        },
    }
    return TokenizerConfig(**{**values, **changes})  # type: ignore[arg-type]


@cache
def sentencepiece_model(kind: str = "sp_bpe") -> bytes:
    squeezing = kind == "sp_squeezing"
    out = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=out,
        vocab_size=380,
        hard_vocab_limit=False,
        model_type="bpe" if kind == "sp_bpe" else "unigram",
        byte_fallback=True,
        normalization_rule_name="nmt_nfkc" if squeezing else "identity",
        remove_extra_whitespaces=squeezing,
        allow_whitespace_only_pieces=not squeezing,
        add_dummy_prefix=kind != "sp_gemma",
        user_defined_symbols=["<sep>", "\u2581\u2581"] if not squeezing else [],
        minloglevel=2,
    )
    return out.getvalue()


def _byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=["<s>", "</s>", "<｜end▁of｜>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool call>", normalized=False)])
    tokenizer.post_processor = _begin(tokenizer)
    return tokenizer


def _byte_fallback(*steps: decoders.Decoder, prefix: bool) -> tokenizers.Tokenizer:
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator([f"▁{text}" for text in CORPUS], trainers.BpeTrainer(vocab_size=300, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *model["vocab"]]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={name: i for i, name in enumerate(names)},
            merges=[tuple(merge) for merge in model["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    mark = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*mark, normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), *steps])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<tool call>", normalized=False)])
    tokenizer.post_processor = _begin(tokenizer)
    return tokenizer


def _metaspace() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _words() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _begin(tokenizer: tokenizers.Tokenizer) -> processors.TemplateProcessing:
    begin = ("<s>", tokenizer.token_to_id("<s>"))
    return processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[begin])


HF_BUILDERS = {
    "byte_level": _byte_level,
    "llama_json": lambda: _byte_fallback(decoders.Fuse(), decoders.Strip(" ", 1, 0), prefix=True),
    "gemma_json": lambda: _byte_fallback(decoders.Fuse(), prefix=False),
    "metaspace": _metaspace,
    "words": _words,
}


def save_hugging_face(folder: Path, kind: str = "byte_level", **config: object) -> Path:
    """Write a checkpoint's tokenizer files."""
    folder.mkdir(parents=True, exist_ok=True)
    HF_BUILDERS[kind]().save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", **config})
    return folder


def save_sentencepiece(folder: Path, kind: str = "sp_bpe", **config: object) -> Path:
    """Write a checkpoint's tokenizer files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(sentencepiece_model(kind))
    write_json(folder / "tokenizer_config.json", config)
    return folder


def write_json(file: Path, value: object) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")
