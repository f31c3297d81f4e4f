"""Where the tensors of encoders go."""

from __future__ import annotations

from collections.abc import Sequence

from jaxserve.models.config import DecoderConfig
from jaxserve.models.rules import Output, Packing, Path, Source, WeightRule, column_biases, columns, whole

POOLER = ("pooler.dense.weight", "pooler.dense.bias")


def bert_rules(config: DecoderConfig, prefix: str, dense: str, out: str) -> list[WeightRule]:
    """Rules of what BERT named so, below `prefix`; `dense` and `out` are the layers of a head that classifies."""
    encoder, embed = config.encoder, config.hidden_size
    assert encoder is not None, "an encoder"
    embeddings = f"{prefix}embeddings"
    norms = [f"{embeddings}.LayerNorm"]
    rules = [
        whole(("embedding", "table"), f"{embeddings}.word_embeddings.weight", (config.vocab_size, embed)),
        whole(("tables", "positions"), f"{embeddings}.position_embeddings.weight", (encoder.positions, embed)),
        whole(("tables", "token_types"), f"{embeddings}.token_type_embeddings.weight", (encoder.token_types, embed)),
    ]
    for layer in range(config.num_layers):
        path, here = ("layers", str(layer)), f"{prefix}encoder.layer.{layer}"
        norms += [f"{here}.attention.output.LayerNorm", f"{here}.output.LayerNorm"]
        heads, width = config.num_heads, config.num_heads * config.head_dim
        outputs = [Output(f"{here}.attention.self.{name}", width, heads) for name in ("query", "key", "value")]
        up, down, output = (f"{here}.{name}.dense" for name in ("intermediate", "output", "attention.output"))
        rules += [
            columns((*path, "attention", "qkv"), outputs, embed),
            column_biases((*path, "attention", "qkv_bias"), outputs),
            WeightRule((*path, "attention", "out"), (Source(f"{output}.weight", (embed, width)),), Packing.ROWS),
            whole((*path, "attention", "out_bias"), f"{output}.bias", (embed,)),
            columns((*path, "mlp", "up"), [Output(up, config.ffn_size)], embed),
            column_biases((*path, "mlp", "up_bias"), [Output(up, config.ffn_size)]),
            WeightRule((*path, "mlp", "down"), (Source(f"{down}.weight", (embed, config.ffn_size)),), Packing.ROWS),
            whole((*path, "mlp", "down_bias"), f"{down}.bias", (embed,)),
        ]
    return [*rules, *norm_rules(config, ("norms",), norms), *head_rules(config, dense, out)]


def norm_rules(config: DecoderConfig, path: Path, names: Sequence[str]) -> list[WeightRule]:
    """Of norms over E that are one parameter, in their order."""
    assert config.encoder is not None, "an encoder"
    kinds = {"scale": "weight"} | ({"bias": "bias"} if config.encoder.norm_bias else {})
    return [
        WeightRule(
            (*path, kind), tuple(Source(f"{name}.{stored}", (config.hidden_size,)) for name in names), Packing.WHOLE, len(names)
        )
        for kind, stored in kinds.items()
    ]


def head_rules(config: DecoderConfig, dense: str, out: str, norm: str = "") -> list[WeightRule]:
    """Of a head that classifies; nothing without one."""
    encoder, size, labels = config.encoder, config.hidden_size, config.labels
    assert encoder is not None, "an encoder"
    if not labels:
        return []
    rules = [
        WeightRule(("score", "dense"), (Source(f"{dense}.weight", (size, size)),), Packing.TRANSPOSED),
        WeightRule(("score", "out"), (Source(f"{out}.weight", (labels, size)),), Packing.TRANSPOSED),
        whole(("score", "out_bias"), f"{out}.bias", (labels,)),
    ]
    if encoder.head_bias:
        rules.append(whole(("score", "dense_bias"), f"{dense}.bias", (size,)))
    return rules + (norm_rules(config, ("score", "norm"), [norm]) if norm else [])
