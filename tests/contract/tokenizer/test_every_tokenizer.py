"""What every tokenizer promises, whatever its file format."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.tokenizer.base import token_text
from tests.data.tokenizers.samples import KINDS, LOSSLESS, Sample, sample

TEXTS = [
    "",
    " ",
    "hello world",
    "  two  spaces  ",
    "\n\n\tindented",
    "日本語 and 한국어",
    "e\u0301 is é",
    "👩\u200d👩\u200d👧 family \U0001f3f4",
    "nul \x00 and \x7f",
    "\ufeffmark \ufffd",
    "▁ is not a space",
    "(a)<0xE4>[b]",
]


@pytest.fixture(params=KINDS)
def any_kind(request: pytest.FixtureRequest) -> Sample:
    return sample(request.param)


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("text", TEXTS)
def test_text_survives(kind: str, text: str) -> None:
    if "▁" in text and kind != "byte_level":
        pytest.skip("SentencePiece vocabularies write spaces as this character")
    ours = sample(kind).ours
    for special in (True, False):
        assert ours.decode(ours.encode(text, add_special_tokens=special)) == text


def test_encodes_as_its_library(any_kind: Sample) -> None:
    for text in TEXTS:
        ids = any_kind.ours.encode(text, add_special_tokens=False)
        if any_kind.is_sentencepiece:
            assert ids == any_kind.library.encode(text)
        else:
            assert ids == any_kind.library.encode(text, add_special_tokens=False).ids
            assert any_kind.ours.encode(text) == any_kind.library.encode(text).ids


def test_special_tokens_are_left_out_or_written(any_kind: Sample) -> None:
    ours = any_kind.ours
    assert ours.bos_token_id is not None
    assert ours.eos_token_id is not None
    assert {ours.bos_token_id, ours.eos_token_id} <= ours.special_token_ids
    middle = ours.encode("hello", add_special_tokens=False)
    ids = [ours.bos_token_id, *middle, ours.eos_token_id]
    assert ours.decode(ids) == ours.decode(middle)
    written = ours.decode(ids, skip_special_tokens=False)
    assert written.startswith("<s>")
    assert written.endswith("</s>")
    assert token_text(ours, ours.eos_token_id).strip() == "</s>"


def test_unknown_ids_are_nothing(any_kind: Sample) -> None:
    ours = any_kind.ours
    for unknown in (-1, ours.vocab_size, 10**9):
        assert ours.token_bytes(unknown) == b""
        assert ours.leading_bytes(unknown) == (b"", True)
        assert token_text(ours, unknown) == ""
    hello = ours.encode("hello")
    assert ours.decode([10**9, *hello, -1]) == ours.decode(hello)


def test_bytes_of_tokens_are_the_text(any_kind: Sample) -> None:
    ours = any_kind.ours
    first, *rest = ours.encode("hello again", add_special_tokens=False)
    leading, starts = ours.leading_bytes(first)
    pieces = [leading]
    for token in rest:
        piece, starts = ours.leading_bytes(token) if starts else (ours.token_bytes(token), False)
        pieces.append(piece)
    assert b"".join(pieces).decode() == ours.decode([first, *rest])


def test_lone_surrogates_are_refused(any_kind: Sample) -> None:
    with pytest.raises(InvalidRequestError, match="character 2"):
        any_kind.ours.encode("ab\ud800c")


def test_threads_may_share_it(any_kind: Sample) -> None:
    expected = [any_kind.ours.encode(text) for text in TEXTS]
    with ThreadPoolExecutor(4) as pool:
        for ids in pool.map(lambda _: [any_kind.ours.encode(text) for text in TEXTS], range(40)):
            assert ids == expected


def test_no_token_stands_for_more_bytes_than_it_says(any_kind: Sample) -> None:
    ours = any_kind.ours
    longest = ours.max_token_bytes
    texts = [*TEXTS, *(text * 50 for text in TEXTS), "e\u0301" * 99, "\U0001d400" * 99, "~" * 99, " " * 99]
    if longest is None:
        dropped = [text for text in texts if len(ours.encode(text, add_special_tokens=False)) < len(text.encode()) / 64]
        assert dropped, "it could have said"
        return
    for text in texts:
        assert len(text.encode()) <= longest * len(ours.encode(text, add_special_tokens=False)), repr(text)
    names = [ours.token_bytes(token) for token in range(ours.vocab_size)]
    assert longest <= 4 * max(map(len, names)), "it says no more than a normalizer can explain"
