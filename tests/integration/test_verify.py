"""The command `python -m jaxserve.verify`: its table, its exit codes, its figures as JSON."""

import json

import jax.numpy as jnp
import pytest

from jaxserve import verify
from pallas_kernels.kv_write import api, xla
from pallas_kernels.parity.cases import WRITE_CASES
from pallas_kernels.registry import Implementation


def test_every_kernel_of_an_operation_passes(capsys, tmp_path):
    path = tmp_path / "figures.json"
    arguments = ["kernels", "--op", "kv_write", "--dtype", "float8", "--device", "cpu", "--json", str(path)]
    assert verify.main(arguments) == 0
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if "xla" in line)
    assert line.split()[:4] == ["kv_write", "xla", "float8", str(len(WRITE_CASES))]
    assert line.endswith(f"{len(WRITE_CASES)} pass ")
    assert "every case passed that is supported" in shown
    results = json.loads(path.read_text())["results"]
    assert [result["case"] for result in results if result["implementation"] == "xla"] == [case.name for case in WRITE_CASES]
    assert {result["verdict"] for result in results} == {"pass"}
    assert 0.03 < max(result["max_rel"] for result in results) < 0.0626  # half an ulp of E4M3 is 1/16 at most


def test_a_wrong_kernel_is_listed_and_is_exit_code_1(capsys, monkeypatch):
    def wrong(pages, scales, k, v, slots, *, layer):
        return xla.kv_write(pages, scales, jnp.where(slots[:, None, None] == 31, 1 - k, k), v, slots, layer=layer)

    monkeypatch.setattr(api, "IMPLEMENTATIONS", (Implementation("xla", wrong, limits="tests"),))
    assert verify.main(["--op", "kv_write", "--dtype", "bfloat16"]) == 1
    shown = capsys.readouterr().out
    concerned = [case.name for case in WRITE_CASES if 31 in case.slots and case.page_size == 16]
    listed = [line for line in shown.splitlines() if "FAIL:" in line]
    assert all(name in line for name, line in zip(concerned, listed, strict=True))
    assert f"{len(concerned)} of {len(WRITE_CASES)} cases are wrong" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--op", "softmax"],
            "op: there is no 'softmax'; there is: causal_conv1d, gated_linear_attention, grouped_matmul, kv_write, matmul",
        ),
        (["--dtype", "int4"], "dtype: there is no 'int4'; there is: float32, bfloat16, float16, float8, int8"),
        (
            ["--op", "grouped_matmul", "--dtype", "float8"],
            "dtype: grouped_matmul has no 'float8'; it has: float32, bfloat16, float16",
        ),
        (["--device", "gpu"], "device: jax finds no gpu here"),
        (["models"], "subject must be one of 'kernels', got 'models'"),
        (["--op", "kv_write", "--dtype", "float32", "--json", "/nowhere/x"], "cannot write /nowhere/x"),
    ],
)
def test_a_wrong_question_is_one_line_and_exit_code_2(capsys, arguments, message):
    assert verify.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"jaxserve: {message}")
