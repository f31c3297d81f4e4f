"""Adapters of experts are one thing in every form that PEFT has for them; what does not fit is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxserve.adapters.peft import AdapterFormat, HostAdapter
from jaxserve.adapters.trees import AdapterTrees
from jaxserve.errors import CheckpointError
from jaxserve.models.registry import decoder_config
from jaxserve.weights.checkpoint import Block
from tests.support.families import hf_config

HF = {**hf_config("qwen2_moe"), "moe_intermediate_size": 24}  # layer 0 has experts
SQUARE = {**HF, "moe_intermediate_size": 16}  # gate and up together have as many outputs as inputs
COUNT, EMBED, RANK = 8, 32, 3
BLOCK = "model.layers.0.mlp.experts"
CONFIG: dict[str, Any] = {"r": RANK, "lora_alpha": 6}
Tensors = dict[str, Block]


def adapter(tensors: Tensors, hf: dict[str, Any] = HF, max_rank: int = 8, *, experts: bool = True, **config: Any) -> HostAdapter:
    form = AdapterFormat(decoder_config(hf), 2, 8, "float32", experts)
    return AdapterTrees(form, max_rank).make(tensors, {**CONFIG, **config})


def modules(hf: dict[str, Any] = HF, *, shares: bool = True) -> Tensors:
    """Of each expert's projections; gate and up may have the same A."""
    rng, ffn, tensors = np.random.default_rng(1), hf["moe_intermediate_size"], {}
    for expert in range(COUNT):
        first = rng.standard_normal((RANK, EMBED))
        for name, inputs, outputs in (("gate_proj", EMBED, ffn), ("up_proj", EMBED, ffn), ("down_proj", ffn, EMBED)):
            own = rng.standard_normal((RANK, inputs))
            a = first if shares and name != "down_proj" else own
            tensors[f"{BLOCK}.{expert}.{name}.lora_A.weight"] = a.astype(np.float32)
            tensors[f"{BLOCK}.{expert}.{name}.lora_B.weight"] = rng.standard_normal((outputs, RANK)).astype(np.float32)
    return tensors


def parameters(each: Tensors, *, turned: bool = False) -> Tensors:
    """The same as adapters of two parameters, down's around that of gate and up."""

    def of(expert: int, name: str) -> tuple[Block, Block]:
        return each[f"{BLOCK}.{expert}.{name}.lora_A.weight"], each[f"{BLOCK}.{expert}.{name}.lora_B.weight"]

    pairs: dict[str, list[tuple[Block, Block]]] = {".base_layer": [], "": []}
    for expert in range(COUNT):
        a, gate = of(expert, "gate_proj")
        pairs[".base_layer"].append((a, np.concatenate([gate, of(expert, "up_proj")[1]])))
        pairs[""].append(of(expert, "down_proj"))
    tensors = {}
    for wrapped, matrices in pairs.items():
        sides = [(b.T, a.T) if turned else (a, b) for a, b in matrices]
        tensors[f"{BLOCK}{wrapped}.lora_A.weight"] = np.concatenate([a for a, _ in sides])
        tensors[f"{BLOCK}{wrapped}.lora_B.weight"] = np.stack([b for _, b in sides], axis=2).reshape(len(sides[0][1]), -1)
    return tensors


@pytest.mark.format("adapters", "`target_parameters`: experts' stacked parameters", "read")
def test_of_parameters_and_of_modules_are_the_same() -> None:
    of_modules, of_parameters = adapter(modules()), adapter(parameters(modules()))
    assert of_modules.numbers.any()
    np.testing.assert_array_equal(of_parameters.numbers, of_modules.numbers)
    assert (of_modules.modules, of_parameters.modules) == (3 * COUNT, 2)
    assert of_parameters.rank == RANK


@pytest.mark.format("adapters", "the same of PEFT before 0.19, whose sides were the other way round", "read")
@pytest.mark.parametrize("hf", [HF, SQUARE], ids=["told by shapes", "told by the version"])
def test_before_0_19_sides_of_parameters_were_turned(hf: dict[str, Any]) -> None:
    each = modules(hf)
    same = adapter(parameters(each, turned=True), hf, peft_version="0.18.1")
    np.testing.assert_array_equal(same.numbers, adapter(parameters(each), hf, peft_version="0.19.0.dev0").numbers)


