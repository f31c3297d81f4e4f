"""The tokenizer files of every family give transformers' ids and texts, as make_tokenizers wrote them down."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.tokenizer.base import Tokenizer, token_text
from jaxserve.tokenizer.detokenizer import Detokenizer
from jaxserve.tokenizer.load import load_tokenizer
from tests.data.tokenizers import families

SAID: dict[str, Any] = json.loads(Path(families.__file__).with_suffix(".json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=families.FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ours(name: str, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(families.write_family(tmp_path_factory.mktemp(name), name))


def test_special_tokens(name: str, ours: Tokenizer) -> None:
    said = SAID[name]
    assert (ours.bos_token_id, ours.eos_token_id) == (said["bos"], said["eos"])
    assert {token_text(ours, token) for token in ours.special_token_ids} >= set(said["special"])


def test_texts(name: str, ours: Tokenizer) -> None:
    for answer in SAID[name]["answers"]:
        text, ids = answer["text"], answer["ids"]
        assert ours.encode(text) == ids, text
        assert ours.encode(text, add_special_tokens=False) == answer["bare"], text
        assert ours.decode(ids) == answer["decoded"]
        assert ours.decode(ids, skip_special_tokens=False) == answer["written"]


def test_tokens_one_by_one_make_the_text(name: str, ours: Tokenizer) -> None:
    for answer in SAID[name]["answers"]:
        stream = Detokenizer(ours, skip_special_tokens=True)
        assert "".join(stream.push([token]) for token in answer["ids"]) + stream.flush() == answer["decoded"]


def test_every_file_is_asked() -> None:
    assert SAID.keys() == families.FAMILIES.keys()
