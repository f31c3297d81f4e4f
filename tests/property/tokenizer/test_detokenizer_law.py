"""Joined deltas are the full decode: for every kind of tokenizer, every split, any tokens, with or without a prompt."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.tokenizer.detokenizer import Detokenizer
from tests.data.tokenizers.samples import KINDS, LOSSLESS, Sample, sample

TEXTS = st.one_of(
    st.text(max_size=12),
    st.lists(
        st.sampled_from(
            [
                "hello",
                " world",
                "  ",
                "\n",
                "日本",
                "한",
                "e\u0301",
                "👩\u200d👩\u200d👧",
                "é",
                "\ufffd",
                "</s>",
                "<tool call>",
                "▁",
            ]
        ),
        max_size=8,
    ).map("".join),
)


@st.composite
def token_lists(draw: st.DrawFn, kind: str) -> list[int]:
    """Encoded texts, arbitrary ids (some of them unknown) and runs of byte tokens, mixed."""
    tokenizer = sample(kind).ours
    ids = st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=6)
    low = st.lists(st.integers(0, 262), max_size=6)
    encoded = st.builds(tokenizer.encode, TEXTS, add_special_tokens=st.booleans())
    return [i for part in draw(st.lists(st.one_of(ids, low, encoded), max_size=4)) for i in part]


@st.composite
def splits(draw: st.DrawFn, kind: str) -> list[list[int]]:
    ids = draw(token_lists(kind))
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=len(ids) + 2)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def streamed(sample_: Sample, chunks: list[list[int]], *, skip: bool, prompt: list[int] | None = None) -> str:
    detokenizer = Detokenizer(sample_.ours, prompt or [], skip_special_tokens=skip)
    return "".join([detokenizer.push(chunk) for chunk in chunks]) + detokenizer.flush()


def library_decode(sample_: Sample, ids: list[int], *, skip: bool) -> str | None:
    """What the library says; None where it has no comparable answer."""
    if not sample_.is_sentencepiece:
        return None if is_partly_valid_run(sample_, ids, skip) else sample_.library.decode(ids, skip_special_tokens=skip)
    model = sample_.library
    known = [i for i in ids if i < model.get_piece_size()]
    if len(known) != len(ids) or (not skip and any(model.is_control(i) or model.is_unknown(i) for i in ids)):
        return None
    return str(model.decode([i for i in ids if i not in sample_.ours.special_token_ids]))


def is_partly_valid_run(sample_: Sample, ids: list[int], skip: bool) -> bool:
    """Whether a run of byte-fallback tokens mixes characters and stray bytes: there we keep the characters."""
    if not sample_.ours.marks_each_invalid_byte:
        return False
    run = b""
    for i in [*(i for i in ids if not (skip and i in sample_.ours.special_token_ids)), -1]:
        name = sample_.library.id_to_token(i) if i >= 0 else None
        if i >= 0 and name is None:
            continue
        if name is not None and name.startswith("<0x"):
            run += bytes([int(name[3:5], 16)])
            continue
        kept = run.decode("utf-8", "ignore")
        if kept and kept.encode() != run:
            return True
        run = b""
    return False


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), skip=st.booleans())
@settings(max_examples=120, deadline=None)
def test_every_split_gives_the_full_decode(kind: str, data: st.DataObject, skip: bool) -> None:
    chunks = data.draw(splits(kind))
    ids = [i for chunk in chunks for i in chunk]
    text = streamed(sample(kind), chunks, skip=skip)
    assert text == sample(kind).ours.decode(ids, skip_special_tokens=skip)
    expected = library_decode(sample(kind), ids, skip=skip)
    assert expected is None or text == expected


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), prompt_text=TEXTS, begin=st.booleans(), skip=st.booleans())
@settings(max_examples=80, deadline=None)
def test_output_is_what_it_adds_to_the_prompt(kind: str, data: st.DataObject, prompt_text: str, begin: bool, skip: bool) -> None:
    ours = sample(kind).ours
    prompt = ours.encode(prompt_text, add_special_tokens=begin)
    chunks = data.draw(splits(kind))
    output = [i for chunk in chunks for i in chunk]
    before = ours.decode(prompt, skip_special_tokens=skip)
    both = library_decode(sample(kind), prompt + output, skip=skip)
    if both is None:
        both = ours.decode(prompt + output, skip_special_tokens=skip)
    assert before + streamed(sample(kind), chunks, skip=skip, prompt=prompt) == both


@pytest.mark.parametrize("kind", LOSSLESS)
@given(text=TEXTS)
@settings(max_examples=80, deadline=None)
def test_every_character_comes_out_with_its_last_byte(kind: str, text: str) -> None:
    ours = sample(kind).ours
    prompt = ours.encode("hello")
    detokenizer = Detokenizer(ours, prompt)
    raw, sent = b"", ""
    for token in ours.encode(text, add_special_tokens=False):
        raw += b"" if token in ours.special_token_ids else ours.token_bytes(token)
        sent += detokenizer.push([token])
        assert sent == raw.decode("utf-8", "ignore")
    assert detokenizer.flush() == ""
