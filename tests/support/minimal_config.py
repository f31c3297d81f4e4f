"""A small config.json of any family."""

from typing import Any

from jaxserve.models.positions import RopeConfig
from jaxserve.models.registry import FAMILIES

TYPES = {name: family.model_type for name, family in FAMILIES.items()}


def hf(architecture: str = "LlamaForCausalLM", **changes: Any) -> dict[str, Any]:
    """Three layers of 32, with these changes; a field that is "absent" is left out."""
    fields: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": TYPES.get(architecture, "other"),
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "eos_token_id": [2, 3],
        **changes,
    }
    return {name: value for name, value in fields.items() if value != "absent"}


def present(rope: RopeConfig | None) -> RopeConfig:
    """Of a layer that rotates."""
    assert rope is not None
    return rope
