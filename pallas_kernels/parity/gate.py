"""The gate: how far an implementation is from the float64 reference, and whether that is near enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.grouped_matmul import check_inputs as check_sizes
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.grouped_matmul import reference as grouped_reference
from pallas_kernels.kv_write import check_inputs as check_slots
from pallas_kernels.kv_write import kv_write
from pallas_kernels.kv_write import reference as write_reference
from pallas_kernels.matmul import CodePanels, Layout, Matrix, Panels, Rows, Weight, Words, counted, matmul, pack
from pallas_kernels.matmul import reference as matmul_reference
from pallas_kernels.matmul.words import BLOCK_INPUTS
from pallas_kernels.parity.batches import FLOAT8
from pallas_kernels.parity.cases import (
    QUANTIZED,
    AttentionCase,
    GroupedCase,
    MatmulCase,
    RotateAttendCase,
    RotateCase,
    WriteCase,
)
from pallas_kernels.quantization import SCHEMES, Float8Weight, FourBit, Scheme
from pallas_kernels.ragged_paged_attention import check_inputs, ragged_paged_attention
from pallas_kernels.ragged_paged_attention import reference as attention_reference
from pallas_kernels.registry import KernelError, Target
from pallas_kernels.rotate_and_write import Rotation, rotate_and_write
from pallas_kernels.rotate_and_write import reference as rotate_reference
from pallas_kernels.rotate_write_attend import reference as rotate_attend_reference
from pallas_kernels.rotate_write_attend import rotate_write_attend

_Start = Callable[..., "Result"]  # a Result but for its verdict and figures
Verdict = Literal["pass", "FAIL", "ERROR", "unsupported"]
SMALL = 0.01  # share of the largest output below which an element's relative error means nothing
WRITE_PAGES = 9
SCALE_SPACING = {"bfloat16": 2.0**-7, "float32": 2.0**-23}
TINY = float(np.finfo(np.float32).tiny)  # XLA and GPUs may take denormal numbers of float32 for 0


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What passes: errors of outputs between -2 and 2 below `max_abs`, and a cosine above `cosine`."""

    max_abs: float
    cosine: float


# Half an ulp of the output, and about as much again for weights that a kernel keeps in the dtype. A quantized cache is data that
# both sides read: it is no reason for another error than the queries' dtype is.
MXFP4 = FourBit("fp4", 32)
TOLERANCE = {
    "float32": Tolerance(2e-5, 0.999999),
    "bfloat16": Tolerance(1e-2, 0.999),
    "float16": Tolerance(2e-3, 0.99999),
    "float8": Tolerance(1e-2, 0.999),
    "int8": Tolerance(1e-2, 0.999),
}


@dataclass(frozen=True, slots=True)
class Result:
    """One case of one implementation.

    Attributes:
        operation, implementation, case, dtype: what ran; `dtype` is one of cases.DTYPES.
        verdict: "unsupported" if the implementation says that it does not compute this, "ERROR" if it raised.
        max_abs: largest absolute error.
        max_rel: largest relative error of elements that are not below a hundredth of the largest.
        cosine: of all outputs with all expected ones.
        reason: why the verdict is not "pass".
    """

    operation: str
    implementation: str
    case: str
    dtype: str
    verdict: Verdict
    max_abs: float = 0.0
    max_rel: float = 0.0
    cosine: float = 1.0
    reason: str = ""


def check_attention(case: AttentionCase, dtype: str, implementation: str, target: Target | None = None) -> Result:
    start = partial(Result, "ragged_paged_attention", implementation, case.name, dtype)
    return guarded(start, lambda: _attention(start, case, dtype, implementation, target))


def check_write(case: WriteCase, dtype: str, implementation: str, target: Target | None = None) -> Result:
    start = partial(Result, "kv_write", implementation, case.name, dtype)
    return guarded(start, lambda: _write(start, case, dtype, implementation, target))


def check_rotate(case: RotateCase, dtype: str, implementation: str, target: Target | None = None) -> Result:
    start = partial(Result, "rotate_and_write", implementation, case.name, dtype)
    return guarded(start, lambda: _rotate(start, case, dtype, implementation, target))


def check_rotate_attend(case: RotateAttendCase, dtype: str, implementation: str, target: Target | None = None) -> Result:
    start = partial(Result, "rotate_write_attend", implementation, case.name, dtype)
    return guarded(start, lambda: _rotate_attend(start, case, dtype, implementation, target))


def check_grouped(case: GroupedCase, dtype: str, implementation: str, target: Target | None = None) -> Result:
    start = partial(Result, "grouped_matmul", implementation, case.name, dtype)
    return guarded(start, lambda: _grouped(start, case, dtype, implementation, target))


