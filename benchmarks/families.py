"""python -m benchmarks.families [out.json]: what a model family costs: seconds to trace and compile a step, lines of code.

Every family at the same sizes and four layers, in bfloat16, one step of 64 tokens in 16 rows; experts: 8, two a token. Traced and
compiled anew each time, without the compilation cache, in turns; the median of ROUNDS. Lines are those of the family's own file,
without blank lines, comments and docstrings. Also writes the table in docs/models.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tempfile
import time
import tokenize
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

import jaxserve.models.families
from benchmarks.machine import describe, median
from benchmarks.pages import markdown, with_table
from jaxserve.commands import write_json
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.preparation import prepare
from jaxserve.executor.lowering import Lowering
from jaxserve.models.registry import FAMILIES, Family

ROUNDS, LAYERS = 3, 4
PAGE, NAME = Path("docs/models.md"), "benchmarks/families.py"
SETTINGS = {"load_format": "dummy", "dtype": "bfloat16", "max_model_len": 2048, "max_num_seqs": 16, "max_num_batched_tokens": 64}
SIZES: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 704,
    "num_experts_per_tok": 2,
}
_QWEN = {"num_experts": 8, "shared_expert_intermediate_size": 704}
_DEEPSEEK = {"num_key_value_heads": 16, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
_DEEPSEEK |= {"q_lora_rank": 384, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
_INDEXER = {"index_n_heads": 16, "index_head_dim": 64, "index_topk": 512}
OWN: Mapping[str, dict[str, Any]] = {
    "llama4_text": {
        "head_dim": 64,
        "num_local_experts": 8,
        "intermediate_size": 704,
        "intermediate_size_mlp": 2816,
        "attention_chunk_size": 512,
    },
    "gemma2": {"head_dim": 64},
    "gemma3_text": {"head_dim": 64},
    "gemma4_text": {
        "head_dim": 64,
        "global_head_dim": 128,
        "hidden_size_per_layer_input": 64,
        "vocab_size_per_layer_input": SIZES["vocab_size"],
        "num_kv_shared_layers": LAYERS // 4,
        "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
    },
    "gemma4_unified_text": {"head_dim": 64, "global_head_dim": 128},
    "qwen3": {"head_dim": 64},
    "mixtral": {"num_local_experts": 8, "intermediate_size": 704},
    "qwen2_moe": _QWEN,
    "qwen3_moe": {**_QWEN, "head_dim": 64},
    "gpt_oss": {"num_local_experts": 8, "intermediate_size": 704},
    "deepseek_v2": {**_DEEPSEEK, "topk_method": "group_limited_greedy"},
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": {**_DEEPSEEK, **_INDEXER},
    "glm": {"head_dim": 64},
    "glm4": {"head_dim": 64},
    "ministral3": {"head_dim": 64},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"], "num_experts": 8, "num_dense_layers": 1},
    "glm4_moe": {"head_dim": 64, "n_routed_experts": 8, "use_qk_norm": True},
    "glm4_moe_lite": _DEEPSEEK,
    "glm_moe_dsa": {**_DEEPSEEK, **_INDEXER},
    "qwen3_next": {**_QWEN, "head_dim": 64},
    "qwen3_5_text": {"head_dim": 64},
    "qwen3_5_moe_text": {**_QWEN, "head_dim": 64},
    "granitemoehybrid": {"num_local_experts": 8, "mamba_n_heads": 32, "layer_types": ["mamba", "mamba", "attention", "mamba"]},
    "nemotron_h": {
        "num_hidden_layers": 2 * LAYERS,
        "hybrid_override_pattern": "M-M-M-*-",
        "head_dim": 64,
        "mamba_num_heads": 32,
        "n_groups": 4,
    },
    "minimax_m2": {"head_dim": 64, "num_local_experts": 8, "intermediate_size": 704, "rotary_dim": 32},
}


def lowering_of(family: Family, folder: Path) -> Lowering:
    """What the programs of a model of this family are made from."""
    names = {"architectures": [family.architecture], "model_type": family.model_type}
    config = {**SIZES, **OWN.get(family.model_type, {}), **names}
    (folder / "config.json").write_text(json.dumps(config))
    return prepare(EngineConfig.from_settings({"model": str(folder), **SETTINGS})).lowering


def seconds(lowering: Lowering) -> tuple[float, float]:
    """Seconds to trace and to compile the first half of the largest step, which is all that differs between families."""
    recipe = lowering.forward(lowering.grid.buckets[-1])
    jax.clear_caches()
    begin = time.perf_counter()
    lowered = recipe.function.lower(*recipe.arguments)
    traced = time.perf_counter()
    lowered.compile(compiler_options={**recipe.options} or None)
    return traced - begin, time.perf_counter() - traced


def code_lines(source: str) -> int:
    """Lines that have code on them."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, documented) and ast.get_docstring(node, clean=False)
    ]
    docstrings = {line for node in nodes for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in layout]
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - docstrings)


def file_of(family: Family) -> Path:
    """The family's own file."""
    module: ModuleType = sys.modules[family.config_from_hf.__module__]
    return Path(str(module.__file__))


def shared_lines() -> dict[str, int]:
    """Lines of what several families share."""
    own = {file_of(family) for family in FAMILIES.values()}
    folder = Path(str(jaxserve.models.families.__file__)).parent
    files = [*sorted(folder.glob("*.py")), *sorted(folder.parent.glob("*rules.py"))]
    return {file.name: lines for file in files if file not in own and (lines := code_lines(file.read_text()))}


def table(results: Mapping[str, Any]) -> str:
    """The results as a table."""
    titles = ["family", "lines of its file", "traced, s", "compiled, s"]
    return markdown(
        titles,
        [
            [f"`{name}`", each["lines"], f"{each['trace_seconds']:.1f}", f"{each['compile_seconds']:.1f}"]
            for name, each in results["families"].items()
        ],
    )


def measure() -> dict[str, Any]:
    """The figures of every family."""
    jax.config.update("jax_enable_compilation_cache", False)
    with tempfile.TemporaryDirectory() as folder:
        lowerings = {name: lowering_of(family, Path(folder)) for name, family in FAMILIES.items()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in FAMILIES}
    for _ in range(ROUNDS):
        for name, lowering in lowerings.items():
            taken[name].append(seconds(lowering))
            print(f"{name}: {taken[name][-1][0]:.2f} s traced, {taken[name][-1][1]:.2f} s compiled", file=sys.stderr)
    return {
        name: {
            "file": file_of(family).name,
            "lines": code_lines(file_of(family).read_text()),
            "trace_seconds": round(median([traced for traced, _ in taken[name]]), 2),
            "compile_seconds": round(median([compiled for _, compiled in taken[name]]), 2),
            "parameters": lowerings[name].config.num_parameters,
        }
        for name, family in FAMILIES.items()
    }


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", default="benchmarks/results/families.json")
    out = Path(parser.parse_args().out)
    results = {"machine": describe(), "layers": LAYERS, "rounds": ROUNDS, "shared_lines": shared_lines(), "families": measure()}
    write_json(out, results)
    PAGE.write_text(with_table(PAGE.read_text(), NAME, table(results)))


if __name__ == "__main__":
    main()
