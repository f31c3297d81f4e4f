"""Compares what a checkpoint has with what the model needs, in both directions, before anything is read."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping

from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig
from jaxserve.models.draft_heads import GUESSABLE
from jaxserve.models.encoder.rules import POOLER
from jaxserve.models.mtp import BESIDE
from jaxserve.models.rules import WeightRule
from jaxserve.weights.checkpoint import Tensors, whole

logger = logging.getLogger(__name__)

LISTED = 12
"""How many names a complaint lists before it only counts."""
_KEYS = re.compile(r"model\.layers\.(\d{1,4})\.self_attn\.(?:k_proj|v_proj|k_norm)\.")
FLOATS = ("float32", "float16", "bfloat16")


def check_tensors(
    config: DecoderConfig, rules: Iterable[WeightRule], shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]
) -> None:
    """Raise unless the checkpoint has exactly the rules' tensors in their shapes, and in floating point.

    Ignored beyond them: inverse frequencies of the rotary embedding, which old checkpoints store and the config
    determines, a copy of the embedding table as `lm_head.weight` where the two are tied, the config's `draft_layers`, which
    tokens a draft head guesses, all that is not of a module for multi-token prediction where that is what is read, of an
    encoder without a head its pooler, and what would make keys and values of layers that attend to others'.

    Args:
        config: the decoder.
        rules: its own.
        shapes: of the tensors that the checkpoint has once it is dequantized, by name.
        dtypes: their names, likewise.

    Raises:
        CheckpointError: one error that lists the missing, the unexpected and the mis-shaped tensors, and those of a dtype that
            is no weight's (of a quantized checkpoint).
    """
    expected = {source.name: source.stored_shape for rule in rules for source in rule.sources}
    missing = [f"{name} {list(shape)}" for name, shape in expected.items() if name not in shapes]
    unexpected = [f"{name} {list(shapes[name])}" for name in sorted(shapes) if name not in expected]
    unexpected = [line for line in unexpected if not _ignorable(config, line.split()[0])]
    drafts = sum(_drafts(config, name) for name in shapes)
    if drafts:
        logger.info("no part of the model, but of layers that guess further tokens (method 'mtp'): %d tensors", drafts)
    here = [name for name in expected if name in shapes]
    wrong = [f"{n} is {list(shapes[n])}, needs {list(expected[n])}" for n in here if shapes[n] != expected[n]]
    odd = [f"{name} ({dtypes[name]})" for name in here if dtypes[name] not in FLOATS]
    problems = [
        _listed(f"{len(found)} {kind}", found)
        for kind, found in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of the wrong shape", wrong),
            (f"not {', '.join(FLOATS)}", odd),
        )
        if found
    ]
    if problems:
        raise CheckpointError(f"the checkpoint does not fit {config.architecture}: {'; '.join(problems)}", param="model")


def without_zero_biases(
    tensors: Tensors, rules: Iterable[WeightRule], shapes: Mapping[str, tuple[int, ...]]
) -> Mapping[str, tuple[int, ...]]:
    """The shapes, but for biases that no rule has and that are 0: tools for GPTQ write one beside every matrix."""
    expected = {source.name for rule in rules for source in rule.sources}
    beyond = (name for name in shapes.keys() - expected if name.endswith(".bias") and name[:-4] + "weight" in expected)
    zero = {name for name in beyond if not tensors.read(name, whole(shapes[name])).any()}
    return {name: shape for name, shape in shapes.items() if name not in zero}


def _ignorable(config: DecoderConfig, name: str) -> bool:
    frequencies, head = name.endswith("rotary_emb.inv_freq"), config.tie_embeddings and name == "lm_head.weight"
    guessable = config.fed is not None and name in GUESSABLE
    if frequencies or head or guessable or _unread_keys(config, name):
        return True
    return _drafts(config, name) or _beside_module(config, name) or _of_encoder(config, name)


def _unread_keys(config: DecoderConfig, name: str) -> bool:
    """Whether a tensor makes keys or values of a layer that attends to another's: published Gemma 4 files have them."""
    found = _KEYS.match(name)
    return found is not None and int(found[1]) < config.num_layers and config.kv_source(int(found[1])) != int(found[1])


def _of_encoder(config: DecoderConfig, name: str) -> bool:
    """Numbers of positions, which old checkpoints store, and what BERT's next sentence was told by."""
    return config.encoder is not None and name.endswith(("embeddings.position_ids", *POOLER))


def _beside_module(config: DecoderConfig, name: str) -> bool:
    """Whether a tensor is of the target, in whose checkpoint a module for multi-token prediction is."""
    module = None if config.fed is None else config.fed.module
    return module is not None and not name.startswith(module.begin)


def _drafts(config: DecoderConfig, name: str) -> bool:
    """Whether a tensor belongs to a layer behind the last one, or to a module beside the layers."""
    if name.startswith(BESIDE):
        return True
    behind = range(config.num_layers, config.num_layers + config.draft_layers)
    return any(name.startswith(f"model.layers.{layer}.") for layer in behind)


def _listed(title: str, lines: list[str]) -> str:
    more = f" and {len(lines) - LISTED} more" if len(lines) > LISTED else ""
    return f"{title}: {', '.join(lines[:LISTED])}{more}"
