"""What saved programs must agree in: every size and constant of model and engine, the devices, the packages, the code."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxserve.config.kernels import Kernels, LayerRange
from jaxserve.config.lora import LoraShape
from jaxserve.config.states import StatePlaces
from jaxserve.executor import identity as module
from jaxserve.executor.identity import identity
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.options import ExecutorOptions
from jaxserve.models.config import Experts, Routing
from jaxserve.models.positions import RopeConfig
from jaxserve.models.registry import decoder_config
from pallas_kernels import native
from pallas_kernels.quantization import SCHEMES
from sharding import make_mesh
from tests.support.families import hf_config

MODEL = decoder_config(hf_config("llama"))
ROUTED = Experts(count=4, active=2, ffn_size=8, layers=(True,) * MODEL.num_layers, routing=Routing())
SPARSE = replace(MODEL, experts=ROUTED)
OPTIONS = ExecutorOptions(
    max_num_seqs=2,
    max_num_batched_tokens=8,
    max_model_len=32,
    num_pages=20,
    page_size=4,
    dtype="float32",
    kv_dtype="float32",
)
OTHER: dict[str, Any] = {
    "max_num_seqs": 3,
    "max_num_batched_tokens": 9,
    "max_model_len": 33,
    "num_pages": 21,
    "page_size": 8,
    "dtype": "bfloat16",
    "kv_dtype": "bfloat16",
    "quantization": "int8",
    "stored": ((("layers", "0", "attention", "qkv"), (SCHEMES["int8"],)),),
    "max_drafts": 2,
    "deterministic": True,
    "routed_experts": True,
    "adapters": LoraShape(2, 8),
    "states": StatePlaces(2, 1, 3, 8),
    "kernels": Kernels(attention=(LayerRange("xla", 0, None),)),
}


def identify(model=MODEL, options=OPTIONS, devices=1):
    return identity(Lowering(model, make_mesh(devices), options))


def changed(before, after):
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def test_the_same_engine_has_the_same_identity():
    assert identify() == identify()


SHAPING_NONE: dict[str, Any] = {"first_alone": True, "fewest_shapes": True, "strict": True, "swap_slots": 3}
SHAPING_NONE |= {"autotune_results": Path("results")}
SHAPING = [item.name for item in fields(ExecutorOptions) if item.name not in SHAPING_NONE]


@pytest.mark.parametrize("name", SHAPING)
def test_every_option_that_shapes_programs_counts(name):
    if name in ("quantization", "stored", "deterministic") and native.missing() is not None:
        pytest.skip(f"NOT CHECKED: native kernels: {native.missing()}")
    model = SPARSE if name == "routed_experts" else MODEL
    assert changed(identify(model), identify(model, replace(OPTIONS, **{name: OTHER[name]}))) == {name}


def test_options_that_shape_none_do_not_count():
    assert identify(options=replace(OPTIONS, **SHAPING_NONE)) == identify()


def test_constants_of_the_model_count():
    assert changed(identify(), identify(replace(MODEL, norm_eps=1e-3))) == {"model.norm_eps"}
    assert changed(identify(), identify(replace(MODEL, ropes=(RopeConfig(theta=5e5),) * 2))) == {"model.ropes"}
    assert identify(replace(MODEL, eos_token_ids=(7,), dtype="float16")) == identify()


def test_devices_count():
    assert changed(identify(), identify(devices=2)) == {"tensor_parallel_size"}
    one, grouped = (identity(Lowering(SPARSE, mesh, OPTIONS)) for mesh in (make_mesh(2), make_mesh(1, expert=2)))
    assert changed(one, grouped) == {"expert_parallel_size"}


def test_only_settings_of_jax_that_are_not_pinned_count():
    before = identify()
    with jax.default_matmul_precision("highest"), jax.enable_x64(True):
        assert identify() == before
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        assert changed(before, identify()) == {"jax_disable_most_optimizations"}
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


def test_instruction_sets_count(monkeypatch, tmp_path):
    before = identify()
    names: list[str] = []
    for flags in ("fpu avx2", "fpu avx2 avx512f"):
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\nbogomips : {len(names)}\n")
        monkeypatch.setattr(module, "_CPU_INFO", tmp_path / "cpuinfo")
        names.append(identify()["device"])
        assert changed(before, identify()) == {"device"}
    assert names[0] != names[1]
    monkeypatch.setattr(module, "_CPU_INFO", tmp_path / "nothing")
    assert identify()["device"].endswith(" unknown")


def test_the_code_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "TRACED", ("jaxserve",))
    monkeypatch.setattr(module, "PACKAGE", str(tmp_path / "package"))
    digests: list[str] = []
    for content in ("a = 1", "a = 2"):
        (tmp_path / "package").mkdir(exist_ok=True)
        (tmp_path / "package" / "step.py").write_text(content)
        (tmp_path / "package" / "notes.txt").write_text(f"{len(digests)}")
        digests.append(identify()["code"])
    assert digests[0] != digests[1]
    (tmp_path / "package" / "notes.txt").write_text("other")
    assert identify()["code"] == digests[1]
    (tmp_path / "package" / "step.py").rename(tmp_path / "package" / "steps.py")
    assert identify()["code"] != digests[1]
