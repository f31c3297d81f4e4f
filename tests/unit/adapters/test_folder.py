"""A directory that is watched: what is in it is served, as it is now."""

from __future__ import annotations

import shutil
import threading
from functools import partial
from pathlib import Path

import pytest

from jaxserve.adapters import folder as folders
from jaxserve.adapters.directory import read_adapter
from jaxserve.adapters.folder import AdapterFolder
from jaxserve.adapters.peft import AdapterFormat
from jaxserve.adapters.store import AdapterStore
from jaxserve.errors import ConfigError, ModelNotFoundError
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from tests.golden.reading import DATA
from tests.golden.test_adapters import ADAPTERS

BASE = "llama-biases"


class Shelf:
    """The memory of a host, by key."""

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def keep(self, key: str, numbers: object) -> None:
        self.keys.add(key)

    def forget(self, key: str) -> None:
        self.keys.remove(key)


@pytest.fixture
def store() -> AdapterStore:
    form = AdapterFormat(decoder_config(read_hf_config(DATA / BASE)), 1, 8, "float32")
    return AdapterStore(partial(read_adapter, form=form, max_rank=8), 4, 2, form.num_bytes, Shelf(), BASE)


def put(name: str, directory: Path) -> Path:
    return Path(shutil.copytree(ADAPTERS / BASE / name, directory))


def served(store: AdapterStore) -> dict[str, str]:
    return {info.name: info.key for info in store.listed()}


def test_adapters_come_change_and_go(store: AdapterStore, tmp_path: Path) -> None:
    keys = {name: store.load(name, ADAPTERS / BASE / name).key for name in ("all", "stable", "patterns")}
    for name in keys:
        store.unload(name)
    folder = AdapterFolder(store, tmp_path)
    folder.look()
    assert served(store) == {}
    put("all", tmp_path / "one")
    put("stable", tmp_path / ".two")
    (tmp_path / "no adapter").mkdir()
    folder.look()
    assert served(store) == {"one": keys["all"]}
    (tmp_path / ".two").rename(tmp_path / "two")
    shutil.rmtree(tmp_path / "one")
    put("patterns", tmp_path / "one")
    folder.look()
    assert served(store) == {"one": keys["patterns"], "two": keys["stable"]}
    shutil.rmtree(tmp_path / "two")
    folder.look()
    folder.look()
    assert served(store) == {"one": keys["patterns"]}


def test_what_cannot_be_served_is_told_once_and_tried_when_it_changes(
    store: AdapterStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = AdapterFolder(store, tmp_path)
    broken = put("all", tmp_path / "one")
    weights = broken / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    folder.look()
    folder.look()
    assert served(store) == {}
    assert [record.message for record in caplog.records if "adapter one of lora_dir is not served" in record.message] == [
        record.message for record in caplog.records if record.levelname == "WARNING"
    ]
    assert len(caplog.records) == 1
    weights.write_bytes(whole)
    folder.look()
    assert list(served(store)) == ["one"]
    weights.write_bytes(whole[:100])
    folder.look()
    assert list(served(store)) == ["one"], "the one that was read goes on"


def test_others_names_are_left_alone(store: AdapterStore, tmp_path: Path) -> None:
    mine = store.load("one", ADAPTERS / BASE / "stable")
    folder = AdapterFolder(store, tmp_path)
    put("all", tmp_path / "one")
    folder.look()
    assert store.find("one") == mine
    shutil.rmtree(tmp_path / "one")
    folder.look()
    assert store.find("one") == mine


def test_a_directory_that_is_lost_keeps_what_it_had(store: AdapterStore, tmp_path: Path) -> None:
    directory = tmp_path / "adapters"
    directory.mkdir()
    folder = AdapterFolder(store, directory)
    put("all", directory / "one")
    folder.look()
    directory.rename(tmp_path / "elsewhere")
    folder.look()
    assert list(served(store)) == ["one"]
    with pytest.raises(ConfigError, match="lora_dir: no directory at"):
        AdapterFolder(store, directory)


def test_a_thread_looks_for_as_long_as_the_folder_is_there(
    store: AdapterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "SECONDS", 0.01)
    folder = AdapterFolder(store, tmp_path)
    folder.start()
    (thread,) = (one for one in threading.enumerate() if one.name == "jaxserve-lora-dir")
    put("all", tmp_path / ".one").rename(tmp_path / "one")
    for _ in range(1000):
        if served(store):
            break
        thread.join(0.01)
    assert store.find("one").path == str(tmp_path / "one")
    with pytest.raises(ModelNotFoundError):
        store.find("two")
    del folder
    thread.join(10)
    assert not thread.is_alive()
