"""tokenizer.json with the files beside it, and which decoders are understood."""

from pathlib import Path

import pytest
from tokenizers import decoders

from jaxserve.errors import CheckpointError
from jaxserve.tokenizer.base import token_text
from jaxserve.tokenizer.config_files import TokenizerConfig
from jaxserve.tokenizer.huggingface import HuggingFaceTokenizer
from jaxserve.tokenizer.load import load_tokenizer
from tests.data.tokenizers.samples import HF_BUILDERS, sample, save_hugging_face, write_json


def test_begin_token_comes_from_the_post_processor(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_hugging_face(tmp_path, add_bos_token=False))
    assert tokenizer.encode("hello")[0] == tokenizer.bos_token_id == 0
    assert tokenizer.encode("hello", add_special_tokens=False)[0] != 0


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    tokenizer = HF_BUILDERS["byte_level"]()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert loaded.decode(loaded.encode("hello world again")) == "hello world again"
    assert len(loaded.encode("hello world again")) < 50


def test_tokens_of_the_configuration_are_added_and_special(tmp_path: Path) -> None:
    turn = {"content": "<|turn|>", "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    save_hugging_face(
        tmp_path,
        eos_token={"content": "<|stop|>", "special": True},
        added_tokens_decoder={"381": turn},
        additional_special_tokens=["<tool call>"],
    )
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("<|turn|><|stop|>", add_special_tokens=False) == [381, 382]
    assert tokenizer.eos_token_id == 382
    # A token that the file has as plain text becomes special when the configuration calls it so.
    assert tokenizer.special_token_ids == {0, 1, 2, 380, 381, 382}
    assert tokenizer.decode(tokenizer.encode("a<tool call>b")) == "ab"


def test_special_tokens_map_of_old_checkpoints(tmp_path: Path) -> None:
    save_hugging_face(tmp_path)
    write_json(tmp_path / "special_tokens_map.json", {"eos_token": {"content": "<｜end▁of｜>"}})
    assert load_tokenizer(tmp_path).eos_token_id == 2


@pytest.mark.parametrize(("value", "expected"), [(1, 1), ([2, 1], 2), ([], None), (None, None)])
def test_generation_config_is_the_last_resort(tmp_path: Path, value: object, expected: int | None) -> None:
    save_hugging_face(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", {})
    write_json(tmp_path / "generation_config.json", {"bos_token_id": 0, "eos_token_id": value})
    assert load_tokenizer(tmp_path).eos_token_id == expected
    assert load_tokenizer(tmp_path).bos_token_id == 0


def test_names_outside_the_byte_alphabet_are_text() -> None:
    tokenizer = sample("byte_level").ours
    assert token_text(tokenizer, 2) == "<｜end▁of｜>"
    assert token_text(tokenizer, 380) == "<tool call>"
    byte = tokenizer.encode("😀", add_special_tokens=False)[0]
    assert tokenizer.token_bytes(byte) == b"\xf0"
    assert token_text(tokenizer, byte) == "\ufffd"


def test_characters_beside_stray_bytes_are_kept() -> None:
    # The library gives U+FFFD for the whole run; a stream cannot take the newline back.
    tokenizer = sample("llama_json").ours
    run = [3 + value for value in (0x0A, 0xE4, 0xBD, 0x41)]
    assert tokenizer.decode(run) == "\n\ufffd\ufffdA"


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.BPEDecoder(),
        decoders.CTC(),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("a", "b")]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.Fuse(), decoders.WordPiece()]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    ],
)
def test_other_decoders_are_refused_by_name(decoder: decoders.Decoder) -> None:
    tokenizer = HF_BUILDERS["byte_level"]()
    tokenizer.decoder = decoder
    with pytest.raises(CheckpointError, match="is not supported, because of"):
        HuggingFaceTokenizer(tokenizer, TokenizerConfig())


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        load_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist"):
        load_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer\.json that can be read"):
        load_tokenizer(tmp_path)
    save_hugging_face(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is not valid JSON"):
        load_tokenizer(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", [])
    with pytest.raises(CheckpointError, match="must hold a JSON object, not list"):
        load_tokenizer(tmp_path)
    other = tmp_path / "vocab.txt"
    other.write_text("a")
    with pytest.raises(CheckpointError, match=r"a directory, a \.json file or a \.model file"):
        load_tokenizer(other)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"neither .* is there; vocab.txt can be converted: AutoTokenizer"):
        load_tokenizer(tmp_path)


def test_a_file_is_loaded_with_the_files_beside_it(tmp_path: Path) -> None:
    save_hugging_face(tmp_path)
    assert load_tokenizer(str(tmp_path / "tokenizer.json")).eos_token_id == 1
