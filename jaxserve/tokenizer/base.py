"""The protocol every tokenizer fulfils."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text <-> token ids <-> bytes. Implementations are immutable and thread-safe."""

    @property
    def vocab_size(self) -> int:
        """Number of ids the tokenizer knows (a model's embedding may be larger)."""
        ...

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's end-of-sequence token."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """The tokenizer's beginning-of-sequence token."""
        ...

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Ids that are markup, not text: left out of text unless asked for."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with BOS and the like as the checkpoint's tokenizer adds them if asked to."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence; bytes that are not UTF-8 become U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for (special tokens: their name). Raises ValueError for an unknown id."""
        ...
