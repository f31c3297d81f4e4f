"""gated_linear_attention and causal_conv1d in Mosaic GPU: interpreted against the reference, compiled for an H100 in place."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from jaxserve.aot.target import Target
from jaxserve.executor.compile_cache import nothing_kept
from pallas_kernels.parity.recurrence import CONV_CASES, LINEAR_CASES, check_conv, check_linear
from pallas_kernels.registry import Target as KernelTarget

from . import ptx
from .needs import MOSAIC, PLUGIN

pytestmark = MOSAIC
INTERPRETED = "mosaic_gpu_interpreted"


@pytest.fixture(autouse=True)
def no_races(capfd):
    yield
    assert "RACE DETECTED" not in capfd.readouterr().out


@pytest.mark.parametrize("case", [case for case in LINEAR_CASES if case.tiny], ids=lambda case: case.name)
def test_linear(case):
    result = check_linear(case, "bfloat16", INTERPRETED)
    assert result.verdict == ("unsupported" if case.name.startswith("odd widths") else "pass"), result


@pytest.mark.parametrize("case", [case for case in CONV_CASES if case.tiny], ids=lambda case: case.name)
def test_conv(case):
    result = check_conv(case, "bfloat16", INTERPRETED)
    assert result.verdict == ("unsupported" if case.channels % 128 else "pass"), result
