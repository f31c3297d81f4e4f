"""Tokenizers in Hugging Face's ``tokenizer.json`` format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from jaxserve.errors import CheckpointError
from jaxserve.tokenizer import detokenizer, token_length
from jaxserve.tokenizer.config_files import TokenizerConfig, check_token_id, read_tokenizer_config
from jaxserve.tokenizer.control_tokens import MARK
from jaxserve.tokenizer.decoder_rules import DecoderRules, decoder_rules
from jaxserve.tokenizer.pieces import PieceTable, check_unicode


class HuggingFaceTokenizer:
    """A ``tokenizer.json``, with the special tokens that the files beside it add.

    Encoding is the `tokenizers` library's own. So is decoding for every text that is valid; a run of byte-fallback
    tokens that is partly valid keeps its valid characters, where the library replaces the whole run (which could not
    be streamed: each character would depend on all bytes after it). Decoded text is never "cleaned up". Which special
    tokens begin and end a text is the file's post-processor's to say, whatever ``add_bos_token`` beside it says, as in
    transformers 5.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, config: TokenizerConfig) -> None:
        """Use `tokenizer`, which becomes this object's own. Raises CheckpointError for an unsupported decoder."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        _add_tokens(tokenizer, config)
        self._tokenizer = tokenizer
        self._without_marks: tokenizers.Tokenizer | None = None  # made when the first marked text comes
        special = {i: token.content for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self._special, self._special_texts = frozenset(special), frozenset(special.values())
        self._bos = _named_id(tokenizer, config, "bos_token", config.bos_token_id)
        self._eos = _named_id(tokenizer, config, "eos_token", config.eos_token_id)
        # The decoder alone, as the file has it: serialising the whole tokenizer takes seconds for a large vocabulary.
        decoder = tokenizer.decoder
        rules = decoder_rules(None if decoder is None else json.loads(decoder.__getstate__()))
        self._each_byte = rules.byte_fallback
        self._pieces = _piece_table(tokenizer, rules)
        self._max_token_bytes = token_length.of_huggingface(tokenizer, self._pieces.pieces)

    @classmethod
    def from_file(cls, file: Path) -> HuggingFaceTokenizer:
        """Read a ``tokenizer.json`` and the files beside it. Raises CheckpointError if one is missing or damaged."""
        if not file.is_file():
            raise CheckpointError(f"{file} does not exist")
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"{file} is not a tokenizer.json that can be read: {error}") from error
        return cls(tokenizer, read_tokenizer_config(file.parent))

    @property
    def vocab_size(self) -> int:
        return len(self._pieces.pieces)

    @property
    def eos_token_id(self) -> int | None:
        """The end-of-sequence token: tokenizer_config.json's, or else generation_config.json's first."""
        return self._eos

    @property
    def bos_token_id(self) -> int | None:
        """The beginning-of-sequence token: tokenizer_config.json's, or else generation_config.json's."""
        return self._bos

    @property
    def special_token_ids(self) -> frozenset[int]:
        return self._special

    @property
    def special_token_texts(self) -> frozenset[str]:
        return self._special_texts

    @property
    def max_token_bytes(self) -> int | None:
        return self._max_token_bytes

    @property
    def marks_each_invalid_byte(self) -> bool:
        """True with byte fallback, False for byte-level BPE, as the library decodes."""
        return self._each_byte

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; the file's post-processor adds special tokens if asked to.

        Special tokens written in the text are recognised. Raises InvalidRequestError for lone surrogates.
        """
        check_unicode(text)
        # As a batch of one: only then the library lets other threads run meanwhile. Offsets, which nobody asks for, take half
        # of the time and most of the memory.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids

    def encode_marked(self, text: str) -> list[int]:
        check_unicode(text)
        if self._without_marks is None:
            self._without_marks = _without_marks(self._tokenizer)
        (encoding,) = self._without_marks.encode_batch_fast([text], add_special_tokens=False)
        return encoding.ids

    def encode_pair(self, first: str, second: str) -> list[int]:
        check_unicode(first)
        check_unicode(second)
        (encoding,) = self._tokenizer.encode_batch_fast([(first, second)])
        return encoding.ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return detokenizer.decode(self, token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces.token_bytes(token_id)

    def leading_bytes(self, token_id: int) -> tuple[bytes, bool]:
        return self._pieces.leading_bytes(token_id)


def _add_tokens(tokenizer: tokenizers.Tokenizer, config: TokenizerConfig) -> None:
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_tokens([token for token in config.added.values() if token.content not in known])
    tokenizer.add_special_tokens([*config.named.values(), *config.extra])


def _without_marks(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer with the same model that drops marks after special tokens have been searched.

    BPE never merges the letters of a special token to it, so that the normalizer can delete marks. Other models take any piece
    of their vocabulary that they find: there text is cut at marks.
    """
    made = tokenizers.Tokenizer(tokenizer.model)
    added = {
        token_id: tokenizers.AddedToken(
            token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized and not token.special,
            special=token.special,
        )
        for token_id, token in sorted(tokenizer.get_added_tokens_decoder().items())
    }
    made.add_tokens(list(added.values()))
    if any(made.token_to_id(token.content) != token_id for token_id, token in added.items()):
        made = tokenizers.Tokenizer.from_str(tokenizer.to_str())  # ids with gaps, which only the whole file has
    elif tokenizer.pre_tokenizer is not None:
        made.pre_tokenizer = tokenizer.pre_tokenizer
    if isinstance(tokenizer.model, models.BPE):
        deletion = normalizers.Replace(MARK, "")
        made.normalizer = deletion if tokenizer.normalizer is None else normalizers.Sequence([deletion, tokenizer.normalizer])
        return made
    if tokenizer.normalizer is not None:
        made.normalizer = tokenizer.normalizer
    cut = pre_tokenizers.Split(MARK, "removed")
    made.pre_tokenizer = cut if tokenizer.pre_tokenizer is None else pre_tokenizers.Sequence([tokenizer.pre_tokenizer, cut])
    return made


def _named_id(tokenizer: tokenizers.Tokenizer, config: TokenizerConfig, role: str, default: int | None) -> int | None:
    token = config.named.get(role)
    return tokenizer.token_to_id(token.content) if token else default


def _piece_table(tokenizer: tokenizers.Tokenizer, rules: DecoderRules) -> PieceTable:
    last = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    check_token_id(max(last, 0), "tokenizer.json")
    size = last + 1
    names = [tokenizer.id_to_token(token_id) for token_id in range(size)]
    pieces = tuple(b"" if name is None else rules.piece(name, first=False) for name in names)
    return PieceTable(pieces, lambda token_id: rules.piece(names[token_id] or "", first=True), start_needs_text=False)
