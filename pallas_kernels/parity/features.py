"""Which implementation supports what, asked of the implementations themselves; docs/kernels.md shows these tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from pallas_kernels.causal_conv1d import implementations as conv
from pallas_kernels.causal_conv1d.problem import ConvProblem
from pallas_kernels.gated_linear_attention import LinearOptions
from pallas_kernels.gated_linear_attention import implementations as linear
from pallas_kernels.gated_linear_attention.problem import LinearProblem
from pallas_kernels.grouped_matmul import implementations as grouped
from pallas_kernels.grouped_matmul.problem import GroupedProblem
from pallas_kernels.kv_write import implementations as write
from pallas_kernels.kv_write.problem import WriteProblem
from pallas_kernels.matmul import implementations as matmul
from pallas_kernels.matmul.problem import MatmulProblem
from pallas_kernels.parity.batches import FLOAT8, INT8
from pallas_kernels.parity.cases import PLAIN
from pallas_kernels.quantization import Float8Weight, FourBit
from pallas_kernels.ragged_paged_attention import implementations as attention
from pallas_kernels.ragged_paged_attention.problem import AttentionProblem
from pallas_kernels.registry import Implementation
from pallas_kernels.rotate_and_write import implementations as rotate
from pallas_kernels.rotate_and_write.problem import RotateProblem
from pallas_kernels.rotate_write_attend import implementations as rotate_attend
from pallas_kernels.rotate_write_attend.problem import RotateAttendProblem
from pallas_kernels.round_rows import implementations as rounding
from pallas_kernels.round_rows.problem import RoundProblem

BFLOAT16 = jnp.dtype("bfloat16")
_DTYPES: dict[str, dict[str, Any]] = {
    "bf16": {},
    "f16": {"dtype": jnp.dtype("float16"), "kv_dtype": jnp.dtype("float16")},
    "f32": {"dtype": jnp.dtype("float32"), "kv_dtype": jnp.dtype("float32")},
    "f8 cache": {"kv_dtype": FLOAT8, "scales_dtype": jnp.dtype("float32")},
    "int8 cache": {"kv_dtype": INT8, "scales_dtype": jnp.dtype("float32")},
}
_DIMS: dict[str, dict[str, Any]] = {f"D={dim}": {"head_dim": dim} for dim in (64, 80, 96, 128, 256)}
_PAGES: dict[str, dict[str, Any]] = {f"S={size}": {"page_size": size} for size in (8, 16, 32, 64)}

ATTENTION = AttentionProblem(
    tokens=64,
    rows=64,
    pages_per_row=256,
    heads=32,
    kv_heads=8,
    head_dim=128,
    page_size=16,
    dtype=BFLOAT16,
    kv_dtype=BFLOAT16,
    options=PLAIN,
)
ATTENTION_FEATURES: dict[str, dict[str, Any]] = {
    **_DTYPES,
    **_DIMS,
    **_PAGES,
    "window": {"options": replace(PLAIN, window=1024)},
    "soft cap": {"options": replace(PLAIN, soft_cap=30.0)},
    "sinks": {"sinks": True},
    "latents": {"kv_heads": 1, "head_dim": 576, "options": replace(PLAIN, value_dim=512)},
    "prompts": {"tokens": 512},
}
WRITE = WriteProblem(tokens=64, kv_heads=8, head_dim=128, page_size=16, dtype=BFLOAT16, kv_dtype=BFLOAT16)
WRITE_FEATURES: dict[str, dict[str, Any]] = {
    **_DTYPES,
    "f32 into bf16": {"dtype": jnp.dtype("float32")},
    **_DIMS,
    **_PAGES,
    "latents": {"kv_heads": 1, "head_dim": 576, "values": False},
}
ROTATE = RotateProblem(heads=32, kv_heads=8, head_dim=128, rotated_dims=128, dtype=BFLOAT16, kv_dtype=BFLOAT16)
ROTATE_FEATURES: dict[str, dict[str, Any]] = {
    **{name: _DTYPES[name] for name in ("bf16", "f16", "f32")},
    "f32 into bf16": WRITE_FEATURES["f32 into bf16"],
    **{name: {**changes, "rotated_dims": changes["head_dim"]} for name, changes in _DIMS.items()},
    "96 dimensions of 128": {"rotated_dims": 96},
    "latents": {"kv_heads": 1, "head_dim": 576, "rotated_dims": 64, "values": False},
}
ROTATE_ATTEND = RotateAttendProblem(ROTATE, ATTENTION)
ROTATE_ATTEND_FEATURES: dict[str, dict[str, Any]] = {
    **{
        name: {
            "rotate": replace(ROTATE, **ROTATE_FEATURES.get(name, {})),
            "attend": replace(ATTENTION, **ATTENTION_FEATURES.get(name, {})),
        }
        for name in ("bf16", "f16", "f32", *_DIMS, "96 dimensions of 128", *_PAGES, "window", "soft cap", "sinks", "prompts")
    },
    "one KV head of 4 heads": {
        "rotate": replace(ROTATE, heads=4, kv_heads=1),
        "attend": replace(ATTENTION, heads=4, kv_heads=1),
    },
}
GROUPED = GroupedProblem(
    rows=512, groups=128, inputs=2048, outputs=1536, dtype=BFLOAT16, result_dtype=jnp.dtype("float32"), expected_rows=512
)
GROUPED_FEATURES: dict[str, dict[str, Any]] = {
    **{name: {key: value for key, value in _DTYPES[name].items() if key == "dtype"} for name in ("bf16", "f16", "f32")},
    "result in bf16": {"result_dtype": BFLOAT16},
    "one row": {"rows": 1, "expected_rows": 1},
    "prompts": {"rows": 65536, "expected_rows": 65536},
    "8 groups": {"groups": 8},
    "256 groups": {"groups": 256},
    "widths of 2880": {"inputs": 2880, "outputs": 2880},
    "odd widths": {"inputs": 37, "outputs": 51},
    "in int8": {"layout": "panels", "scheme": "int8"},
    "in w8a8": {"layout": "panels", "scheme": "w8a8"},
    "in FP8": {"layout": "panels", "scheme": "fp8_weight"},
    "in int4": {"layout": "code panels", "scheme": "int4"},
    "in int8, in words": {"layout": "words", "scheme": "int8"},
    "in float8, in words": {"layout": "words", "scheme": "fp8_weight", "codes": Float8Weight(128)},
    "in int4, in words": {"layout": "words", "scheme": "int4", "codes": FourBit()},
    "in MXFP4, in words": {"layout": "words", "scheme": "int4", "codes": FourBit("fp4", 32)},
}
MATMUL = MatmulProblem(rows=16, inputs=2048, outputs=8192, dtype=BFLOAT16, layout="panels")
MATMUL_FEATURES: dict[str, dict[str, Any]] = {
    **{name: GROUPED_FEATURES[name] for name in ("bf16", "f16", "f32")},
    "rows of a table": {"layout": "rows"},
    "not packed": {"layout": "plain"},
    "in int8": {"scheme": "int8"},
    "in int8, not packed": {"layout": "plain", "scheme": "int8"},
    "in int8, in words": GROUPED_FEATURES["in int8, in words"],
    "in float8, in words": GROUPED_FEATURES["in float8, in words"],
    "in int4, in words": GROUPED_FEATURES["in int4, in words"],
    "in MXFP4, in words": GROUPED_FEATURES["in MXFP4, in words"],
    "in FP8": {"scheme": "fp8_weight"},
    "one row": {"rows": 1},
    "prompts": {"rows": 2048},
    "odd sizes": {"rows": 7, "inputs": 37, "outputs": 51},
}
ROUND = RoundProblem(width=8192, dtype=BFLOAT16)
ROUND_FEATURES: dict[str, dict[str, Any]] = {
    **{name: GROUPED_FEATURES[name] for name in ("bf16", "f16", "f32")},
    "widths of 3584": {"width": 3584},
    "widths of 16384": {"width": 16384},
    "widths of 28672": {"width": 28672},
    "odd widths": {"width": 2880},
}
LINEAR = LinearProblem(
    dtype=BFLOAT16,
    tokens=64,
    rows=64,
    key_heads=16,
    heads=32,
    key_dim=128,
    value_dim=128,
    options=LinearOptions(delta=True, l2_norm=True),
)
LINEAR_FEATURES: dict[str, dict[str, Any]] = {
    **{name: GROUPED_FEATURES[name] for name in ("bf16", "f16", "f32")},
    "Mamba-2": {"key_heads": 1, "value_dim": 64, "options": LinearOptions(delta=False)},
    **{f"D={dim}": {"key_dim": dim} for dim in (64, 128, 256)},
    **{f"V={dim}": {"value_dim": dim} for dim in (64, 80, 128, 256)},
    "3 drafts a row": {"tokens": 256},
    "prompts": {"tokens": 512},
    "odd widths": {"key_dim": 24, "value_dim": 40},
}
CONV = ConvProblem(dtype=BFLOAT16, tokens=64, rows=64, destinations=1, channels=8192, width=4)
CONV_FEATURES: dict[str, dict[str, Any]] = {
    **{name: GROUPED_FEATURES[name] for name in ("bf16", "f16", "f32")},
    "2 taps": {"width": 2},
    "3328 channels": {"channels": 3328},
    "3 drafts a row": {"tokens": 256, "destinations": 4},
    "prompts": {"tokens": 512},
    "odd widths": {"channels": 200},
}


def feature_tables() -> str:
    """A table of each operation, as Markdown."""
    return "\n\n".join(
        (
            _table("ragged_paged_attention", attention.IMPLEMENTATIONS, ATTENTION, ATTENTION_FEATURES),
            _table("kv_write", write.IMPLEMENTATIONS, WRITE, WRITE_FEATURES),
            _table("rotate_and_write", rotate.IMPLEMENTATIONS, ROTATE, ROTATE_FEATURES),
            _table("rotate_write_attend", rotate_attend.IMPLEMENTATIONS, ROTATE_ATTEND, ROTATE_ATTEND_FEATURES),
            _table("round_rows", rounding.ROWS, ROUND, ROUND_FEATURES),
            _table("grouped_matmul", grouped.IMPLEMENTATIONS, GROUPED, GROUPED_FEATURES),
            _table("matmul", matmul.IMPLEMENTATIONS, MATMUL, MATMUL_FEATURES),
            _table("gated_linear_attention", linear.IMPLEMENTATIONS, LINEAR, LINEAR_FEATURES),
            _table("causal_conv1d", conv.IMPLEMENTATIONS, CONV, CONV_FEATURES),
        )
    )


def _table(
    operation: str, table: Sequence[Implementation[Any, Any]], problem: Any, features: Mapping[str, Mapping[str, Any]]
) -> str:
    """A line for each feature: "yes", "no", or "by name" for what is supported and not picked unasked; how it was checked."""
    lines = [f"| {operation} | {' | '.join(f'`{entry.name}`' for entry in table)} |", "|---" * (len(table) + 1) + "|"]
    for feature, changes in features.items():
        cells = [_cell(entry, replace(problem, **changes)) for entry in table]
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    lines.append(f"| checked | {' | '.join(entry.checked for entry in table)} |")
    return "\n".join(lines)


def _cell(entry: Implementation[Any, Any], problem: Any) -> str:
    if entry.supports(problem) is not None:
        return "no"
    return "by name" if entry.interpreted or entry.suits(problem) is not None else "yes"