def check_matmul(case: MatmulCase, dtype: str, implementation: str, target: Target | None = None) -> Result:
    start = partial(Result, "matmul", implementation, case.name, dtype)
    return guarded(start, lambda: _matmul(start, case, dtype, implementation, target))


def guarded(start: _Start, run: Callable[[], Result]) -> Result:
    """One case that raises must not hide the others."""
    try:
        return run()
    except KernelError as error:
        return start("unsupported", reason=str(error))
    except Exception as error:
        return start("ERROR", reason=f"{type(error).__name__}: {error}")


def _attention(start: _Start, case: AttentionCase, dtype: str, implementation: str, target: Target | None) -> Result:
    batch, sinks = case.batch(dtype), case.sink_array()
    statics: dict[str, Any] = {"layer": case.layer, "options": case.options}
    check_inputs(batch.q.shape[0], jnp.asarray(batch.kv_pages), batch.page_table, batch.query_start, batch.kv_length)
    call = jax.jit(partial(ragged_paged_attention, implementation=implementation, target=target, **statics))
    # A float32 matrix product is one only where asked for: a GPU's default is TensorFloat-32.
    with jax.default_matmul_precision("highest"):
        got = np.asarray(call(*batch.arrays(), kv_scales=batch.kv_scales, sinks=sinks))
    want = attention_reference.ragged_paged_attention(*batch.arrays(), kv_scales=batch.kv_scales, sinks=sinks, **statics)
    if got.dtype != batch.q.dtype:
        return start("FAIL", reason=f"the output is {got.dtype.name}, not {batch.q.dtype.name}")
    real = int(batch.query_start[-1])
    if (got[real:] != 0).any():
        return start("FAIL", reason="padding tokens are not 0")
    return _judge(start, got[:real].astype(np.float64), want[:real], TOLERANCE[dtype])


def _judge(start: _Start, got: np.ndarray, want: np.ndarray, tolerance: Tolerance) -> Result:
    if not np.isfinite(got).all():
        return start("FAIL", max_abs=float("nan"), max_rel=float("nan"), cosine=float("nan"), reason="the output is not finite")
    figures = errors(got, want)
    reasons = []
    if figures["max_abs"] >= tolerance.max_abs:
        reasons.append(f"max abs must be below {tolerance.max_abs:g}")
    if figures["cosine"] <= tolerance.cosine:
        reasons.append(f"cosine must be above {tolerance.cosine:g}")
    return start("FAIL" if reasons else "pass", **figures, reason=", ".join(reasons))


def errors(got: np.ndarray, want: np.ndarray) -> dict[str, float]:
    """The figures of a Result; exact ones for no elements."""
    if want.size == 0:
        return {"max_abs": 0.0, "max_rel": 0.0, "cosine": 1.0}
    error, size = np.abs(got - want), np.abs(want)
    counted = (size > 0) & (size >= SMALL * size.max())
    norms = float(np.linalg.norm(got) * np.linalg.norm(want))
    return {
        "max_abs": float(error.max()),
        "max_rel": float((error[counted] / size[counted]).max()) if counted.any() else 0.0,
        "cosine": float(np.vdot(got, want)) / norms if norms > 0 else float((got == want).all()),
    }


def _write(start: _Start, case: WriteCase, dtype: str, implementation: str, target: Target | None) -> Result:
    rng = np.random.default_rng(len(case.slots))
    kv_dtype = jnp.dtype(QUANTIZED.get(dtype, dtype))
    source = jnp.dtype(case.source or ("bfloat16" if dtype in QUANTIZED else dtype))
    halves = 2 if case.values else 1
    shape = (3, WRITE_PAGES, halves, case.kv_heads, case.page_size, case.head_dim)
    pages = rng.standard_normal(shape).astype(kv_dtype)
    scales = rng.standard_normal(shape[:5]).astype(jnp.dtype(case.scale_dtype)) if dtype in QUANTIZED else None
    new = (rng.standard_normal((halves, len(case.slots), case.kv_heads, case.head_dim)) * case.magnitude).astype(source)
    if case.zeros:
        new[:, ::2] = 0
    k, v = new[0], new[1] if case.values else None
    slots = np.asarray(case.slots, np.int32)
    check_slots(jnp.asarray(pages), slots)
    call = jax.jit(
        partial(kv_write, layer=1, implementation=implementation, target=target), donate_argnames=("kv_pages", "kv_scales")
    )
    written = call(kv_pages=jnp.array(pages), k=k, v=v, slots=slots, kv_scales=None if scales is None else jnp.array(scales))
    want, want_scales = write_reference.kv_write(pages, scales, k, v, slots, layer=1)
    if scales is None or want_scales is None:
        return _judge_copy(start, np.asarray(written), want)
    got, got_scales = (np.asarray(array) for array in written)
    return _judge_quantized(start, case, (got, got_scales), (want, want_scales), new)


