"""Weight rules of latent attention, under the names that DeepSeek gave its tensors."""

from __future__ import annotations

from jaxserve.models.config import DecoderConfig
from jaxserve.models.rules import Output, Packing, Path, Source, WeightRule, columns, whole


def latent_rules(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    """The LayerRules of `decoder_rules` for a layer of `LatentAttention`. The config must have a `latent`."""
    latent, embed, heads = config.latent, config.hidden_size, config.num_heads
    assert latent is not None
    here, block, rank = (*path, "attention"), f"{prefix}.self_attn", latent.query_rank
    down = [Output(f"{block}.kv_a_proj_with_mqa", latent.kv_rank + latent.rope_dim)]
    norms = [whole((*here, "kv_norm", "scale"), f"{block}.kv_a_layernorm.weight", (latent.kv_rank,))]
    if rank is not None:
        down.insert(0, Output(f"{block}.q_a_proj", rank))
        norms.append(whole((*here, "query_norm", "scale"), f"{block}.q_a_layernorm.weight", (rank,)))
    query = Output(f"{block}.{'q_proj' if rank is None else 'q_b_proj'}", heads * (latent.nope_dim + latent.rope_dim), heads)
    return [
        columns((*here, "down"), down, embed),
        columns((*here, "query"), [query], rank or embed),
        _by_head((*here, "key_up"), config, f"{block}.kv_b_proj.weight", 0, latent.nope_dim),
        _by_head((*here, "value_up"), config, f"{block}.kv_b_proj.weight", latent.nope_dim, latent.value_dim),
        WeightRule((*here, "out"), (Source(f"{block}.o_proj.weight", (embed, heads * latent.value_dim)),), Packing.ROWS),
        *norms,
    ]


def _by_head(path: Path, config: DecoderConfig, name: str, first: int, rows: int) -> WeightRule:
    """[H, rows, kv_rank] of a matrix that has for each head its rows of keys, then those of values."""
    latent = config.latent
    assert latent is not None
    both = latent.nope_dim + latent.value_dim
    sources = [
        Source(name, (rows, latent.kv_rank), first_row=head * both + first, rows=config.num_heads * both)
        for head in range(config.num_heads)
    ]
    return WeightRule(path, tuple(sources), Packing.WHOLE, config.num_heads)
