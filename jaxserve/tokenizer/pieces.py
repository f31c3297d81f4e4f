"""The bytes behind every token id: what both kinds of tokenizer decode with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxserve.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class PieceTable:
    """Token id -> bytes.

    Attributes:
        pieces: the bytes of each id inside a text; empty where there is no such token.
        first: the bytes of a known id where no text precedes it.
        start_needs_text: the start of the text ends only with a token that reads as something there; if False, with
            any token that is not empty inside a text, even if nothing of it is left at the start.
    """

    pieces: tuple[bytes, ...]
    first: Callable[[int], bytes]
    start_needs_text: bool

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token inside a text; none for an unknown id."""
        return self.pieces[token_id] if 0 <= token_id < len(self.pieces) else b""

    def leading_bytes(self, token_id: int) -> tuple[bytes, bool]:
        """The bytes of a token at the start of a text, and whether the start lasts."""
        if not 0 <= token_id < len(self.pieces):
            return b"", True
        leading = self.first(token_id)
        if not self.pieces[token_id]:  # nothing, or what begins a text as something else
            return leading, not leading
        return leading, self.start_needs_text and not leading


def byte_token_value(token: str) -> int | None:
    """The byte that a byte-fallback token such as ``<0xE4>`` stands for; None for any other token."""
    if len(token) != 6 or not token.startswith("<0x") or token[5] != ">":
        return None
    digits = token[3:5]
    return int(digits, 16) if all(c in "0123456789ABCDEFabcdef" for c in digits) else None


def check_unicode(text: str) -> None:
    """Raise InvalidRequestError if a text holds a lone surrogate, which no encoding of Unicode can represent."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"text is not valid Unicode: lone surrogate at character {error.start}", param="prompt"
        ) from error
