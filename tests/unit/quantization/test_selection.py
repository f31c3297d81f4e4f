"""Which matrices are rounded, and which are kept and why."""

from __future__ import annotations

import pytest

from jaxserve.errors import ConfigError
from jaxserve.quantization.checkpoint import open_model
from jaxserve.quantization.recipes import RECIPES, Recipe, recipe_of
from jaxserve.quantization.selection import Selection, select
from tests.golden.reading import DATA

INT8 = RECIPES["int8"]
PICO = DATA.parents[2] / "jaxserve" / "assets" / "pico"


def selected(model: str, recipe: Recipe = INT8, *keep: str) -> Selection:
    with open_model(DATA / model) as opened:
        return select(opened.config, opened.tensors, recipe, keep)


def names(selection: Selection, layer: int) -> set[str]:
    prefix = f"model.layers.{layer}."
    return {name.removeprefix(prefix).removesuffix(".weight") for name in selection.matrices if name.startswith(prefix)}


ATTENTION = {f"self_attn.{name}_proj" for name in "qkvo"}
MLP = {f"mlp.{name}_proj" for name in ("gate", "up", "down")}


def test_projections_are_rounded_and_nothing_else() -> None:
    selection = selected("llama-linear")
    assert names(selection, 0) == names(selection, 1) == ATTENTION | MLP
    assert len(selection.matrices) == 14
    assert selection.ignored == ("lm_head",)
    assert selection.kept == {}
    assert [len(names) for names in selection.units().values()] == [3, 1, 2, 1] * 2


def test_fused_projections_are_one_matrix_each() -> None:
    assert names(selected("phi3-short"), 0) == {"self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"}


def test_shared_and_routed_experts_are_rounded_but_no_router() -> None:
    selection = selected("qwen2-moe-shared")
    experts = {name for name in names(selection, 2) if ".experts." in name}
    assert {name.rpartition(".")[2] for name in experts} == {"gate_proj", "up_proj", "down_proj"}
    assert names(selection, 2) - experts == ATTENTION | {f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")}
    assert {"model.layers.2.mlp.gate", "model.layers.2.mlp.shared_expert_gate", "lm_head"} <= set(selection.ignored)


def test_matrices_of_latents_that_the_engine_does_not_round_are_ignored() -> None:
    selection = selected("deepseek-v3-groups")
    assert {f"self_attn.{name}" for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")} <= names(selection, 0)
    assert "model.layers.0.self_attn.kv_b_proj" in selection.ignored


def test_stacked_experts_are_no_linear_modules() -> None:
    assert not any("experts" in name for name in selected("gpt-oss-window").matrices)


@pytest.mark.parametrize("pattern", ["*.1.mlp.up_proj", r"re:model\.layers\.1\.mlp\.up"])
def test_what_is_multiplied_at_once_is_kept_together(pattern: str) -> None:
    selection = selected("llama-linear", INT8, pattern)
    assert names(selection, 0) == ATTENTION | MLP
    assert names(selection, 1) == ATTENTION | {"mlp.down_proj"}
    assert selection.kept == {f"model.layers.1.mlp.{name}_proj": f"matches {pattern}" for name in ("gate", "up")}
    assert set(selection.kept) < set(selection.ignored)


def test_a_layers_experts_are_kept_together() -> None:
    selection = selected("qwen3-moe-some", INT8, "*.experts.0.down_proj")
    assert len([name for name in selection.kept if ".experts." in name]) == 18
    assert not any(".experts." in name for name in selection.matrices)


def test_groups_must_divide_inputs() -> None:
    selection = selected("qwen3-moe-some", recipe_of("w4a16", 32))
    assert {why for name, why in selection.kept.items()} == {"16 inputs are no multiple of 32"}
    assert all(".experts." in name for name in selection.kept)
    with pytest.raises(ConfigError, match="nothing is left to quantize: 32 inputs are no multiple of 128; 64 inputs are"):
        selected("llama-linear", RECIPES["w4a16"])


def test_blocks_of_matrices_multiplied_at_once_end_where_each_does() -> None:
    with open_model(PICO) as opened:
        kept = select(opened.config, opened.tensors, RECIPES["fp8-block"], ()).kept
    assert kept["model.layers.0.mlp.up_proj"] == "704 outputs are no multiple of 128"
    assert kept["model.layers.0.mlp.down_proj"] == "704 inputs are no multiple of 128"
    assert len(kept) == 12
    assert RECIPES["fp8-block"].misfit(((256, 128), (200, 128))) is None  # the last one may end anywhere


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("*.mlp.upp", "no module of the model matches '\\*.mlp.upp'"),
        ("re:(", r"'re:\(' is no regular expression"),
        ("*", "nothing is left to quantize: matches \\*"),
    ],
)
def test_patterns_that_help_nobody_are_refused(pattern: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        selected("llama-linear", INT8, pattern)


def test_patterns_may_name_what_is_kept_anyway() -> None:
    assert len(selected("llama-linear", INT8, "lm_head").matrices) == 14
