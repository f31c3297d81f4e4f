"""Tokenizers in SentencePiece's ``tokenizer.model`` format (Llama 2, Mistral, Gemma)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken

from jaxserve.errors import CheckpointError
from jaxserve.tokenizer import detokenizer, token_length
from jaxserve.tokenizer.config_files import TokenizerConfig, read_tokenizer_config
from jaxserve.tokenizer.control_tokens import MARK
from jaxserve.tokenizer.pieces import PieceTable, byte_token_value, check_unicode

_WORD_START = "\u2581"
# A protobuf message may be continued: a later normalizer_spec (field 3) overrides the fields it sets, here
# add_dummy_prefix (field 3) = false. SentencePiece has no option for it at encoding time.
_NO_WORD_START = b"\x1a\x02\x18\x00"


class SentencePieceTokenizer:
    """A SentencePiece model (BPE or unigram) with the special and added tokens of the files beside it.

    Added tokens written in a text are recognised, longest first; what lies between them is encoded by SentencePiece.
    The word-start mark goes before a text that begins with a word, and with ``legacy`` also before the text after every
    added token. BOS is added unless ``add_bos_token`` is false, EOS if ``add_eos_token`` is true.
    """

    def __init__(self, model: bytes, config: TokenizerConfig) -> None:
        """Use a serialised model. Raises CheckpointError if it is not one, or if an added token's id is impossible."""
        self._marked = _processor(model)
        self._unmarked = _processor(model + _NO_WORD_START)
        self._legacy = config.legacy
        added = _added_tokens(self._marked, config)
        self._added = {token.content: (token_id, token) for token_id, token in added.items()}
        # Alternatives are tried in order, so the longest token wins where several begin.
        by_length = sorted(self._added, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(text) for text in by_length)) if by_length else None
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._special_texts = frozenset(token.content for token in added.values() if token.special)
        self._bos = _role_id(self._marked.bos_id(), "bos_token", config, self._added)
        self._eos = _role_id(self._marked.eos_id(), "eos_token", config, self._added)
        self._adds_bos = config.add_bos_token is not False and self._bos is not None
        self._adds_eos = config.add_eos_token is True and self._eos is not None
        self._pieces = _piece_table(self._marked, added)
        self._max_token_bytes = token_length.of_sentencepiece(self._marked, self._pieces.pieces)

    @classmethod
    def from_file(cls, file: Path) -> SentencePieceTokenizer:
        """Read a ``tokenizer.model`` and the files beside it. Raises CheckpointError if one is missing or damaged."""
        if not file.is_file():
            raise CheckpointError(f"{file} does not exist")
        try:
            return cls(file.read_bytes(), read_tokenizer_config(file.parent))
        except CheckpointError as error:
            raise CheckpointError(f"{file}: {error.message}") from error

    @property
    def vocab_size(self) -> int:
        return len(self._pieces.pieces)

    @property
    def eos_token_id(self) -> int | None:
        """The end-of-sequence token: tokenizer_config.json's, or else the model's."""
        return self._eos

    @property
    def bos_token_id(self) -> int | None:
        """The beginning-of-sequence token: tokenizer_config.json's, or else the model's."""
        return self._bos

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Ids of control tokens, the unknown token and special added tokens."""
        return self._special

    @property
    def special_token_texts(self) -> frozenset[str]:
        return self._special_texts

    @property
    def max_token_bytes(self) -> int | None:
        return self._max_token_bytes

    @property
    def marks_each_invalid_byte(self) -> bool:
        """True: SentencePiece writes one U+FFFD for each byte."""
        return True

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with BOS and EOS as configured if asked to. Raises InvalidRequestError for lone surrogates."""
        check_unicode(text)
        ids = [self._bos] if add_special_tokens and self._adds_bos and self._bos is not None else []
        for segment, begins_text in self._segments(text):
            if isinstance(segment, int):
                ids.append(segment)
            else:
                processor = self._marked if begins_text or self._legacy else self._unmarked
                ids += processor.encode(segment, out_type=int)
        return [*ids, self._eos] if add_special_tokens and self._adds_eos and self._eos is not None else ids

    def encode_marked(self, text: str) -> list[int]:
        check_unicode(text)
        ids: list[int] = []
        for segment, begins_text in self._segments(text):
            if isinstance(segment, int):
                ids.append(segment)
                continue
            # The model's own user-defined pieces are recognised in any text, so that the parts are encoded apart.
            first, *others = segment.split(MARK)
            ids += (self._marked if begins_text or self._legacy else self._unmarked).encode(first, out_type=int)
            for part in others:
                ids += self._unmarked.encode(part, out_type=int)
        return ids

    def encode_pair(self, first: str, second: str) -> list[int]:
        """One after the other, each with BOS and EOS as configured."""
        return [*self.encode(first), *self.encode(second)]

    def encode_inside(self, text: str) -> list[int]:
        """Token ids of a text that another goes before; added tokens are not recognised in it."""
        return self._unmarked.encode(text, out_type=int)  # type: ignore[no-any-return]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return detokenizer.decode(self, token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces.token_bytes(token_id)

    def leading_bytes(self, token_id: int) -> tuple[bytes, bool]:
        return self._pieces.leading_bytes(token_id)

    def _segments(self, text: str) -> Iterator[tuple[str | int, bool]]:
        """The text cut at its added tokens: non-empty strings (with whether one begins the text) and token ids."""
        start = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            token_id, token = self._added[match[0]]
            if token.single_word and _touches_word(text, match):
                continue
            before = text[start : match.start()]
            before = before.rstrip() if token.lstrip else before
            if before:
                yield before, start == 0
            yield token_id, False
            start = match.end()
            if token.rstrip:
                start += len(text[start:]) - len(text[start:].lstrip())
        if start < len(text):
            yield text[start:], start == 0


