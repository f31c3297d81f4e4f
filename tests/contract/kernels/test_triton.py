"""The Triton implementation: interpreted, and compiled for GPUs that are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from jaxserve.aot.target import Target as CompileTarget
from jaxserve.aot.thunks import read_launches
from jaxserve.executor.compile_cache import nothing_kept
from pallas_kernels.ragged_paged_attention import AttentionOptions, ragged_paged_attention
from pallas_kernels.registry import Target

from .needs import PLUGIN, TRITON

pytestmark = TRITON

ROOT = Path(__file__).parents[3]
KEYS_OF_A_SHARE = 512
CASES = ("mixed", "tokens as rows", "head dim 80", "pages of 64", "everything", "long contexts", "huge scores")
MORE_CASES = ("empty rows", "padding", "odd group", "head dim 256")
SHARED = ("empty rows", "everything, decodes", "everything")


def results_of(share_keys: int, *wanted: str) -> dict[str, Any]:
    """The verdict of each "dtype:case", or why it did not pass."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.triton_interpreted", str(share_keys), *wanted],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    results = json.loads(ran.stdout.splitlines()[-1])
    return {f"{each['dtype']}:{each['case']}": each["verdict"] if each["verdict"] == "pass" else each for each in results}


def test_it_computes_what_the_reference_does() -> None:
    """With NaN in pages that no row uses; in every dtype of the cache."""
    in_float8 = [f"float8:{name}" for name in ("everything", "bfloat16 scales", "head dim 256", "long contexts")]
    wanted = [*(f"bfloat16:{name}" for name in CASES), "float16:everything", *in_float8, "int8:everything", "int8:head dim 256"]
    assert results_of(KEYS_OF_A_SHARE, *wanted) == dict.fromkeys(wanted, "pass")


@pytest.mark.extended
def test_it_computes_what_the_reference_does_in_more_cases() -> None:
    """Whose parts are those of others: rows without queries and padding of tokens as rows, sizes between others'."""
    wanted = [f"bfloat16:{name}" for name in MORE_CASES]
    assert results_of(KEYS_OF_A_SHARE, *wanted) == dict.fromkeys(wanted, "pass")


def test_keys_that_programs_share() -> None:
    wanted = [*(f"bfloat16:{name}" for name in SHARED), "float8:everything, decodes"]
    assert results_of(8, *wanted) == dict.fromkeys(wanted, "pass")


@PLUGIN
@pytest.mark.parametrize(
    ("gpu", "tokens", "dim", "kv_dtype", "spills"),
    [
        ("a100", 32, 128, "bfloat16", 0),
        ("a100", 512, 128, "float8_e4m3fn", 0),
        ("b200", 512, 128, "bfloat16", 0),
        pytest.param("b200", 512, 256, "float8_e4m3fn", 12, marks=pytest.mark.extended),
        pytest.param("a100", 512, 128, "int8", 0, marks=pytest.mark.extended),
        ("b200", 512, 256, "int8", 12),
    ],
)
def test_it_compiles_to_one_command_buffer(
    gpu: str, tokens: int, dim: int, kv_dtype: str, spills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jax_triton import triton_lib

    made: list[Any] = []
    compile_ = triton_lib.compile_ttir_inplace

    def kept(*given: Any) -> Any:
        made.append(compile_(*given))
        return made[-1]

    monkeypatch.setattr(triton_lib, "compile_ttir_inplace", kept)
    device = CompileTarget.parse(gpu).devices()[0]
    placed = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
    pages = (2, 100, 2, 4, 16, dim)
    scales = None if kv_dtype == "bfloat16" else placed(pages[:5], jnp.bfloat16)
    call = partial(ragged_paged_attention, layer=1, options=AttentionOptions(0.1), target=Target.of(device))
    rows = [placed((32, 64), jnp.int32), placed((33,), jnp.int32), placed((32,), jnp.int32)]
    with nothing_kept():
        lowered = jax.jit(call).lower(placed((tokens, 16, dim), jnp.bfloat16), placed(pages, kv_dtype), *rows, kv_scales=scales)
        lowered.compile({"xla_dump_to": str(tmp_path)})
    assert read_launches(tmp_path).whole
    (kernel,) = made
    assert kernel.shared_mem_bytes <= 100 * 1024
    assert spilled(kernel.binary, tmp_path) <= spills


def spilled(text: str, directory: Path) -> int:
    """Bytes that a kernel's PTX spills, by Triton's own assembler."""
    from triton import knobs

    target = text.partition(".target ")[2].split()[0].rstrip(",")
    assembler = knobs.nvidia.ptxas_blackwell if target.startswith("sm_1") else knobs.nvidia.ptxas
    (directory / "kernel.ptx").write_text(text)
    command = [assembler.path, "-v", "--gpu-name", target, str(directory / "kernel.ptx"), "-o", str(directory / "kernel.cubin")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "registers" in said
    return sum(int(part.split()[-1]) for part in said.split(" bytes spill")[:-1])
