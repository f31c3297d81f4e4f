"""A tokenizer's files as one zip archive, for gateways that tokenize."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from jaxserve.errors import InternalError

# What Hugging Face and SentencePiece tokenizers are made of.
_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "config.json",
    "generation_config.json",
)
_TEMPLATE = "chat_template.jinja"


def tokenizer_archive(tokenizer: Path, chat_template: str | None) -> bytes:
    """The archive of a tokenizer, given as its directory or as one of its files, with the chat template that is in use.

    Equal files give equal archives. Raises InternalError if there are no files.
    """
    directory = tokenizer if tokenizer.is_dir() else tokenizer.parent
    names = dict.fromkeys(name for name in _FILES if (directory / name).is_file())
    if tokenizer.is_file():
        names[tokenizer.name] = None
    if not names:
        raise InternalError("the tokenizer's files are not here any more")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
        for name in names:
            files.writestr(zipfile.ZipInfo(name), (directory / name).read_bytes(), zipfile.ZIP_DEFLATED)
        if chat_template is not None:
            files.writestr(zipfile.ZipInfo(_TEMPLATE), chat_template, zipfile.ZIP_DEFLATED)
    return archive.getvalue()
