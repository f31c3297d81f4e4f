"""Every decoder, normalizer, pre-tokenizer and post-processor of the tokenizers library is read as the library does, or refused.

A part that a later release of the library adds is in no table here, which fails the first test of its kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from jaxserve.errors import CheckpointError
from jaxserve.tokenizer.config_files import TokenizerConfig
from jaxserve.tokenizer.huggingface import HuggingFaceTokenizer

PIECES = ("the", "##re", "isn", "'", "t", ",", " don", "\u2581you", "a\u2581b", "##", ".")
DECODERS: dict[str, list[Any]] = {
    "ByteFallback": [decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])],
    "ByteLevel": [],  # tests/unit/tokenizer/test_huggingface.py: its names are of another alphabet
    "Fuse": [decoders.Fuse()],
    "Metaspace": [decoders.Metaspace(), decoders.Metaspace(prepend_scheme="never")],
    "Replace": [decoders.Replace("\u2581", " "), decoders.Replace(Regex("#+"), "-")],
    "Sequence": [
        decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.Replace("t", "d"), decoders.WordPiece()]),
    ],
    "Strip": [decoders.Strip("t", 1, 0), decoders.Strip("#", 1, 1)],
    "WordPiece": [decoders.WordPiece(), decoders.WordPiece(cleanup=False), decoders.WordPiece(prefix="t")],
}
REFUSED: dict[str, Any] = {"BPEDecoder": decoders.BPEDecoder(), "CTC": decoders.CTC()}  # of the last token, and of speech

NORMALIZERS: dict[str, list[Any]] = {
    "BertNormalizer": [normalizers.BertNormalizer(lowercase=True)],
    "ByteLevel": [normalizers.ByteLevel()],
    "Lowercase": [normalizers.Lowercase()],
    "NFC": [normalizers.NFC()],
    "NFD": [normalizers.NFD()],
    "NFKC": [normalizers.NFKC()],
    "NFKD": [normalizers.NFKD()],
    "Nmt": [normalizers.Nmt()],
    "Precompiled": [],  # made of a SentencePiece model's table alone
    "Prepend": [normalizers.Prepend("\u2581")],
    "Replace": [normalizers.Replace(" ", "\u2581"), normalizers.Replace(Regex(" +"), " ")],
    "Sequence": [normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])],
    "Strip": [normalizers.Strip()],
    "StripAccents": [normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])],
}
PRE_TOKENIZERS: dict[str, list[Any]] = {
    "BertPreTokenizer": [pre_tokenizers.BertPreTokenizer()],
    "ByteLevel": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "CharDelimiterSplit": [pre_tokenizers.CharDelimiterSplit("t")],
    "Digits": [pre_tokenizers.Digits(individual_digits=True)],
    "FixedLength": [pre_tokenizers.FixedLength(3)] if hasattr(pre_tokenizers, "FixedLength") else [],
    "Metaspace": [pre_tokenizers.Metaspace()],
    "Punctuation": [pre_tokenizers.Punctuation()],
    "Sequence": [pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits()])],
    "Split": [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split(Regex("[aeiou]"), "isolated")],
    "UnicodeScripts": [pre_tokenizers.UnicodeScripts()],
    "Whitespace": [pre_tokenizers.Whitespace()],
    "WhitespaceSplit": [pre_tokenizers.WhitespaceSplit()],
}
PROCESSORS: dict[str, list[Any]] = {
    "BertProcessing": [processors.BertProcessing(("<s>", 0), ("</s>", 1))],
    "ByteLevel": [processors.ByteLevel()],
    "RobertaProcessing": [processors.RobertaProcessing(("</s>", 1), ("<s>", 0))],
    "Sequence": [processors.Sequence([processors.ByteLevel(), processors.BertProcessing(("<s>", 0), ("</s>", 1))])],
    "TemplateProcessing": [
        processors.TemplateProcessing(single="<s> $A", pair="<s> $A </s> $B", special_tokens=[("<s>", 0), ("</s>", 1)])
    ],
}
KINDS = [
    (decoders, decoders.Decoder, DECODERS.keys() | REFUSED.keys()),
    (normalizers, normalizers.Normalizer, NORMALIZERS.keys()),
    (pre_tokenizers, pre_tokenizers.PreTokenizer, PRE_TOKENIZERS.keys()),
    (processors, processors.PostProcessor, PROCESSORS.keys()),
]
TEXTS = ("", "the  cat\u00e9 sat", "\uff21 12 34\n\tt", "  don't\u2581stop ", "<s>a</s>")


@pytest.mark.parametrize(("module", "base", "known"), KINDS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_part_of_the_library_is_known(module: Any, base: type, known: Iterable[str]) -> None:
    kinds = {
        name for name, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, base) and kind is not base
    }
    assert kinds <= set(known)


def listed(table: dict[str, list[Any]]) -> list[Any]:
    return [pytest.param(part, id=f"{name}-{place}") for name, parts in table.items() for place, part in enumerate(parts)]


@pytest.mark.parametrize("decoder", listed(DECODERS))
def test_names_are_decoded_as_by_the_library(decoder: Any) -> None:
    """Alone, as the first of a text and inside it; streamed or at once is a law of its own (tests/property/tokenizer)."""
    theirs = Tokenizer(models.WordLevel({name: number for number, name in enumerate(PIECES)}, unk_token="the"))
    theirs.decoder = decoder
    ours = HuggingFaceTokenizer(Tokenizer.from_str(theirs.to_str()), TokenizerConfig())
    for count in (1, 2, 3):
        for ids in product(range(len(PIECES)), repeat=count):
            assert ours.decode(ids) == theirs.decode(list(ids)), [PIECES[token] for token in ids]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_by_name(name: str) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.decoder = REFUSED[name]
    with pytest.raises(CheckpointError, match=name):
        HuggingFaceTokenizer(tokenizer, TokenizerConfig())


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *(("normalizer", one) for one in listed(NORMALIZERS)),
        *(("pre_tokenizer", one) for one in listed(PRE_TOKENIZERS)),
        *(("post_processor", one) for one in listed(PROCESSORS)),
    ],
)
def test_texts_are_encoded_as_by_the_library(part: str, value: Any) -> None:
    """And no text is longer than its tokens may stand for."""
    characters = sorted(set("".join(TEXTS).lower() + "".join(TEXTS) + "abcdefghijklmnopqrstuvwxyz\u2581\u0120\u00c3\u00a9"))
    theirs = Tokenizer(
        models.BPE(vocab={token: number for number, token in enumerate(["<s>", "</s>", "?", *characters])}, merges=[])
    )
    theirs.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    setattr(theirs, part, value.values[0])
    ours = HuggingFaceTokenizer(Tokenizer.from_str(theirs.to_str()), TokenizerConfig())
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text).ids, text
        longest = ours.max_token_bytes
        assert longest is None or len(text.encode()) <= longest * max(len(ids), 1)
