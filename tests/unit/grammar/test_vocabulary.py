"""Tokens as llguidance is told of them, for every kind of tokenizer: each is what it is in a text, and none else is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from llguidance import LLMatcher

from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.source import grammar_source
from jaxserve.grammar.vocabulary import Vocabulary, load_vocabulary
from jaxserve.sampling.structured import StructuredOutputsParams
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.load import load_tokenizer
from tests.data.tokenizers.families import FAMILIES, write_family
from tests.data.tokenizers.samples import LOSSLESS, save_hugging_face, save_sentencepiece

MORE = 37  # rows of the model's embedding that are no tokens
TEXT = '{"name":"hello world","日本":[1,2]}'


def save(folder: Path, name: str) -> None:
    if name in FAMILIES:
        write_family(folder, name)
    elif name.startswith("sp_"):
        save_sentencepiece(folder, name)
    else:
        save_hugging_face(folder, name)


@pytest.fixture(params=[*LOSSLESS, *FAMILIES])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save(tmp_path, request.param)
    return tmp_path


def loaded(folder: Path, tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    ends = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None and tokenizer.eos_token_id < vocab_size else [0]
    return load_vocabulary(folder, vocab_size=vocab_size, eos_token_ids=ends, tokenizer=tokenizer)


def test_every_token_is_what_it_is_in_a_text(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    for vocab_size in (tokenizer.vocab_size + MORE, tokenizer.vocab_size - 3):
        vocabulary = loaded(folder, tokenizer, vocab_size)
        tokens = vocabulary.tokens
        assert tokens.vocab_size == vocab_size
        special = {token for token in range(vocab_size) if tokens.is_special_token(token)}
        assert special >= {token for token in tokenizer.special_token_ids if token < vocab_size}
        words = {token for token in range(vocab_size) if tokenizer.token_bytes(token)} - special
        assert all(tokens.decode_bytes([token]) == tokenizer.token_bytes(token) for token in words)
        mask = LLMatcher(tokens, "start: /(?s:.+)/").compute_bitmask()
        assert {token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1} <= words
        assert all(tokenizer.token_bytes(token).decode() == name for name, token in vocabulary.special.items())


def test_what_a_grammar_forces_is_tokenized_as_the_text_is(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    vocabulary = loaded(folder, tokenizer, tokenizer.vocab_size + MORE)
    matcher = LLMatcher(vocabulary.tokens, grammar_source(StructuredOutputsParams(choice=[TEXT])))
    forced = matcher.compute_ff_tokens()
    assert b"".join(map(tokenizer.token_bytes, forced)) == TEXT.encode()[: len(b"".join(map(tokenizer.token_bytes, forced)))]
    assert len(forced) > 10
    whole = vocabulary.tokens.tokenize_str(TEXT)
    assert b"".join(map(tokenizer.token_bytes, whole)) == TEXT.encode()
    assert matcher.consume_tokens(whole)
    assert matcher.is_accepting()
    if tokenizer.encode("}", add_special_tokens=False) == vocabulary.tokens.tokenize_str("}"):  # no mark goes before it
        assert whole == tokenizer.encode(TEXT, add_special_tokens=False)


def test_the_bundled_model_has_its_own_ends() -> None:
    folder = Path("jaxserve/assets/pico")
    vocabulary = load_vocabulary(folder, vocab_size=1024, eos_token_ids=[2, 0])
    assert vocabulary.tokens.eos_tokens == [0, 2]
    assert vocabulary.special["<|end|>"] == 2
    assert set(vocabulary.ends) == {"<|end|>", "<|pad|>"}
    with pytest.raises(InvalidRequestError, match="end-of-sequence"):
        load_vocabulary(folder, vocab_size=1024, eos_token_ids=[])
