"""How many bytes of a text one token can stand for: by it, a text is known to be too long before it is tokenized."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers
from sentencepiece import SentencePieceProcessor

# Unicode's composition makes at most four code points, or one of four bytes, into what a token then spells.
_COMPOSED = 4
_KEEPS_LENGTH = frozenset({"Prepend", "ByteLevel"})
_COMPOSES = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase"})
_KEEPS_TEXT = frozenset({"ByteLevel", "Metaspace", "Digits"})
_PROBES = ("a\u0301", "ﬁ \uff21", "a\u200bb\x01", "  a   b  ", "\t\n\n")


def of_huggingface(tokenizer: tokenizers.Tokenizer, pieces: Iterable[bytes]) -> int | None:
    """Bytes that the longest token of a tokenizer.json stands for; None if one may stand for any number of them.

    It may where text is dropped (by a normalizer, or between words) and where what the vocabulary lacks becomes one unknown
    token. White space beside an added token that swallows it is not counted.

    Args:
        tokenizer: whose it is.
        pieces: the bytes of its tokens.
    """
    normalizers, pre_tokenizers = _steps(tokenizer.normalizer, "normalizers"), _steps(tokenizer.pre_tokenizer, "pretokenizers")
    byte_level = any(step["type"] == "ByteLevel" for step in (*normalizers, *pre_tokenizers))
    fallback = getattr(tokenizer.model, "byte_fallback", False) and tokenizer.token_to_id("<0xFF>") is not None
    if not (byte_level or fallback) or not all(map(_keeps_text, pre_tokenizers)):
        return None
    factor = 1
    for step in normalizers:
        if step["type"] in _COMPOSES:
            factor = _COMPOSED
        elif step["type"] not in _KEEPS_LENGTH and not _replaces_with_as_much(step):
            return None
    return factor * _longest(pieces)


def of_sentencepiece(model: SentencePieceProcessor, pieces: Iterable[bytes]) -> int | None:
    """The same for a SentencePiece model, whose normalizer is asked what it changes."""
    has_bytes = any(model.is_byte(token) for token in range(model.get_piece_size()))
    changes = any(len(model.normalize(probe).replace("\u2581", " ")) < len(probe) for probe in _PROBES)
    return _longest(pieces) if has_bytes and not changes else None


def _longest(pieces: Iterable[bytes]) -> int:
    return max(map(len, pieces), default=1) or 1


def _steps(part: Any, name: str) -> list[Mapping[str, Any]]:
    def flat(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [one for inner in step[name] for one in flat(inner)] if step["type"] == "Sequence" else [step]

    return [] if part is None else flat(json.loads(part.__getstate__()))


def _keeps_text(step: Mapping[str, Any]) -> bool:
    return step["type"] in _KEEPS_TEXT or (step["type"] in ("Split", "Punctuation") and step["behavior"] != "Removed")


def _replaces_with_as_much(step: Mapping[str, Any]) -> bool:
    match step:
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return len(new.encode()) >= len(old.encode())
        case _:
            return False
