"""What the Mosaic GPU kernel of rotate_write_attend computes; asked before it is imported."""

from __future__ import annotations

from pallas_kernels.ragged_paged_attention import mosaic_gpu_support as attention
from pallas_kernels.rotate_write_attend.problem import RotateAttendProblem

WHOLE_ROWS = 8  # of a tile in shared memory
WHOLE_DIMENSIONS = 32  # both halves of what is rotated are whole rows of 32 bytes
OPTIONS = ("window", "soft_cap")
LIMITS = (
    "steps with no more tokens than rows on Hopper GPUs (compute capability 9.0) with jax 0.11.2 or newer; queries, keys, values "
    "and cache all in bfloat16 or all in float16, pages of 8, 16, 32 or 64 tokens, head dims that are multiples of 16 up to 256, "
    "of which a multiple of 32 is rotated, and at most 64 query heads to a KV head"
)


def supports(problem: RotateAttendProblem) -> str | None:
    rotate, attend = problem.rotate, problem.attend
    unread = [name for name in attend.options.asked if name not in OPTIONS]
    if unread:
        return f"it does not compute {unread[0]}"
    if attend.tokens > attend.rows:
        return f"a step can have as many tokens as rows, not {attend.tokens} tokens in {attend.rows} rows"
    if rotate.dtype != rotate.kv_dtype:
        return f"queries, keys and values must have the cache's {rotate.kv_dtype.name}, not {rotate.dtype.name}"
    if rotate.rotated_dims % WHOLE_DIMENSIONS:
        return f"the rotated dimensions must be a multiple of {WHOLE_DIMENSIONS}, not {rotate.rotated_dims}"
    group = rotate.heads // rotate.kv_heads
    if -group % WHOLE_ROWS > 2 * rotate.kv_heads:
        return f"{group} query heads to a KV head are no whole tile, and {rotate.kv_heads} KV heads do not fill it"
    return attention.supports(attend)
