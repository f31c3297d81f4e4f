"""A real tokenizer that cannot decode one of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from jaxserve.tokenizer.base import Tokenizer


class BrokenTokenizer:
    """Raises RuntimeError where the bytes of `broken` are wanted; everything else is the tokenizer's."""

    def __init__(self, tokenizer: Tokenizer, broken: int) -> None:
        self._tokenizer = tokenizer
        self.broken = broken
        self.vocab_size = tokenizer.vocab_size
        self.eos_token_id = tokenizer.eos_token_id
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = tokenizer.special_token_ids
        self.special_token_texts = tokenizer.special_token_texts
        self.max_token_bytes = tokenizer.max_token_bytes
        self.marks_each_invalid_byte = tokenizer.marks_each_invalid_byte

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def encode_marked(self, text: str) -> list[int]:
        return self._tokenizer.encode_marked(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        self._check(token_ids)
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        self._check([token_id])
        return self._tokenizer.token_bytes(token_id)

    def leading_bytes(self, token_id: int) -> tuple[bytes, bool]:
        self._check([token_id])
        return self._tokenizer.leading_bytes(token_id)

    def _check(self, token_ids: Sequence[int]) -> None:
        if self.broken in token_ids:
            raise RuntimeError("no such word")
