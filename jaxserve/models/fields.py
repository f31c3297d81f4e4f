"""Typed reading of config.json: every complaint names the field and the value."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.errors import CheckpointError, UnsupportedModelError

# Fields that change what a model computes, with the values under which they change nothing. A checkpoint that sets one
# otherwise was made for code that jaxserve does not have, so it is refused rather than served wrongly.
NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "hidden_act": ("silu", "swish"),
        "hidden_activation": (None, "silu", "swish"),
        "compression_config": (None,),
        "partial_rotary_factor": (None, 1.0),
        "attn_logit_softcapping": (None,),
        "final_logit_softcapping": (None,),
        "query_pre_attn_scalar": (None,),
        "attention_multiplier": (None, 1.0),
        "embedding_multiplier": (None, 1.0),
        "residual_multiplier": (None, 1.0),
        "logits_scaling": (None, 1.0),
        "logit_scale": (None, 1.0),
        "clip_qkv": (None,),
        "attn_temperature_tuning": (None, False),
        "attention_chunk_size": (None,),
        "no_rope_layers": (None, []),
        "is_causal": (None, True),
        "use_qk_norm": (None, False),
        "qk_layernorm": (None, False),
        "n_routed_experts": (None, 0),
        "num_local_experts": (None, 0),
        "num_experts": (None, 0),
        "add_cross_attention": (None, False),
        "cross_attention_hidden_size": (None,),
        "per_layer_config": (None,),
        "use_mrope": (None, False),
        "use_bidirectional_attention": (None, False),
        "rope_interleaved": (None, False),
    }
)

# Numbers of things that are made one by one. No checkpoint has more of them; all other numbers are only multiplied.
LARGEST: Mapping[str, int] = MappingProxyType(
    {"num_hidden_layers": 1024, "num_experts": 4096, "num_local_experts": 4096, "n_routed_experts": 4096}
)
LARGEST_TOKEN_ID = 2**31 - 1  # they are int32


def with_defaults(hf: Mapping[str, Any], **defaults: Any) -> dict[str, Any]:
    """config.json with a family's defaults where fields are missing or null."""
    return {**hf, **{name: value for name, value in defaults.items() if hf.get(name) is None}}


class HfFields:
    """Typed access to the fields of one config.json.

    A field that is null counts as absent, as in transformers.
    """

    def __init__(self, hf: Mapping[str, Any], where: str = "config.json") -> None:
        self.hf = hf
        self.where = where

    def has(self, name: str) -> bool:
        """Whether the field is present and not null."""
        return self.hf.get(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive integer, at most what LARGEST says; required if `default` is None."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(name, "a positive integer", value)
        return self._bounded(name, value)

    def count(self, name: str, default: int) -> int:
        """An integer that is not negative, at most what LARGEST says."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(name, "an integer, 0 or more", value)
        return self._bounded(name, value)

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number; required if `default` is None."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self._wrong(name, "a positive number", value)
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Zero, one or several token ids: null, an integer or a list."""
        value = self.hf.get(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) or i > LARGEST_TOKEN_ID for i in ids):
            raise self._wrong(name, f"a token id, at most {LARGEST_TOKEN_ID}, or a list of them", value)
        return tuple(ids)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of positive numbers; required."""
        value = self._value(name, None)
        if not isinstance(value, list) or not all(isinstance(item, int | float) and item > 0 for item in value):
            raise self._wrong(name, "a list of positive numbers", value)
        return tuple(map(float, value))

    def table(self, name: str) -> dict[str, Any]:
        """An object of fields; an empty one if absent."""
        value = self.hf.get(name) or {}
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return value

    def counts(self, name: str) -> tuple[int, ...]:
        """A list of integers, none of them negative; empty if absent."""
        value = self._value(name, [])
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self._wrong(name, "a list of integers, 0 or more", value)
        return tuple(value)

    def strings(self, name: str) -> tuple[str, ...] | None:
        """A list of strings, or None if absent."""
        value = self.hf.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of strings", value)
        return tuple(value)

    def refuse_unimplemented(self, reads: frozenset[str]) -> None:
        """Raise UnsupportedModelError naming each field, but those that the family reads, whose value is not implemented."""
        wrong = [
            f"{name}={self.hf[name]!r:.80}"
            for name, neutral in NEUTRAL_VALUES.items()
            if name in self.hf and name not in reads and self.hf[name] not in neutral
        ]
        if wrong:
            raise UnsupportedModelError(f"{self.where} has values that jaxserve does not implement: {', '.join(wrong)}")

    def unsupported(self, name: str, supported: str) -> UnsupportedModelError:
        """The error for a field whose value is understood but not implemented."""
        return UnsupportedModelError(f"{self.where}: {name}={self.hf.get(name)!r} is not supported; {supported}")

    def _value(self, name: str, default: object) -> object:
        value = self.hf.get(name)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(f"{self.where} lacks {name}")
        return value

    def _bounded(self, name: str, value: int) -> int:
        if value > (most := LARGEST.get(name, value)):
            raise self._wrong(name, f"at most {most}", value)
        return value

    def _wrong(self, name: str, expected: str, value: object) -> CheckpointError:
        return CheckpointError(f"{self.where}: {name} must be {expected}, got {value!r:.80}")
