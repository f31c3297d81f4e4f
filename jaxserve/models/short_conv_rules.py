"""Weight rules of short convolutions, as LFM2 stores them: one matrix makes both gates and what is between them."""

from __future__ import annotations

from jaxserve.models.config import DecoderConfig
from jaxserve.models.recurrent import ShortConv
from jaxserve.models.rules import Packing, Path, Source, WeightRule


def short_conv_rules(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    """The LayerRules of `prefix`.conv."""
    conv, embed, stored, here = config.recurrent, config.hidden_size, f"{prefix}.conv", (*path, "attention")
    assert isinstance(conv, ShortConv)
    size = conv.channels
    inputs = tuple(Source(f"{stored}.in_proj.weight", (size, embed), None, part * size, 3 * size) for part in range(3))
    taps = Source(f"{stored}.conv.weight", (size, conv.width), depthwise=True)
    return [
        WeightRule((*here, "inputs"), inputs, Packing.COLUMNS),
        WeightRule((*here, "conv"), (taps,), Packing.COLUMNS),
        WeightRule((*here, "out"), (Source(f"{stored}.out_proj.weight", (embed, size)),), Packing.ROWS),
    ]
