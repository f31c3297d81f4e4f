"""Routed experts in fewer bits, compiled for one H100: in words, without a copy of them, as many bytes as arithmetic says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.aot.build import Result
from tests.integration.aot.test_compile import MOE, compiled, needs_plugin
from tests.support.stored_formats import FORMATS, FP8_BLOCKS, write
from tests.support.tiers import tiered

EMBED, FFN, EXPERTS, VOCAB = 512, 512, 32, 1000
LAYERS = 1  # all are alike
ONE_LAYER = {**MOE, "num_hidden_layers": LAYERS}
WEIGHTS = LAYERS * (EXPERTS * 3 * EMBED * FFN + 4 * EMBED * EMBED)  # of experts and attention, whose heads are as wide as rows
OUTPUTS = LAYERS * (EXPERTS * (2 * FFN + EMBED) + 4 * EMBED)
ONE_MATRIX = 2 * EMBED * 2 * FFN  # bytes of an expert's gate and up in bfloat16


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The same model in bfloat16."""
    directory = tmp_path_factory.mktemp("plain")
    (directory / "config.json").write_text(json.dumps(ONE_LAYER))
    return compiled(str(directory), 1, rows="4", tokens="none")


def check(result: Result, plain: Result, fewer: float, caplog: pytest.LogCaptureFixture) -> None:
    assert plain.ledger.weights - result.ledger.weights == fewer
    (step,), (same,) = result.steps, plain.steps
    assert step.facts.weight_copies == step.facts.cache_copies == ()
    assert step.temporary < same.temporary + ONE_MATRIX
    assert step.launches is not None
    assert step.launches.whole
    assert "products of experts" not in caplog.text  # said of those that have no kernel


# A byte fewer a weight; less the float32 scales, one for an output or for 128 of its inputs.
STORED: dict[str, tuple[tuple[dict[str, Any], Any, Any], float]] = {
    "fp8": (FORMATS["fp8"], WEIGHTS - 4 * OUTPUTS),
    "fp8 in blocks of 128": (FP8_BLOCKS, WEIGHTS * (1 - 4 / 128)),
}
# With the head, which is rounded as well; int4 has groups of 128.
ROUNDED = {"int8": WEIGHTS + VOCAB * EMBED - 4 * (OUTPUTS + VOCAB), "int4": (WEIGHTS + VOCAB * EMBED) * (1.5 - 4 / 128)}


@needs_plugin
@pytest.mark.parametrize("name", tiered(STORED, {"fp8"}))
def test_as_they_are_stored(name: str, plain: Result, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (method, quantized, _), fewer = STORED[name]
    directory = write(tmp_path / "model", method, quantized, ONE_LAYER)
    check(compiled(str(directory), 1, rows="4", tokens="none"), plain, fewer, caplog)


@needs_plugin
@pytest.mark.parametrize("name", tiered(ROUNDED, {"int8"}))
def test_rounded(name: str, plain: Result, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "config.json").write_text(json.dumps(ONE_LAYER))
    result = compiled(str(tmp_path), 1, rows="4", tokens="none", quantization=name)
    check(result, plain, ROUNDED[name], caplog)