def _judge_copy(start: _Start, got: np.ndarray, want: np.ndarray) -> Result:
    """Nothing but a conversion: all bits are equal. The null page may hold anything."""
    figures = errors(got[:, 1:].astype(np.float64), want[:, 1:].astype(np.float64))
    same = got[:, 1:].tobytes() == want[:, 1:].tobytes()
    return start("pass" if same else "FAIL", **figures, reason="" if same else "the cache must be equal, bit by bit")


def _judge_quantized(
    start: _Start,
    case: WriteCase,
    got: tuple[np.ndarray, np.ndarray],
    want: tuple[np.ndarray, np.ndarray],
    new: np.ndarray,
) -> Result:
    """What was written is as near as its dtype allows, at the reference's scale; the rest is as it was, bit by bit."""
    slots = np.asarray([slot for slot in case.slots if slot >= case.page_size], np.int64)
    tokens = np.asarray([token for token, slot in enumerate(case.slots) if slot >= case.page_size], np.int64)
    page, offset = slots // case.page_size, slots % case.page_size
    rest = np.ones(got[1].shape, bool)
    rest[1, page, :, :, offset] = False
    rest[:, 0] = False
    if any(mine[rest].tobytes() != theirs[rest].tobytes() for mine, theirs in zip(got, want, strict=True)):
        return start("FAIL", reason="slots that were not named must stay as they are")
    scale = got[1][1, page, :, :, offset].astype(np.float64)  # [T, 2, K], or 1
    expected = want[1][1, page, :, :, offset].astype(np.float64)
    read = got[0][1, page, :, :, offset].astype(np.float64) * scale[..., None]  # [T, 2, K, D]
    source = np.swapaxes(new[:, tokens].astype(np.float64), 0, 1)
    # Relative to each vector's largest number, so that a table can show the worst of several; what may count as 0 does.
    size = np.maximum(np.abs(source).max(axis=-1, keepdims=True), TINY)
    figures = errors(*(np.where(np.abs(array) < TINY, 0.0, array) / size for array in (read, source)))
    # E4M3 has 3 bits of mantissa, and 2^-9 between its smallest numbers; a little more for the division's own rounding.
    float8 = np.maximum(np.abs(source) / 16, scale[..., None] / 1024) * 1.001
    half_ulp = float8 if got[0].dtype == FLOAT8 else np.broadcast_to(scale[..., None] / 2, source.shape) * 1.001
    half_ulp += TINY
    if not (np.abs(scale - expected) <= SCALE_SPACING[case.scale_dtype] * expected).all():
        return start("FAIL", **figures, reason="scales must be the reference's")
    if not (np.abs(read - source) <= half_ulp).all():
        return start("FAIL", **figures, reason="errors must be within half an ulp of the cache's dtype")
    return start("pass", **figures)