def test_one_parameter_alone() -> None:
    """Whichever it is: its shapes say so, and the other stays as it is."""
    each = modules()
    down = {name: array for name, array in each.items() if "down_proj" in name}
    both = parameters(each)
    alone = {name: array for name, array in both.items() if ".base_layer" not in name}
    np.testing.assert_array_equal(adapter(alone).numbers, adapter(down).numbers)
    inner = {name.replace(".base_layer", ""): array for name, array in both.items() if ".base_layer" in name}
    others = {name: array for name, array in each.items() if "down_proj" not in name}
    np.testing.assert_array_equal(adapter(inner).numbers, adapter(others).numbers)


def test_ranks_and_scales_are_of_the_parameter() -> None:
    """Not of the module that A and B are named after."""
    ranks, scales = {"mlp.experts.gate_up_proj": RANK, "down_proj": RANK}, {"experts.down_proj": 6}
    got = adapter(parameters(modules()), r=5, lora_alpha=10, rank_pattern=ranks, alpha_pattern=scales)
    want = adapter(modules(), alpha_pattern={"gate_proj": 10, "up_proj": 10})
    np.testing.assert_array_equal(got.numbers, want.numbers)


def test_what_is_not_changed_is_zero() -> None:
    some = {name: array for name, array in modules(shares=False).items() if ".experts.5.up_proj" in name}
    (a, b), numbers = some.values(), adapter(some).numbers
    assert np.count_nonzero(numbers) == a.size + b.size


OF_PARAMETERS = parameters(modules())
A, INNER_A = f"{BLOCK}.lora_A.weight", f"{BLOCK}.base_layer.lora_A.weight"
AGAIN = {
    name.replace("experts", "experts.base_layer"): array for name, array in OF_PARAMETERS.items() if "base_layer" not in name
}
GATE = {
    f"model.layers.0.mlp.gate.lora_{side}.weight": np.ones(shape, np.float32) for side, shape in (("A", (3, 32)), ("B", (8, 3)))
}


@pytest.mark.parametrize(
    ("tensors", "options", "says"),
    [
        (modules(), {"experts": False}, r"routed experts, which needs --lora-experts: .*experts\.0\.down_proj"),
        (OF_PARAMETERS, {"experts": False}, r"routed experts, which needs --lora-experts: .*mlp\.experts"),
        (modules(), {"max_rank": 2}, r"experts\.0\.\w+ has rank 3, and max_lora_rank is 2"),
        (OF_PARAMETERS, {"max_rank": 2}, r"experts\.(gate_up|down)_proj has rank 3, and max_lora_rank is 2"),
        ({**OF_PARAMETERS, INNER_A: np.ones((24, 31), np.float32)}, {}, r"experts\.base_layer\.lora_A\.weight \[24, 31\]"),
        (
            {**OF_PARAMETERS, A: np.ones((21, 24), np.float32)},
            {},
            r"lora_A\.weight \[21, 24\] .* must be .*\[\[24, 32\], \[48, 24\]\] for .*gate_up_proj",
        ),
        (
            {**OF_PARAMETERS, **AGAIN},
            {},
            r"experts\.base_layer\.lora_A\.weight \[24, 24\] .* must be .*, each once",
        ),
        ({**OF_PARAMETERS, **modules()}, {}, r"experts\.0\.\w+\.weight twice"),
        (
            {**OF_PARAMETERS, A: OF_PARAMETERS[A] * np.float32(np.nan)},
            {},
            r"experts\.lora_A\.weight has numbers that are not finite",
        ),
        ({name.replace(".0.gate", ".8.gate"): one for name, one in modules().items()}, {}, r"not in it: .*experts\.8\.gate_proj"),
        (
            {name.replace("layers.0", "layers.1"): one for name, one in OF_PARAMETERS.items()},
            {},
            r"not in it: .*layers\.1\.mlp\.experts",
        ),
        (GATE, {}, r"takes no adapters in this model, or is not in it: model\.layers\.0\.mlp\.gate"),
    ],
)
def test_what_does_not_fit_is_named(tensors: Tensors, options: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        adapter(tensors, **options)
