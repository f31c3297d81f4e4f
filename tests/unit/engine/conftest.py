"""A real tokenizer over bytes."""

import pytest

from jaxserve.tokenizer.load import load_tokenizer
from tests.support.tiny_checkpoint import write_tiny_checkpoint


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    return load_tokenizer(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))
