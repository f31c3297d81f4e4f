"""A tokenizer's files as one archive."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from jaxserve.errors import InternalError
from server.grpc.vllm.tokenizer_archive import tokenizer_archive
from tests.support.tiny_checkpoint import write_tiny_checkpoint


def contents(archive: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        assert files.testzip() is None
        return {name: files.read(name) for name in files.namelist()}


def test_a_directory_gives_its_tokenizer_and_no_weights(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"secret")
    archive = tokenizer_archive(tmp_path, "the template in use")
    found = contents(archive)
    assert found.pop("chat_template.jinja") == b"the template in use"
    assert found == {name: (tmp_path / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json", "config.json")}
    assert tokenizer_archive(tmp_path, "the template in use") == archive
    assert "chat_template.jinja" not in contents(tokenizer_archive(tmp_path, None))


def test_a_file_comes_with_what_lies_beside_it(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path)
    (tmp_path / "tokenizer.json").rename(tmp_path / "mine.json")
    assert sorted(contents(tokenizer_archive(tmp_path / "mine.json", None))) == [
        "config.json",
        "mine.json",
        "tokenizer_config.json",
    ]


def test_files_that_are_gone(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="not here"):
        tokenizer_archive(tmp_path, "a template alone is no tokenizer")