def _rotate(start: _Start, case: RotateCase, dtype: str, implementation: str, target: Target | None) -> Result:
    rng, heads, slots = np.random.default_rng(len(case.slots)), case.heads, np.asarray(case.slots, np.int32)
    shape = (3, WRITE_PAGES, 2 if case.values else 1, heads.kv, case.page_size, heads.dim)
    pages = rng.standard_normal(shape).astype(jnp.dtype(dtype))
    angles = rng.uniform(-np.pi, np.pi, (len(slots), (case.rotated_dims or heads.dim) // 2))
    cos, sin = (turn(angles).astype(np.float32) for turn in (np.cos, np.sin))
    packed = rng.uniform(-1.4, 1.4, (len(slots), heads.query + 2 * heads.kv, heads.dim)).astype(jnp.dtype(case.source or dtype))
    real = slots >= case.page_size
    packed[~real] = np.nan
    q, k, v = np.split(packed, (heads.query, heads.query + heads.kv), axis=1)
    check_slots(jnp.asarray(pages), slots)

    def run(kv_pages: jax.Array, packed: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        q, k, v = jnp.split(packed, (heads.query, heads.query + heads.kv), axis=1)
        turned, values = Rotation(jnp.asarray(cos), jnp.asarray(sin)), v if case.values else None
        return rotate_and_write(kv_pages, q, k, values, turned, slots, layer=1, implementation=implementation, target=target)

    got_q, got = (np.asarray(array) for array in jax.jit(run, donate_argnums=0)(jnp.array(pages), packed, slots))
    want_q, want = rotate_reference.rotate_and_write(pages, q, k, v if case.values else None, cos, sin, slots, layer=1)
    if got_q.dtype != q.dtype:
        return start("FAIL", reason=f"the queries are {got_q.dtype.name}, not {q.dtype.name}")
    keys = _written_keys(got, want, slots[real], 1)
    if keys is None:
        return start("FAIL", reason=_BESIDE_KEYS)
    queries = got_q[real].astype(np.float64), want_q[real]
    rotated = [np.concatenate(each, axis=1) for each in zip(queries, keys, strict=True)]
    coarser = max((dtype, q.dtype.name), key=lambda name: TOLERANCE[name].max_abs)
    return _judge(start, rotated[0], rotated[1], TOLERANCE[coarser])


_BESIDE_KEYS = "values, and slots that were not named, must be equal, bit by bit"


def _written_keys(got: np.ndarray, want: np.ndarray, slots: np.ndarray, layer: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The keys [T, K, D] of both caches, float64; None if anything else differs, the null page apart."""
    page, offset = slots // want.shape[4], slots % want.shape[4]
    rest = np.ones(want.shape, bool)
    rest[layer, page, 0, :, offset] = False
    rest[:, 0] = False
    if got[rest].tobytes() != want[rest].tobytes():
        return None
    mine, theirs = (array[layer, page, 0, :, offset].astype(np.float64) for array in (got, want))
    return mine, theirs


def _rotate_attend(start: _Start, case: RotateAttendCase, dtype: str, implementation: str, target: Target | None) -> Result:
    batch, sinks, heads = case.attention.batch(dtype), case.attention.sink_array(), case.attention.heads
    layer, options = case.attention.layer, case.attention.options
    slots, real, rng = batch.slots(), int(batch.query_start[-1]), np.random.default_rng(1)
    size, pages, tokens = batch.kv_pages.shape[4], batch.kv_pages.copy(), len(slots)
    pages[:, slots[:real] // size, :, :, slots[:real] % size] = np.nan
    angles = rng.uniform(-np.pi, np.pi, (tokens, (case.rotated_dims or heads.dim) // 2))
    cos, sin = (turn(angles).astype(np.float32) for turn in (np.cos, np.sin))
    packed = np.concatenate([batch.q, rng.uniform(-1.4, 1.4, (tokens, 2 * heads.kv, heads.dim))], axis=1).astype(batch.q.dtype)
    packed[real:] = np.nan
    rows = (slots, batch.page_table, batch.query_start, batch.kv_length)
    attend = partial(rotate_write_attend, layer=layer, options=options, implementation=implementation, target=target)

    def run(kv_pages: jax.Array, packed: jax.Array, *rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        q, k, v = jnp.split(packed, (heads.query, heads.query + heads.kv), axis=1)
        turned, given = Rotation(jnp.asarray(cos), jnp.asarray(sin)), None if sinks is None else jnp.asarray(sinks)
        return attend(kv_pages, q, k, v, turned, *rows, sinks=given)

    with jax.default_matmul_precision("highest"):
        got = jax.jit(run, donate_argnums=0)(jnp.array(pages), packed, *rows)
    attended, written = (np.asarray(array) for array in got)
    q, k, v = np.split(packed, (heads.query, heads.query + heads.kv), axis=1)
    reference = partial(rotate_attend_reference.rotate_write_attend, layer=layer, options=options, sinks=sinks)
    want, want_pages = reference(pages, q, k, v, cos, sin, *rows)
    if attended.dtype != batch.q.dtype:
        return start("FAIL", reason=f"the output is {attended.dtype.name}, not {batch.q.dtype.name}")
    if (attended[real:] != 0).any():
        return start("FAIL", reason="padding tokens are not 0")
    keys = _written_keys(written, want_pages, slots[:real], layer)
    if keys is None:
        return start("FAIL", reason=_BESIDE_KEYS)
    both = zip((attended[:real].astype(np.float64), want[:real]), keys, strict=True)
    mine, theirs = (np.concatenate(each, axis=1) for each in both)
    return _judge(start, mine, theirs, TOLERANCE[dtype])


def packed_weights(case: GroupedCase, plain: np.ndarray) -> Weight:
    """A case's weights as they are multiplied by."""
    if case.scheme == "none":
        return jnp.asarray(plain)
    if case.words:
        return _in_words(case, plain)
    scheme = SCHEMES[case.scheme].fitted(plain.shape[1:], (0,))
    assert scheme is not None
    panels = CodePanels if isinstance(scheme, FourBit) else Panels
    return _packed(plain, panels((0,), plain.shape[1:]), scheme, stacked=True)


def _packed(plain: np.ndarray, layout: Layout, scheme: Scheme, *, stacked: bool = False) -> Matrix:
    """In one program: a call compiles none for each of its operations."""
    packed: Matrix = jax.jit(partial(pack, layout=layout, scheme=scheme, stacked=stacked))(plain)
    return packed


def _in_words(case: GroupedCase, plain: np.ndarray) -> Matrix:
    named = {"fp8_weight": Float8Weight(BLOCK_INPUTS), "mxfp4": MXFP4}.get(case.scheme, SCHEMES.get(case.scheme))
    scheme = None if named is None else named.fitted(plain.shape[1:], (0,))
    assert scheme is not None
    layout = Words.of((0,), plain.shape[1:], scheme)
    if scheme != MXFP4:
        return _packed(plain, layout, scheme, stacked=True)
    groups = plain.astype(np.float64).reshape(len(plain), -1, MXFP4.group, plain.shape[2])
    table = MXFP4.table().astype(np.float64)
    scales = np.exp2(np.floor(np.log2(np.abs(groups).max(axis=2, keepdims=True))) - 2)  # the largest number is 6
    codes = np.abs(groups[..., None] / scales[..., None] - table).argmin(axis=-1).astype(np.uint8).reshape(plain.shape)
    values = jax.jit(jax.vmap(layout.arrange))(codes)
    return Matrix(values, (jnp.asarray(scales[:, :, 0], jnp.float32),), layout, scheme, stacked=True)


def _grouped(start: _Start, case: GroupedCase, dtype: str, implementation: str, target: Target | None) -> Result:
    x, plain, sizes = case.arrays(dtype)
    check_sizes(x.shape[0], sizes)
    result, weights = case.result or dtype, packed_weights(case, plain)
    call = jax.jit(partial(grouped_matmul, dtype=jnp.dtype(result), implementation=implementation, target=target))
    with jax.default_matmul_precision("highest"):
        got = np.asarray(call(x, weights, sizes))
    if isinstance(weights, Matrix):  # the numbers that rounding left
        x, plain = np.asarray(jax.jit(weights.scheme.rows)(x)), np.asarray(jax.jit(Matrix.plain)(weights))
    want = grouped_reference.grouped_matmul(x, plain, sizes)
    if got.dtype != jnp.dtype(result):
        return start("FAIL", reason=f"the output is {got.dtype.name}, not {result}")
    real = int(sizes.sum())
    if (got[real:] != 0).any():
        return start("FAIL", reason="rows of nobody are not 0")
    # Products of 16-bit numbers are exact in float32: only the dtype of the result makes larger errors.
    return _judge(start, got[:real].astype(np.float64), want[:real], TOLERANCE[result])


def packed_matrix(case: MatmulCase, plain: np.ndarray) -> tuple[Matrix, np.ndarray]:
    """A case's matrix, and the plain one of the same numbers, which are not those given if the scheme rounds."""
    parameter = plain.T if case.layout == "rows" else plain
    scheme = SCHEMES[case.scheme]
    layouts = {
        "plain": Layout((0,)),
        "rows": Rows((1,)),
        "panels": Panels((0,), parameter.shape),
        "words": Words.of((0,), parameter.shape, scheme),
    }
    matrix = _packed(parameter, layouts[case.layout], scheme)
    return matrix, plain if matrix.scales is None else np.asarray(jax.jit(Matrix.plain)(matrix), np.float64)


def _matmul(start: _Start, case: MatmulCase, dtype: str, implementation: str, target: Target | None) -> Result:
    x, plain = case.arrays(dtype)
    matrix, plain = packed_matrix(case, plain)
    used = x.shape[0] if case.used is None else case.used
    if case.used is not None:
        matrix = counted(matrix, jnp.int32(used))
    with jax.default_matmul_precision("highest"):
        got = np.asarray(jax.jit(partial(matmul, implementation=implementation, target=target))(x, matrix))
    if got.dtype != np.float32:
        return start("FAIL", reason=f"the output is {got.dtype.name}, not float32")
    if (got[used:] != 0).any():
        return start("FAIL", reason="rows that are not used are not 0")
    return _judge(start, got[:used].astype(np.float64), matmul_reference.matmul(x[:used], plain), TOLERANCE["float32"])
