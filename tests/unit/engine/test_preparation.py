"""A tokenizer must belong to the model that it is served with."""

import json

import pytest
from tokenizers import AddedToken

from jaxserve.config.fields import EngineConfig
from jaxserve.engine.preparation import check_vocabulary, prepare
from jaxserve.errors import CheckpointError
from jaxserve.tokenizer.huggingface import HuggingFaceTokenizer
from tests.data.tokenizers.samples import HF_BUILDERS, hugging_face_config
from tests.support.tiny_checkpoint import write_tiny_checkpoint


def tokenizer_of(*added):
    library = HF_BUILDERS["byte_level"]()
    size = library.get_vocab_size(with_added_tokens=True)
    library.add_tokens(list(added))
    return HuggingFaceTokenizer(library, hugging_face_config()), size


def test_text_beyond_the_embeddings_is_refused_with_both_numbers():
    tokenizer, size = tokenizer_of()
    check_vocabulary(tokenizer, size)
    check_vocabulary(tokenizer, size + 1000)
    with pytest.raises(CheckpointError, match=rf"ids up to {size - 1}, 2 of them for text beyond the model's {size - 2} emb"):
        check_vocabulary(tokenizer, size - 2)


def test_special_tokens_beyond_the_embeddings_do_no_harm():
    image = AddedToken("<image>", special=True, normalized=False)
    tokenizer, size = tokenizer_of(image)
    check_vocabulary(tokenizer, size)
    word, size = tokenizer_of(AddedToken("<image>", normalized=False))
    with pytest.raises(CheckpointError, match="1 of them for text"):
        check_vocabulary(word, size)


def test_a_start_asks(tmp_path):
    directory = write_tiny_checkpoint(tmp_path / "tiny")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] - 1}))
    settings = {"load_format": "dummy", "max_num_seqs": 2, "max_num_batched_tokens": 2}
    for tokenizer in (None, str(directory)):
        with pytest.raises(CheckpointError, match="beyond the model's 259 embeddings"):
            prepare(EngineConfig.from_settings({"model": str(directory), "tokenizer": tokenizer, **settings}))