def _touches_word(text: str, match: re.Match[str]) -> bool:
    around = text[max(match.start() - 1, 0) : match.start()] + text[match.end() : match.end() + 1]
    return any(letter.isalnum() or letter == "_" for letter in around)


def _processor(model: bytes) -> SentencePieceProcessor:
    try:
        return SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise CheckpointError(f"not a SentencePiece model (other formats of this name are not read): {error}") from error


def _added_tokens(model: SentencePieceProcessor, config: TokenizerConfig) -> dict[int, AddedToken]:
    """Every token that text may spell out, by id: the model's control tokens, the configured ones, new ones at the end."""
    size = model.get_piece_size()
    added = {
        token_id: AddedToken(model.id_to_piece(token_id), special=True, normalized=False)
        for token_id in range(size)
        if model.is_control(token_id) or model.is_unknown(token_id)
    }
    added |= config.added
    known = {token.content for token in added.values()}
    for token in (*config.named.values(), *config.extra):
        if token.content in known:
            continue
        token_id = model.piece_to_id(token.content)
        if model.id_to_piece(token_id) != token.content:
            token_id = max(size, *(i + 1 for i in added)) if added else size
        added[token_id] = token
        known.add(token.content)
    return added


def _role_id(default: int, role: str, config: TokenizerConfig, added: Mapping[str, tuple[int, AddedToken]]) -> int | None:
    if role in config.named:
        return added[config.named[role].content][0]
    return default if default >= 0 else None


def _piece_table(model: SentencePieceProcessor, added: Mapping[int, AddedToken]) -> PieceTable:
    # How the model treats white space is asked of its normaliser, because its specification has no public reader.
    squeezes = _WORD_START * 2 not in model.normalize("  a")
    drops_first_mark = squeezes or model.normalize("a").startswith(_WORD_START)
    size = max(model.get_piece_size(), *(token_id + 1 for token_id in added)) if added else model.get_piece_size()

    def piece(token_id: int, *, first: bool) -> bytes:
        if token_id in added:
            return added[token_id].content.encode("utf-8")
        if token_id >= model.get_piece_size():
            return b""
        name = model.id_to_piece(token_id)
        value = byte_token_value(name) if model.is_byte(token_id) else None
        if value is not None:
            return bytes([value])
        if first and drops_first_mark:
            name = name.removeprefix(_WORD_START)
        return name.replace(_WORD_START, " ").encode("utf-8")

    pieces = tuple(piece(token_id, first=False) for token_id in range(size))
    return PieceTable(pieces, lambda token_id: piece(token_id, first=True), start_needs_text=squeezes)
