"""Jobs whose engines are actors of a Ray cluster; needs the extra 'ray'."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxserve.errors import ConfigError, EngineDeadError
from jaxserve.jobs.cluster import ClusterConfig
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.summary import JobProgress, Summary
from tests.support.remote_answers import no_engine, remote_echo
from tests.unit.jobs.support import files_in, ids, open_job, read, request, write

ray_data = pytest.importorskip("jaxserve.jobs.ray_data", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("default")  # Ray's own

LINES = 400


async def run_on_cluster(folder: Path, stop_after: int = LINES) -> Summary:
    """A run on two engines, ended when so many lines are done."""
    cluster = ClusterConfig(engines=2, cpus_per_engine=0.5)
    async with ray_data.RayEngines.start(remote_echo, cluster, rows=8) as engines:
        with open_job(folder, config=JobConfig(concurrency=cluster.sequences(8), commit_seconds=0.1)) as job:

            def look(progress: JobProgress) -> None:
                if progress.run.done >= stop_after:
                    job.stop()

            summary: Summary = await job.run(engines, look)
            return summary


async def test_a_job_on_two_engines_of_which_one_dies_and_that_is_resumed(tmp_path: Path) -> None:
    lines = [request(f"r{number}", f"text {number}") for number in range(LINES)]
    lines[20]["body"]["dies"] = str(tmp_path / "died")
    write(tmp_path / "in.jsonl", lines)
    first = await run_on_cluster(tmp_path, stop_after=50)
    assert not first.complete
    second = await run_on_cluster(tmp_path)
    assert second.complete
    assert second.runs == 2
    assert ids(tmp_path) == {f"r{number}": 1 for number in range(LINES)}
    assert (tmp_path / "died").exists()
    found = read(files_in(tmp_path).output)
    assert {line["custom_id"]: line["response"]["body"]["choices"][0]["text"] for line in found} == {
        f"r{number}": f"text {number}" for number in range(LINES)
    }
    assert len({line["response"]["request_id"] for line in found}) > 2  # processes


async def test_an_engine_that_does_not_start_ends_the_job(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [request("r0")])
    async with ray_data.RayEngines.start(no_engine, ClusterConfig(engines=1, cpus_per_engine=0.5), rows=8) as engines:
        with open_job(tmp_path) as job, pytest.raises(EngineDeadError, match="no such model"):
            await job.run(engines)


async def test_more_engines_than_the_cluster_holds_are_refused() -> None:
    with pytest.raises(ConfigError, match="1000 engines of 1 CPUs each") as refused:
        async with ray_data.RayEngines.start(remote_echo, ClusterConfig(engines=1000), rows=8):
            pass
    assert refused.value.param == "engines"


async def test_a_cluster_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot join the Ray cluster") as refused:
        async with ray_data.RayEngines.start(remote_echo, ClusterConfig(engines=1, ray_address="127.0.0.1:1"), rows=8):
            pass
    assert refused.value.param == "ray_address"
