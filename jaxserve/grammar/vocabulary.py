"""What a model's tokens are, as llguidance is to know them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llguidance import LLTokenizer, TokenizerWrapper

from jaxserve.errors import InvalidRequestError
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.load import load_tokenizer
from jaxserve.tokenizer.sentencepiece import SentencePieceTokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Attributes:
    tokens: of as many ids as the model scores; masks have a bit for each.
    special: ids of tokens that no text has, by name: only grammars that name them allow them.
    ends: names of those that end a sequence of the model.
    """

    tokens: LLTokenizer
    special: Mapping[str, int]
    ends: tuple[str, ...]


def load_vocabulary(
    path: str | Path, *, vocab_size: int, eos_token_ids: Collection[int], tokenizer: Tokenizer | None = None
) -> Vocabulary:
    """Read the tokens of a checkpoint: a tenth of a second to a second for most, so once.

    The library's own reading of a tokenizer.json is taken where every token is there what it is in `tokenizer`: it finds the
    tokens of what a grammar forces without Python. Else tokens are told one by one.

    Args:
        path: of the tokenizer: a directory or a file.
        vocab_size: token ids that the model scores; there may be less tokens, or more.
        eos_token_ids: tokens that end a sequence of the model.
        tokenizer: the one at `path`, if it is there already.

    Raises InvalidRequestError for a model without an end-of-sequence token: no grammar could ever end.
    """
    if not eos_token_ids:
        raise InvalidRequestError(
            "structured_outputs needs a model that has an end-of-sequence token", param="structured_outputs"
        )
    tokenizer = load_tokenizer(path) if tokenizer is None else tokenizer
    ends = sorted(eos_token_ids)
    pieces = [tokenizer.token_bytes(token) for token in range(vocab_size)]
    special = frozenset(token for token in tokenizer.special_token_ids if token < vocab_size) | frozenset(ends)
    tokens = _own_reading(path, pieces, special, ends) or _told(tokenizer, pieces, special, ends)
    # A byte that no text has marks special tokens, and a token of that byte alone counts as one.
    named = (token for token, piece in enumerate(pieces) if piece and piece != b"\xff" and tokens.is_special_token(token))
    names = {pieces[token].decode(): token for token in named}
    return Vocabulary(tokens, names, tuple(name for name, token in names.items() if token in eos_token_ids))


def _own_reading(path: str | Path, pieces: Sequence[bytes], special: Collection[int], ends: list[int]) -> LLTokenizer | None:
    """None where it cannot read the file, or not as it is read here."""
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file() or file.suffix != ".json":
        return None
    try:
        tokens = LLTokenizer(str(file), n_vocab=len(pieces), eos_token=ends)
    except BaseException as error:
        if isinstance(error, ValueError) or type(error).__name__ == "PanicException":  # which is no Exception
            return None
        raise
    for token, piece in enumerate(pieces):
        if not tokens.is_special_token(token) and (token in special or tokens.decode_bytes([token]) != piece):
            return None
    return tokens


def _told(tokenizer: Tokenizer, pieces: list[bytes], special: Collection[int], ends: list[int]) -> LLTokenizer:
    words = _Words(tokenizer, pieces, special, ends[0])
    tokens = LLTokenizer(TokenizerWrapper(words), eos_token=ends)
    words.longest = tokens.greedy_tokenize
    return tokens


class _Words:
    """A tokenizer as llguidance's wrapper asks for it."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, pieces: list[bytes], special: Collection[int], eos: int) -> None:
        self.tokens = pieces
        self.special_token_ids = sorted(special)
        self._special = frozenset(special)
        self.eos_token_id = eos
        self.longest: Callable[[str], list[int]] = lambda _: []
        self._encode: Callable[[str], list[int]] = (
            tokenizer.encode_inside
            if isinstance(tokenizer, SentencePieceTokenizer)
            else lambda text: tokenizer.encode(text, add_special_tokens=False)
        )

    def __call__(self, text: str) -> list[int]:
        """Tokens that spell the text: those of the model's tokenizer, or the longest where it changes the text."""
        ids = self._encode(text)
        known = all(token < len(self.tokens) for token in ids) and self._special.isdisjoint(ids)
        spelled = b"".join(self.tokens[token] for token in ids) if known else None
        return ids if spelled == text.encode() else self.longest(text)
