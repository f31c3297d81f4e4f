"""Weight rules of Mamba-2's layers, as transformers stores them: one matrix makes gates, x, B, C and steps."""

from __future__ import annotations

from jaxserve.models.config import DecoderConfig
from jaxserve.models.recurrent import Mamba2
from jaxserve.models.rules import Packing, Path, Source, WeightRule


def mamba_rules(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    """The LayerRules of `prefix`.mamba."""
    mamba, embed, stored, here = config.recurrent, config.hidden_size, f"{prefix}.mamba", (*path, "attention")
    assert isinstance(mamba, Mamba2)
    heads, values, groups = mamba.heads, mamba.values, mamba.key_heads
    keys = groups * mamba.key_dim
    mixed = ((values, heads), (keys, groups), (keys, groups))
    rules = [
        WeightRule(
            (*here, "inputs"), _parts(f"{stored}.in_proj.weight", ((values, heads), *mixed), embed, heads), Packing.COLUMNS
        ),
        WeightRule((*here, "gates"), (_steps(mamba, f"{stored}.in_proj.weight", embed),), Packing.COLUMNS),
        WeightRule((*here, "conv"), _parts(f"{stored}.conv1d.weight", mixed, mamba.width, depthwise=True), Packing.COLUMNS),
        WeightRule((*here, "norm"), (Source(f"{stored}.norm.weight", (values,), heads),), Packing.COLUMNS),
        WeightRule((*here, "out"), (Source(f"{stored}.out_proj.weight", (embed, values)),), Packing.ROWS),
    ]
    for name, tensor in {"decay": "A_log", "step_bias": "dt_bias", "skip": "D"}.items():
        rules.append(WeightRule((*here, name), (Source(f"{stored}.{tensor}", (heads,), heads),), Packing.COLUMNS))
    if mamba.conv_bias:
        rules.append(WeightRule((*here, "conv_bias"), _parts(f"{stored}.conv1d.bias", mixed, None), Packing.COLUMNS))
    return rules


def _parts(
    name: str, parts: tuple[tuple[int, int], ...], inputs: int | None, more: int = 0, *, depthwise: bool = False
) -> tuple[Source, ...]:
    """Sizes and heads of what a tensor has one after the other, with so many rows more behind."""
    total, first, sources = sum(size for size, _ in parts) + more, 0, []
    for size, heads in parts:
        shape = (size,) if inputs is None else (size, inputs)
        sources.append(Source(name, shape, heads, first, total, depthwise=depthwise))
        first += size
    return tuple(sources)


def _steps(mamba: Mamba2, name: str, embed: int) -> Source:
    """The last rows."""
    before = mamba.values + mamba.channels
    return Source(name, (mamba.heads, embed), mamba.heads, before, before + mamba.heads)
