"""An installed CUDA plugin changes nothing where there is no NVIDIA driver."""

import ctypes
import os
import subprocess
import sys

import pytest

from jaxserve.executor.platform import CUDA_DRIVER

CODE = """
import jax
from jaxserve.executor.platform import choose_platform
choose_platform(0.9)
print(jax.config.jax_platforms, jax.devices()[0].platform)
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE], env=inherited | environment, capture_output=True, text=True, check=True
    )


def has_driver() -> bool:
    try:
        ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")
def test_without_a_driver_the_devices_are_cpus_and_nothing_is_logged() -> None:
    result = run()
    assert result.stdout.split()[1] == "cpu"
    assert result.stderr == ""


def test_a_chosen_platform_stays() -> None:
    assert run(JAX_PLATFORMS="cpu,cpu").stdout.split() == ["cpu,cpu", "cpu"]
