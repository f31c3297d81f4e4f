"""expanded_attention is attention over latents: what the reference makes of absorbed queries, whatever kernel reads its pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import native
from pallas_kernels.expanded_attention import expanded_attention, workspace
from pallas_kernels.ragged_paged_attention import AttentionOptions, reference

from .batches import Batch, Heads, make_batch
from .in_turn import in_turn
from .needs import MOSAIC

HEADS, NOPE, SHARED, VALUE, LATENT, BEHIND = 4, 24, 8, 16, 40, 8
LAYER = 1
OF_A_CACHE: Mapping[str, Any] = MappingProxyType({"layer": LAYER, "options": AttentionOptions(0.3, value_dim=LATENT)})
TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2}


class Case(NamedTuple):
    """Rows (queries, keys in all), heads at once, and what the batch and the options are else."""

    name: str
    rows: list[tuple[int, int]]
    at_once: int = 2
    batch: Mapping[str, Any] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})


CASES = (
    Case("a prompt", [(37, 37)]),
    Case("one head after the other", [(37, 37)], 1),
    Case("all heads", [(21, 70)], 4),
    Case("chunks behind contexts", [(21, 70), (9, 41)]),
    Case("rows without tokens", [(0, 0), (19, 30), (0, 0), (0, 0), (23, 23), (0, 0)], batch={"padded_rows": 8}),
    Case("no tokens at all", [(0, 0), (0, 0)], batch={"tokens": 5}),
    Case("one token", [(1, 40), (3, 3)]),
    Case("a window and a cap", [(21, 70), (9, 9)], options={"window": 12, "soft_cap": 3.0}),
    Case("pages of four", [(7, 45), (13, 23)], batch={"page_size": 4}),
    Case("bfloat16", [(7, 45), (13, 23)], batch={"dtype": "bfloat16"}),
    Case("float8", [(7, 45), (13, 23)], batch={"kv_dtype": "float8_e4m3fn"}),
    Case("int8", [(7, 45), (13, 23)], batch={"kv_dtype": "int8", "scale_dtype": "bfloat16"}),
    Case("several blocks", [(40, 2500), (30, 1300)], batch={"page_size": 64}),
)


def batch_of(case: Case) -> tuple[Batch, np.ndarray, np.ndarray]:
    """A batch, and the projections of its heads."""
    vector = LATENT + SHARED + BEHIND
    batch = make_batch(case.rows, heads=Heads(1, 1, vector), values=False, layer=LAYER, **case.batch)
    rng, real = np.random.default_rng(len(case.name)), int(batch.query_start[-1])
    q = rng.standard_normal((batch.q.shape[0], HEADS, NOPE + SHARED))
    q[real:] = np.nan
    up = (rng.standard_normal((HEADS, rows, LATENT)) / LATENT**0.5 for rows in (NOPE, VALUE))
    key_up, value_up = (matrix.astype(batch.q.dtype) for matrix in up)
    return replace(batch, q=q.astype(batch.q.dtype)), key_up, value_up


def wanted(batch: Batch, key_up: np.ndarray, value_up: np.ndarray, options: AttentionOptions) -> np.ndarray:
    """By absorbed queries, in float64."""
    q, pages, *rows = batch.arrays()
    q, key_up, value_up = (array.astype(np.float64) for array in (q, key_up, value_up))
    absorbed = np.concatenate([np.einsum("thn,hnc->thc", q[..., :NOPE], key_up), q[..., NOPE:]], axis=2)
    pages = pages[..., : LATENT + SHARED]
    attended = reference.ragged_paged_attention(absorbed, pages, *rows, layer=LAYER, options=options, kv_scales=batch.kv_scales)
    values: np.ndarray = np.einsum("hvc,thc->thv", value_up, attended)
    return values


def attended(case: Case, kernel: str) -> tuple[np.ndarray, np.ndarray]:
    """What is computed, and what is wanted; the workspace has room for what its rows need, and no more."""
    batch, key_up, value_up = batch_of(case)
    options = AttentionOptions(0.3, value_dim=LATENT, **case.options)
    size = batch.kv_pages.shape[4]
    num_pages = max(1, sum(-(-length // size) for _, length in case.rows))
    call = partial(
        expanded_attention,
        layer=LAYER,
        options=options,
        num_pages=num_pages,
        heads_at_once=case.at_once,
        implementation=kernel,
    )
    q, *rest = batch.arrays()
    got = np.asarray(jax.jit(call)(q, key_up, value_up, *rest, kv_scales=batch.kv_scales))
    assert got.dtype == q.dtype
    return got.astype(np.float64), wanted(batch, key_up, value_up, options)


# What is expanded does not depend on the kernel that reads it: each case's kernel is another one than the next's.
@pytest.mark.parametrize(("kernel", "case"), in_turn(CASES, ("cpu_native", "xla"), everywhere=("a window and a cap",)))
def test_case(kernel: str, case: Case) -> None:
    if kernel == "cpu_native" and native.missing() is not None:
        pytest.skip(f"NOT CHECKED: native kernels: {native.missing()}")
    got, want = attended(case, kernel)
    tolerance = TOLERANCE[case.batch.get("dtype", "float32")]
    np.testing.assert_allclose(got, want, atol=tolerance, rtol=tolerance)


@MOSAIC
def test_the_kernels_of_hopper_gpus_read_the_workspace() -> None:
    case = Case("mosaic", [(9, 41), (0, 0), (20, 70)], 4, batch={"dtype": "bfloat16"})
    got, want = attended(case, "mosaic_gpu_interpreted")
    np.testing.assert_allclose(got, want, atol=3e-2, rtol=3e-2)


def test_blocks_cover_every_page_once() -> None:
    assert workspace.block_pages(3, 16) == 3
    assert workspace.block_pages(300, 16) == 64
    assert workspace.workspace(300, 1, 16, 192, 128, np.dtype("float32")).shape == (1, 321, 2, 1, 16, 192)
    assert workspace.workspace(3, 2, 16, 20, 24, np.dtype("float32")).shape == (1, 4, 2, 2, 16, 32)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"num_pages": 0}, "num_pages"),
        ({"heads_at_once": 3}, "heads_at_once"),
        ({"options": AttentionOptions(0.3)}, "value_dim"),
        ({"options": AttentionOptions(0.3, value_dim=LATENT + 1)}, "key_up"),
        ({"layer": 2}, "layer"),
        ({"implementation": "none"}, "implementation"),
    ],
)
def test_refusals_name_what_is_wrong(changes: dict[str, Any], names: str) -> None:
    batch, key_up, value_up = batch_of(CASES[0])
    arguments = {**OF_A_CACHE, "num_pages": 9, "heads_at_once": 2}
    q, *rest = batch.arrays()
    arrays = map(jnp.asarray, (q, key_up, value_up, *rest))
    with pytest.raises(ValueError, match=names):
        expanded_attention(*arrays, **(arguments | changes))


def test_a_key_longer_than_what_is_cached_is_refused() -> None:
    batch, key_up, value_up = batch_of(CASES[0])
    q, *rest = batch.arrays()
    longer = np.concatenate([q, q[..., :16]], axis=2)
    arrays = map(jnp.asarray, (longer, key_up, value_up, *rest))
    with pytest.raises(ValueError, match="cached"):
        expanded_attention(*arrays, num_pages=9, heads_at_once=2, **OF_A_CACHE)
