"""Targets: names, figures, and what the compiler makes of them."""

import re
from importlib.util import find_spec

import pytest

from jaxserve.aot.target import Gpu, Target, gpu_names
from jaxserve.errors import ConfigError
from jaxserve.planner import catalogue


def gpu_of(name: str) -> Gpu:
    gpu = Target.parse(name).gpu
    assert gpu is not None
    return gpu


H100 = gpu_of("h100").description()


@pytest.mark.parametrize(("text", "count"), [("h100:8", 8), ("h100", 1), ("h100:1", 1)])
def test_parse(text: str, count: int) -> None:
    target = Target.parse(text)
    assert (target.key, target.count) == ("h100", count)


@pytest.mark.parametrize("text", ["h100:0", "h100:", "h100:8x", "H100:8", "", ":8", "v100:1", "h100:-1"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="known GPUs are a100, h100, h200, b200"):
        Target.parse(text)


@pytest.mark.parametrize("name", gpu_names())
def test_figures_agree_with_the_planner(name: str) -> None:
    """Two tables of the same hardware; the driver gives programs less than it reports, or the same."""
    gpu = gpu_of(name)
    known = catalogue.hardware("a100-80" if name == "a100" else name)
    assert 0.98 < gpu.memory_bytes / (known.hbm_mib * 2**20) <= 1.0
    assert gpu.bandwidth / 1e9 == pytest.approx(known.bandwidth_gb_s, rel=0.05)
    flops = 2 * gpu.tensor_fma_per_core * gpu.core_count * gpu.tensor_clock_ghz * 1e9
    assert flops / 1e12 == pytest.approx(known.bf16_tflops, rel=0.01)
    assert gpu.tensor_fp8 == (known.fp8_tflops is not None)


def test_tensor_cores_as_xla_counts_them() -> None:
    """A quarter of the core a unit, in multiply-adds a clock: 512 of bfloat16 on an H100, twice FP8, half TF32."""
    rates = dict(re.findall(r"key: (\d+) value { clock_rate_ghz: 1\.83 units_per_core: 4 ops_per_clock: (\d+) }", H100))
    assert rates == {"10": "512", "11": "256", "16": "512", "19": "1024", "20": "1024"}
    assert "key: 20" not in gpu_of("a100").description()


@pytest.mark.skipif(find_spec("jax_cuda13_plugin") is None, reason="NOT COMPILED FOR GPUS: jax-cuda13-plugin is missing")
@pytest.mark.parametrize(("name", "capability"), [("a100", "8.0"), ("h100", "9.0"), ("h200", "9.0"), ("b200", "10.0")])
def test_compiler_takes_the_description(name: str, capability: str) -> None:
    devices = Target.parse(f"{name}:4").devices()
    assert len(devices) == 4
    assert devices[0].compute_capability == capability
    assert devices[0].device_kind == gpu_of(name).name
