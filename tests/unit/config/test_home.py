"""Paths below a home directory that may not be there."""

import os
from pathlib import Path

import pytest

from jaxserve.config.fields import CompileConfig, ModelConfig
from jaxserve.config.home import cache_directory, expand_home, home_directory
from jaxserve.errors import ConfigError


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory, and no way to know a home."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(folder))
    monkeypatch.delenv("HOME", raising=False)

    def no_entry(user: int) -> None:
        raise KeyError(f"uid not found: {user}")

    monkeypatch.setattr("pwd.getpwuid", no_entry)
    return folder


def test_cache_is_in_the_home_directory(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "jaxserve"
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("named", [None, "", "/nonexistent", "relative", "file", f"/{'long' * 99}"])
def test_cache_without_home_is_private_and_temporary(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    (tmp_path / "file").touch()
    if named is not None:
        monkeypatch.setenv("HOME", str(tmp_path / named) if named == "file" else named)
    found = cache_directory()
    assert found == temporary / f"jaxserve-cache-{os.geteuid()}"
    assert found.stat().st_mode & 0o777 == 0o700
    assert cache_directory() == found


@pytest.mark.parametrize("spoil", ["open", "link", "file"])
def test_cache_of_others_is_not_used(temporary: Path, caplog: pytest.LogCaptureFixture, spoil: str) -> None:
    path = temporary / f"jaxserve-cache-{os.geteuid()}"
    if spoil == "open":
        path.mkdir()
        path.chmod(0o777)
    elif spoil == "link":
        (temporary / "elsewhere").mkdir(mode=0o700)
        path.symlink_to("elsewhere")
    else:
        path.touch()
    assert cache_directory() is None
    assert len(caplog.records) == 1


def test_tilde_is_expanded_in_every_path_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    model = ModelConfig(model="~/m", tokenizer="~/t", chat_template="/~")
    assert (model.model, model.tokenizer, model.chat_template) == (f"{tmp_path}/m", f"{tmp_path}/t", "/~")
    assert CompileConfig(compilation_cache_dir="~/c").compilation_cache_dir == f"{tmp_path}/c"


@pytest.mark.parametrize("named", ["", "relative", "/nonexistent"])
def test_tilde_of_an_unusable_home_is_an_error(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("HOME", named)
    with pytest.raises(ConfigError, match="no home directory"):
        expand_home("~/m")


def test_home_that_cannot_be_entered_is_none(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setenv("HOME", "/locked/home")
    monkeypatch.setattr(Path, "is_dir", refuse)
    assert home_directory() is None


def test_tilde_without_home_is_an_error_that_names_the_setting(temporary: Path) -> None:
    with pytest.raises(ConfigError, match=r"~/m: this user has no home directory \(set HOME") as caught:
        ModelConfig(model="~/m")
    assert caught.value.param == "model"
    assert expand_home("/a") == Path("/a")
