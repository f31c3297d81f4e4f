"""What XLA measured of kernels: which options name it, and that it goes with programs that are saved."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxserve.aot.build import compile_for
from jaxserve.aot.settings import TargetConfig
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.preparation import prepare
from jaxserve.errors import ConfigError
from jaxserve.executor.autotune_results import (
    autotune_options,
    make_results,
    require_results,
    save_results,
    saved_results,
)
from jaxserve.executor.programs import compile_threads

GPU: Any = SimpleNamespace(platform="cuda")
CPU: Any = SimpleNamespace(platform="cpu")


def test_a_gpus_programs_are_compiled_with_what_was_measured(tmp_path: Path) -> None:
    directory = {"xla_gpu_per_fusion_autotune_cache_dir": str(tmp_path)}
    assert autotune_options(GPU, tmp_path) == directory
    kept = autotune_options(GPU, tmp_path, adds=False)
    assert kept == directory | {"xla_gpu_experimental_autotune_cache_mode": "AUTOTUNE_CACHE_MODE_READ"}
    assert autotune_options(GPU, None) == autotune_options(CPU, tmp_path) == {}


def test_results_lie_beside_saved_programs(tmp_path: Path) -> None:
    measured, programs = tmp_path / "measured", tmp_path / "programs"
    make_results(measured / "gpu")
    (measured / "gpu" / "kernel.pb").write_bytes(b"a tile")
    programs.mkdir()
    save_results(None, programs)
    assert saved_results(programs) is None
    for _ in range(2):  # over what an earlier save left
        save_results(measured, programs)
    beside = saved_results(programs)
    assert beside is not None
    assert (beside / "gpu" / "kernel.pb").read_bytes() == b"a tile"


def test_directories_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"autotune_results: cannot make .*/file/results: Not a directory"):
        make_results(tmp_path / "file" / "results")
    with pytest.raises(ConfigError, match=r"autotune_results: there is no directory .*/nowhere"):
        require_results(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"there is no directory .*/nowhere"):
        compile_for(TargetConfig(target="cpu", layers=1, num_pages=16, autotune_results=str(tmp_path / "nowhere")), print)


def test_the_server_makes_the_directory(tmp_path: Path) -> None:
    config = EngineConfig.from_settings({"model": "pico", "autotune_results": str(tmp_path / "results")})
    assert prepare(config).lowering.options.autotune_results == tmp_path / "results"
    assert (tmp_path / "results").is_dir()


@pytest.mark.parametrize(("cores", "threads"), [(None, 2), (1, 2), (2, 2), (8, 4), (32, 16), (192, 16)])
def test_more_cores_compile_more_programs_at_once(cores: int | None, threads: int) -> None:
    assert compile_threads(cores) == threads
