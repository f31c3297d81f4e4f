"""Settings of a job whose engines are on a Ray cluster, and what the command makes of them without Ray."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jaxserve import batch
from jaxserve.errors import ConfigError
from jaxserve.jobs.cluster import CHUNKS, ClusterConfig
from jaxserve.jobs.display import Rates
from jaxserve.jobs.summary import Counts, JobProgress
from tests.unit.jobs.support import request, write


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"engines": -1}, "engines"),
        ({"engines": 1, "cpus_per_engine": 0.0}, "cpus_per_engine"),
        ({"engines": 1, "gpus_per_engine": -1.0}, "gpus_per_engine"),
        ({"ray_address": "auto"}, "ray_address"),
    ],
)
def test_impossible_clusters(settings: dict[str, float | str], param: str) -> None:
    with pytest.raises(ConfigError, match=param) as refused:
        ClusterConfig(**settings)  # type: ignore[arg-type]
    assert refused.value.param == param


def test_more_lines_are_in_flight_than_chunks_hold() -> None:
    cluster = ClusterConfig(engines=3)
    assert cluster.sequences(8) == 3 * CHUNKS * 8 + 8


def complaint(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """What the command says when it does not begin."""
    requests = write(folder / "in.jsonl", [request("r0")])
    assert batch.main(["pico", "-i", str(requests), "-o", str(folder / "out.jsonl"), *flags]) == 2
    assert [path.name for path in folder.iterdir()] == ["in.jsonl"]
    return capsys.readouterr().err


def test_without_ray_the_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "jaxserve.jobs.ray_data", raising=False)
    assert complaint(tmp_path, capsys, "--engines", "2") == "jaxserve: engines needs Ray: pip install 'jaxserve[ray]'\n"


def test_an_engine_needs_a_gpu_for_each_part_of_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(tmp_path, capsys, "--engines", "2", "--tensor-parallel-size", "4", "--gpus-per-engine", "2")
    assert "gpus_per_engine is 2, but tensor_parallel_size is 4" in said


def test_progress_tells_of_the_cache_where_it_is_known() -> None:
    rates, progress = Rates(), JobProgress(lines=4, run=Counts(), all_runs=Counts())
    rates.see(0.0, progress)
    assert "KV 50%" in rates.said(progress, 0.5)
    assert "KV" not in rates.said(progress, None)
