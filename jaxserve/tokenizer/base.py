"""The protocol every tokenizer fulfils."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text <-> token ids <-> bytes. Implementations are immutable and thread-safe."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id the tokenizer knows (a model's embedding may be larger)."""
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

    @property
    def special_token_texts(self) -> frozenset[str]:
        """The texts that `encode` turns into special tokens."""
        ...

    @property
    def max_token_bytes(self) -> int | None:
        """Bytes of text that one token stands for at most; None if it may be any number, as where unknown words are one token."""
        ...

    @property
    def marks_each_invalid_byte(self) -> bool:
        """Whether bytes that are not UTF-8 become one U+FFFD a byte, or else one a broken sequence (Unicode's practice)."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with BOS and the like as the checkpoint's tokenizer adds them if asked to.

        Raises InvalidRequestError for a text that is not valid Unicode (it holds a lone surrogate).
        """
        ...

    def encode_marked(self, text: str) -> list[int]:
        """Token ids of a text without BOS and the like. A mark (`control_tokens.MARK`) is no part of the text: a special token
        that has one inside of it is encoded as text. Raises as `encode`.
        """
        ...

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Token ids of two texts that are judged together, with what the tokenizer adds to such. Raises as `encode`."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence; bytes that are not UTF-8 become U+FFFD, unknown ids become nothing."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for inside a text (special tokens: their name); none for an unknown id.

        A model's embedding may have more rows than its tokenizer has tokens, so unknown ids can be sampled.
        """
        ...

    def leading_bytes(self, token_id: int) -> tuple[bytes, bool]:
        """The bytes a token stands for where no text precedes it, and whether the next token is still such a first one.

        SentencePiece vocabularies write a word with the space before it, and drop that space from the first word.
        """
        ...


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's own text, special tokens written out, incomplete UTF-8 as U+FFFD; empty for an unknown id."""
    return tokenizer.token_bytes(token_id).decode("utf-8", errors="replace")
