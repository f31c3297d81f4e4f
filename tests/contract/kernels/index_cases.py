"""Batches over a cache of one vector a token, of which a part is an index key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from .batches import Batch, Heads, make_batch

VECTOR = 40  # numbers of a cached vector, of which an index key is the last DIM
DIM = 16
LAYER = 1


class IndexCase(NamedTuple):
    """Rows (queries, keys in all) of a step, and what its batch is else."""

    name: str
    rows: list[tuple[int, int]]
    top_k: int = 8
    options: Mapping[str, Any] = MappingProxyType({})


CASES = (
    IndexCase("prompt", [(37, 37)]),
    IndexCase("one position", [(9, 9)], 1),
    IndexCase("chunk behind a context", [(21, 70)]),
    IndexCase("decodes", [(1, 1), (1, 8), (1, 9), (1, 50), (1, 33)], options={"tokens": 5}),
    IndexCase("padded decodes", [(1, 17), (1, 64)], options={"tokens": 6, "padded_rows": 6}),
    IndexCase("mixed", [(1, 40), (19, 30), (3, 3), (1, 12), (5, 61)], options={"padded_rows": 7}),
    IndexCase("no choice", [(6, 20), (1, 31)], 64),
    IndexCase("all that pages hold", [(6, 20), (1, 31)], 256, {"pages_per_row": 3}),
    IndexCase("pages of four", [(7, 45), (1, 23)], 5, {"page_size": 4}),
    IndexCase("bfloat16", [(7, 45), (1, 23)], options={"dtype": "bfloat16"}),
    IndexCase("float8", [(7, 45), (1, 23)], options={"kv_dtype": "float8_e4m3fn"}),
    IndexCase("int8", [(7, 45), (1, 23)], options={"kv_dtype": "int8", "scale_dtype": "bfloat16"}),
    IndexCase("a long context", [(2, 4500), (1, 2100)], 64, {"page_size": 64}),
)


def batch_of(case: IndexCase, heads: int, dim: int) -> Batch:
    """Its queries have so many heads of so many numbers; the cache has vectors of VECTOR."""
    batch = make_batch(case.rows, heads=Heads(1, 1, VECTOR), values=False, layer=LAYER, **case.options)
    rng, real = np.random.default_rng(len(case.name)), int(batch.query_start[-1])
    q = rng.standard_normal((batch.q.shape[0], heads, dim))
    q[real:] = np.nan
    return replace(batch, q=q.astype(batch.q.dtype))
