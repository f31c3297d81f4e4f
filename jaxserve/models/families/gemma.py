"""What the Gemma families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig, Scales
from jaxserve.models.families.common import common_config
from jaxserve.models.fields import HfFields

_ACTIVATION = "gelu_pytorch_tanh"  # hidden_act beside it, in old files, counts for nothing
_READS = frozenset(
    {"hidden_act", "hidden_activation", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"}
)


def gemma_config(hf: Mapping[str, Any], *, reads: frozenset[str] = frozenset(), **family: Any) -> DecoderConfig:
    """A DecoderConfig of a Gemma: embeddings times sqrt(E), norms around every block whose stored weights lack 1, GeGLU.

    Args:
        hf: the parsed config.json.
        reads: fields that the family has read itself.
        family: what `common_config` is told besides.

    Raises UnsupportedModelError, CheckpointError: as `common_config`, and for another activation.
    """
    fields = HfFields(hf)
    if hf.get("hidden_activation", _ACTIVATION) != _ACTIVATION:
        raise fields.unsupported("hidden_activation", f"supported is {_ACTIVATION}")
    bias = fields.flag("attention_bias", False)
    return common_config(
        hf,
        qkv_bias=bias,
        output_bias=bias,
        num_kv_heads=None if "num_key_value_heads" in hf else 4,
        head_dim=256,
        tie_embeddings=True,
        reads=_READS | reads,
        norms="around",
        norm_offset=1.0,
        activation="gelu_tanh",
        scales=Scales(
            embedding=fields.integer("hidden_size") ** 0.5,
            attention=fields.number("query_pre_attn_scalar", 256) ** -0.5,
            attention_cap=fields.number("attn_logit_softcapping") if fields.has("attn_logit_softcapping") else None,
            logits_cap=fields.number("final_logit_softcapping") if fields.has("final_logit_softcapping") else None,
        ),
        **family,
    )
