"""Whether logits are made by the embedding table or by a matrix of their own: a checkpoint's tensors decide, not its flag."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from jaxserve.models.config import DecoderConfig
from jaxserve.models.registry import weight_rules
from jaxserve.weights.checkpoint import Bounds, Checkpoint, piece
from jaxserve.weights.formats import LoadFormat, has_weights, open_checkpoint

logger = logging.getLogger(__name__)

HEAD = "lm_head.weight"


def with_stored_head(config: DecoderConfig, directory: Path, load_format: LoadFormat = "auto") -> DecoderConfig:
    """The config as the checkpoint's tensors have it: untied if it says tied beside a head that is another matrix.

    As transformers 5 and vLLM read such files. Raises CheckpointError for what cannot be read.
    """
    if not (config.tie_embeddings and config.has_logits) or load_format == "dummy" or not has_weights(directory):
        return config
    (table,) = (rule.sources[0].name for rule in weight_rules(config) if rule.path == ("embedding", "table"))
    with open_checkpoint(directory, load_format) as stored:
        if HEAD not in stored.shapes or table not in stored.shapes or _equal(stored, HEAD, table):
            return config
    logger.warning("%s: config.json says tie_word_embeddings, but %s is not %s: it makes the logits", directory, HEAD, table)
    return replace(config, tie_embeddings=False)


def _equal(stored: Checkpoint, one: str, other: str) -> bool:
    if stored.shapes[one] != stored.shapes[other] or stored.dtypes[one] != stored.dtypes[other]:
        return False
    return all(stored.read(one, rows).tobytes() == stored.read(other, rows).tobytes() for rows in _pieces(stored.shapes[one]))


def _pieces(shape: tuple[int, ...]) -> Iterator[Bounds]:
    count, *rest = shape
    step = max(piece(shape)[0], 1)
    for start in range(0, count, step):
        yield ((start, min(start + step, count)), *((0, size) for size in rest))
