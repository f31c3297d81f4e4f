"""Find a checkpoint's tokenizer."""

from __future__ import annotations

from pathlib import Path

from jaxserve.errors import CheckpointError
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.huggingface import HuggingFaceTokenizer
from jaxserve.tokenizer.sentencepiece import SentencePieceTokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint directory (tokenizer.json if there is one, else tokenizer.model) or of one such file.

    Raises CheckpointError, naming what is missing or damaged.
    """
    path = Path(path)
    if path.is_dir():
        for name in ("tokenizer.json", "tokenizer.model"):
            if (path / name).is_file():
                return load_tokenizer(path / name)
        raise CheckpointError(f"{path} has no tokenizer: neither tokenizer.json nor tokenizer.model is there")
    if not path.is_file():
        raise CheckpointError(f"tokenizer {path} does not exist")
    if path.suffix == ".json":
        return HuggingFaceTokenizer.from_file(path)
    if path.suffix == ".model":
        return SentencePieceTokenizer.from_file(path)
    raise CheckpointError(f"tokenizer {path} must be a directory, a .json file or a .model file")
