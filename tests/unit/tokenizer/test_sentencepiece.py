"""tokenizer.model: added tokens, legacy mode, BOS and EOS, against SentencePiece on the parts of the text."""

from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken

from jaxserve.errors import CheckpointError
from jaxserve.tokenizer.config_files import TokenizerConfig
from jaxserve.tokenizer.load import load_tokenizer
from jaxserve.tokenizer.sentencepiece import SentencePieceTokenizer
from tests.data.tokenizers.samples import save_sentencepiece, sentencepiece_config, sentencepiece_model, write_json

TURN, TOOL = 400, 401


@pytest.fixture(scope="module")
def reference() -> SentencePieceProcessor:
    return SentencePieceProcessor(model_proto=sentencepiece_model())


def tokenizer(**changes: object) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(sentencepiece_model(), sentencepiece_config(**changes))


def test_legacy_encodes_every_part_as_a_text_of_its_own(reference: SentencePieceProcessor) -> None:
    ids = tokenizer(legacy=True).encode("hello <|turn|>world<tool call> again</s>the")
    parts = [reference.encode(text) for text in ("hello ", "world", " again", "the")]
    assert ids == [1, *parts[0], TURN, *parts[1], TOOL, *parts[2], 2, *parts[3]]


def test_text_after_an_added_token_gets_no_mark(reference: SentencePieceProcessor) -> None:
    # After a user-defined piece, SentencePiece itself goes on without a mark.
    unmarked = reference.encode("<sep>hello")
    unmarked = unmarked[unmarked.index(reference.piece_to_id("<sep>")) + 1 :]
    hello = reference.encode("hello")
    assert unmarked != hello
    ids = tokenizer().encode("hello<|turn|>hello<|turn|> hello", add_special_tokens=False)
    assert ids == [*hello, TURN, *unmarked, TURN, *hello]
    assert tokenizer().decode(ids) == "hellohello hello"


def test_a_text_that_begins_with_an_added_token_gets_no_mark() -> None:
    plain = tokenizer()
    assert plain.decode(plain.encode("<tool call>hello")) == "<tool call>hello"


@pytest.mark.parametrize(
    ("flags", "first", "last"),
    [
        ({}, True, False),
        ({"add_bos_token": False}, False, False),
        ({"add_eos_token": True}, True, True),
        ({"add_bos_token": False, "add_eos_token": True}, False, True),
    ],
)
def test_begin_and_end_tokens(flags: dict[str, bool], first: bool, last: bool) -> None:
    ids = tokenizer(**flags).encode("hello")
    assert (ids[0] == 1, ids[-1] == 2) == (first, last)
    assert tokenizer(**flags).encode("hello", add_special_tokens=False) == ids[first : len(ids) - last]


def test_named_tokens_choose_begin_and_end() -> None:
    named = {"bos_token": AddedToken("<|turn|>", special=True), "eos_token": AddedToken("<|new|>", special=True)}
    chosen = tokenizer(named=named)
    assert (chosen.bos_token_id, chosen.eos_token_id) == (TURN, 402)
    assert chosen.special_token_ids == {0, 1, 2, TURN, 402}
    assert chosen.vocab_size == 403


def test_white_space_around_stripping_tokens_is_taken() -> None:
    added = {
        400: AddedToken("<l>", lstrip=True, special=True),
        401: AddedToken("<r>", rstrip=True, special=True),
        402: AddedToken("word", single_word=True),
    }
    strips = tokenizer(added=added, add_bos_token=False)
    assert strips.encode("x  <l>y<r>  z") == [
        *strips.encode("x"),
        400,
        *strips.encode("<l>y")[1:],
        401,
        *strips.encode("<r>z")[1:],
    ]
    assert strips.encode("word")[-1] == 402
    assert 402 not in strips.encode("words sword")


def test_longest_added_token_wins() -> None:
    added = {400: AddedToken("<a>", normalized=False), 401: AddedToken("<a><b>", normalized=False)}
    both = tokenizer(added=added, add_bos_token=False)
    assert both.encode("<a><b>") == [401]
    assert both.encode("<a><a>") == [400, 400]


def test_bytes_of_tokens(reference: SentencePieceProcessor) -> None:
    plain = tokenizer()
    assert plain.token_bytes(reference.piece_to_id("<0xE4>")) == b"\xe4"
    assert plain.token_bytes(reference.piece_to_id("\u2581hello")) == b" hello"
    assert plain.leading_bytes(reference.piece_to_id("\u2581hello")) == (b"hello", False)
    assert plain.leading_bytes(reference.piece_to_id("\u2581")) == (b"", False)
    assert plain.token_bytes(TURN) == b"<|turn|>"
    assert plain.token_bytes(399) == b""  # a gap between the model's pieces and the added tokens


def test_characters_beside_stray_bytes_are_kept(reference: SentencePieceProcessor) -> None:
    run = [reference.piece_to_id(f"<0x{value:02X}>") for value in (0x0A, 0xE4, 0xBD, 0xA0, 0xE4, 0xBD, 0xFF)]
    assert tokenizer().decode(run) == "\n\u4f60\ufffd\ufffd\ufffd" == reference.decode(run)


def test_added_tokens_json_of_old_checkpoints(tmp_path: Path) -> None:
    save_sentencepiece(tmp_path)
    write_json(tmp_path / "added_tokens.json", {"<|old|>": 390, "<plain>": 391})
    write_json(tmp_path / "special_tokens_map.json", {"eos_token": {"content": "<|old|>"}})
    old = load_tokenizer(tmp_path)
    assert old.eos_token_id == 390
    assert old.encode("<|old|><plain>", add_special_tokens=False) == [390, 391]
    assert old.decode([390, 391]) == "<plain>"


def test_a_damaged_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    with pytest.raises(CheckpointError, match=r"tokenizer\.model: not a SentencePiece model"):
        load_tokenizer(tmp_path)


def test_no_configuration_at_all() -> None:
    bare = SentencePieceTokenizer(sentencepiece_model(), TokenizerConfig())
    assert bare.encode("hello</s>")[0] == 1
    assert bare.encode("hello</s>")[-1] == 2
