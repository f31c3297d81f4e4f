"""Reads the rotary embedding of config.json, in the layouts of transformers 4 (`rope_scaling`) and 5."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.fields import HfFields
from jaxserve.models.positions import RopeConfig, RopeKind

DEFAULT_THETA = 10000.0

# The keys each kind reads besides its name and theta. A key beyond them would be ignored, so it is refused instead.
KNOWN_KEYS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "default": frozenset(),
        "linear": frozenset({"factor"}),
        "dynamic": frozenset({"factor"}),
        "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
        "yarn": frozenset(
            {
                "factor",
                "original_max_position_embeddings",
                "attention_factor",
                "attn_factor",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
                "truncate",
            }
        ),
        "proportional": frozenset({"factor"}),
        "longrope": frozenset({"factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"}),
    }
)
COMMON_KEYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


def rope_from_hf(
    hf: Mapping[str, Any], max_position_embeddings: int, partly: int | None = None, proportional: int | None = None
) -> RopeConfig:
    """The rotary embedding that config.json describes.

    Transformers 4 writes `rope_theta` beside an optional `rope_scaling`; transformers 5 writes both into
    `rope_parameters`. Defaults are those of transformers 5.

    Args:
        hf: the parsed config.json.
        max_position_embeddings: the model's, which stands in for a missing `original_max_position_embeddings`.
        partly: D of a family that may rotate only a part of each head, as `partial_rotary_factor` says; None for the others.
        proportional: D of a family that may rotate a part of each head's pairs as if it were all; None for the others.

    Raises:
        UnsupportedModelError: an unknown kind, an unknown key, or a partial rotation.
        CheckpointError: a key that is missing or of the wrong type.
    """
    whole = HfFields(hf)
    table = whole.table("rope_scaling") or whole.table("rope_parameters")
    fields = HfFields(table, "config.json, rope parameters")
    kind: Any = table.get("rope_type") or table.get("type") or "default"
    known = KNOWN_KEYS.keys() - ({"proportional"} if proportional is None else set())
    if kind not in known:
        raise UnsupportedModelError(
            f"rope type {kind!r} in config.json is not supported; supported are {', '.join(sorted(known))}"
        )
    unknown = sorted(key for key in set(table) - KNOWN_KEYS[kind] - COMMON_KEYS if table[key] is not None)
    if unknown:
        raise UnsupportedModelError(f"rope parameters in config.json not supported for type {kind!r}: {unknown}")
    if kind == "proportional" and proportional is not None:
        return _proportional(fields, proportional)
    if partly is None and table.get("partial_rotary_factor") not in (None, 1.0):
        raise fields.unsupported("partial_rotary_factor", "every dimension of a head is rotated")
    rope = _scaled(hf, fields, kind, max_position_embeddings)
    share = 1.0 if partly is None else fields.number("partial_rotary_factor", HfFields(hf).number("partial_rotary_factor", 1.0))
    if partly is None or share == 1.0:
        return rope
    rotated = int(partly * share)
    if rotated % 2 or rotated > partly:
        raise CheckpointError(f"config.json: partial_rotary_factor={share} rotates {rotated} of {partly} dimensions, not pairs")
    return replace(rope, rotated_dims=rotated)


def longest_context(max_position_embeddings: int, ropes: Collection[RopeConfig | None]) -> int:
    """Tokens of the longest sequence, which scaled frequencies are for where config.json has that of pretraining.

    So model cards add YaRN to Qwen's models, and long Llamas have a linear factor. A model whose layers differ says its own.
    """
    kinds = set(ropes)
    rope = kinds.pop() if len(kinds) == 1 else None
    if rope is None or rope.kind not in ("yarn", "linear"):
        return max_position_embeddings
    trained = rope.original_max_position_embeddings if rope.kind == "yarn" else max_position_embeddings
    return max(max_position_embeddings, int(trained * rope.factor))


def ropes_by_kind(
    fields: HfFields,
    max_position_embeddings: int,
    thetas: tuple[float, float],
    proportional: tuple[int | None, int | None] = (None, None),
) -> tuple[RopeConfig, RopeConfig] | None:
    """The rotary embeddings of layers with a window and without, where `rope_parameters` has a table for each.

    Args:
        fields: of config.json.
        max_position_embeddings: the model's.
        thetas: the family's defaults for the two.
        proportional: of the two, as in `rope_from_hf`.

    Returns None for a file that does not tell them apart, as those of transformers 4. Raises as `rope_from_hf`.
    """
    kinds = HfFields(fields.table("rope_parameters"), "config.json, rope_parameters")
    names = ("sliding_attention", "full_attention")
    if not any(map(kinds.has, names)):
        return None
    if others := sorted(kinds.hf.keys() - set(names)):
        raise kinds.unsupported(others[0], f"supported are {' and '.join(names)}")
    tables = ({"rope_theta": theta, **kinds.table(name)} for name, theta in zip(names, thetas, strict=True))
    local, whole = (
        rope_from_hf({"rope_parameters": table}, max_position_embeddings, proportional=head_dim)
        for table, head_dim in zip(tables, proportional, strict=True)
    )
    return local, whole


def _proportional(fields: HfFields, head_dim: int) -> RopeConfig:
    share = fields.number("partial_rotary_factor", 1.0)
    if share > 1.0:
        raise fields.unsupported("partial_rotary_factor", "at most every dimension of a head is rotated")
    rotated = 2 * int(share * head_dim // 2)
    return RopeConfig(
        kind="proportional",
        theta=fields.number("rope_theta", DEFAULT_THETA),
        factor=fields.number("factor", 1.0),
        rotated_dims=None if rotated == head_dim else rotated,
    )


def _scaled(hf: Mapping[str, Any], fields: HfFields, kind: RopeKind, max_position_embeddings: int) -> RopeConfig:
    theta = fields.number("rope_theta", HfFields(hf).number("rope_theta", DEFAULT_THETA))
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind in ("linear", "dynamic"):
        return RopeConfig(kind=kind, theta=theta, factor=fields.number("factor"))
    original = fields.integer("original_max_position_embeddings", max_position_embeddings)
    if HfFields(hf).has("original_max_position_embeddings"):
        original = HfFields(hf).integer("original_max_position_embeddings")
    if kind == "llama3":
        return RopeConfig(
            kind="llama3",
            theta=theta,
            factor=fields.number("factor"),
            original_max_position_embeddings=original,
            low_freq_factor=fields.number("low_freq_factor"),
            high_freq_factor=fields.number("high_freq_factor"),
        )
    factor = fields.number("factor", max_position_embeddings / original)
    if kind == "longrope":
        return RopeConfig(
            kind="longrope",
            theta=theta,
            factor=factor,
            original_max_position_embeddings=original,
            attention_factor=fields.number("attention_factor", _longrope_attention_factor(factor, original)),
            short_factors=fields.numbers("short_factor"),
            long_factors=fields.numbers("long_factor"),
            extended=max_position_embeddings > original,
        )
    return RopeConfig(
        kind="yarn",
        theta=theta,
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        truncate=fields.flag("truncate", True),
        attention_factor=_yarn_attention_factor(fields, factor),
    )


def _longrope_attention_factor(factor: float, original: int) -> float:
    """LongRoPE (Ding et al. 2024): sqrt(1 + ln(s) / ln(original length))."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


def _yarn_attention_factor(fields: HfFields, factor: float) -> float:
    """Temperature of YaRN as a factor on cosine and sine: sqrt(1/t) = 0.1 ln(s) + 1, or a ratio of two such terms.

    `attn_factor` is multiplied by, as by vLLM and SGLang, for which DeepSeek-R1-0528-Qwen3-8B has it.
    """
    if fields.has("attention_factor"):
        return fields.number("attention_factor")
    if fields.has("attn_factor"):
        return fields.number("attn_factor") * (1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0)

    def term(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if fields.hf.get("mscale") and fields.hf.get("mscale_all_dim"):
        return term(fields.number("mscale")) / term(fields.number("mscale_all_dim"))
    return term(1.0)
