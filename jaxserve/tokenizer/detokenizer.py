"""Incremental decoding: tokens in, text that is certain out."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

from jaxserve.tokenizer.base import Tokenizer

_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


class Detokenizer:
    """Turns one sequence's output tokens into text as they come.

    The law: all texts from `push` plus the one from `flush`, joined, are the text of the output in the context of the
    prompt, however the output is split into pushes. That text is, in order, the bytes of every output token (special
    tokens left out if asked to, unknown ids as nothing) read as UTF-8, where

    - the tokens at the very start of the whole text (of prompt and output together, after leaving out special tokens)
      stand for their leading bytes: after a prompt with any text the output's first space is kept, after a prompt with
      none (no token, or only skipped special ones) it is dropped, as `Tokenizer.decode` does;
    - bytes that are not UTF-8 become U+FFFD, one a byte or one a broken sequence as the tokenizer says;
    - a character whose bytes lie on both sides of the end of the prompt is not joined.

    So it equals ``decode(output)`` without a prompt, and what ``decode(prompt + output)`` adds to ``decode(prompt)``
    when the prompt ends with a whole character. Each token costs O(its bytes); at most 3 bytes are held back.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        """`shown`: special tokens that are never left out."""
        self._tokenizer = tokenizer
        skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._skipped: frozenset[int] = skipped - shown if shown else skipped
        self._at_start = True
        self._utf8 = _Utf8Decoder(each_byte=tokenizer.marks_each_invalid_byte)
        for token_id in prompt_token_ids:
            self._bytes_of(token_id)
            if not self._at_start:
                break

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is certain now that these tokens follow; an incomplete character waits for the next ones."""
        return self._utf8.push(b"".join([self._bytes_of(token_id) for token_id in token_ids]))

    def flush(self) -> str:
        """The rest of the text: U+FFFD for a character that stayed incomplete. Call once, after the last push."""
        return self._utf8.flush()

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._skipped:
            return b""
        if not self._at_start:
            return self._tokenizer.token_bytes(token_id)
        piece, self._at_start = self._tokenizer.leading_bytes(token_id)
        return piece


class _Utf8Decoder:
    """Incremental UTF-8 with U+FFFD for what is not UTF-8: one a byte (`each_byte`) or one a broken sequence."""

    def __init__(self, *, each_byte: bool) -> None:
        # "replace" marks whole broken sequences; "surrogateescape" keeps a surrogate for every single byte of them,
        # and a surrogate never comes from valid UTF-8.
        self._each_byte = each_byte
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape" if each_byte else "replace")

    def push(self, data: bytes) -> str:
        if not self._decoder.buffer:  # nothing is held back: whole characters, as nearly all tokens are, need no more than this
            try:
                return data.decode()
            except UnicodeDecodeError:
                pass
        return self._mark(self._decoder.decode(data))

    def flush(self) -> str:
        return self._mark(self._decoder.decode(b"", final=True))

    def _mark(self, text: str) -> str:
        return _ESCAPED_BYTE.sub("\ufffd", text) if self._each_byte else text


def decode(tokenizer: Tokenizer, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    """The text of a whole sequence, by the same rules as the incremental one."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    return detokenizer.push(token_ids) + detokenizer.flush()
