import json

import pytest

from jaxserve.errors import CheckpointError
from jaxserve.models.checkpoint import read_hf_config


def test_config_and_generation_config(tmp_path):
    (tmp_path / "config.json").write_text('{"eos_token_id": 1, "vocab_size": 7}')
    assert read_hf_config(tmp_path) == {"eos_token_id": 1, "vocab_size": 7}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 5], "top_k": 20}')
    assert read_hf_config(tmp_path) == {"eos_token_id": [1, 5], "vocab_size": 7}
    (tmp_path / "generation_config.json").write_text('{"top_k": 20}')
    assert read_hf_config(str(tmp_path))["eos_token_id"] == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '"model"', "\x80"])
def test_a_config_that_is_no_object(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_hf_config(tmp_path)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="nothing-here"):
        read_hf_config(tmp_path / "nothing-here")
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({}))
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config\.json cannot be read"):
        read_hf_config(tmp_path)
