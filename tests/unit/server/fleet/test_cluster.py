"""How a fleet connects to Ray."""

import os
from pathlib import Path
from typing import Any

import pytest

from jaxserve.import_path import ROOT


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_workers_do_not_import_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray puts the directory in which it is started first on its workers' import path."""
    pytest.importorskip("ray", reason="NOT CHECKED: fleets need Ray")
    from server.fleet import cluster

    places = []

    def init(address: str, **_: Any) -> None:
        places.append(os.getcwd())

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.chdir(tmp_path)
    with cluster.connected("local", keep=False):
        assert os.getcwd() == str(tmp_path)
    with cluster.connected("somewhere:1", keep=True):
        assert os.getcwd() == str(tmp_path)
    assert places == [ROOT, ROOT]
