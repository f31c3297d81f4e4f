"""Scales that a checkpoint has for KV caches: not used, since caches here have one for each token, and told where broken."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from jaxserve.weights.checkpoint import Checkpoint, whole

logger = logging.getLogger(__name__)

LISTED = 6
"""How many names are listed before they are only counted."""
_SUFFIXES = (".k_scale", ".v_scale", ".q_scale", ".kv_scale")


def warn_of_cache_scales(checkpoint: Checkpoint, unread: Iterable[str]) -> None:
    """Say which scales of caches, among tensors that nothing else reads, are no scales: NaN, infinite, 0 or below.

    The weights beside them may be sound: whoever calibrated the caches should know.
    """
    names = sorted(name for name in unread if name.endswith(_SUFFIXES))
    wrong = [name for name in names if not _is_scale(checkpoint.read(name, whole(checkpoint.shapes[name])))]
    if wrong:
        more = f" and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
        logger.warning(
            "%d of the checkpoint's %d scales of KV caches are NaN, infinite or not above 0: %s%s. None is used: a cache in 8 "
            "bits has a scale for each token",
            len(wrong),
            len(names),
            ", ".join(wrong[:LISTED]),
            more,
        )


def _is_scale(values: np.ndarray) -> bool:
    numbers = values.astype(np.float32)
    return bool(np.isfinite(numbers).all() and (numbers > 0).all())
