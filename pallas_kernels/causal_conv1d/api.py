"""causal_conv1d: a token's channels see those of the W - 1 tokens before it, over steps."""

from __future__ import annotations

import jax

from pallas_kernels import checks
from pallas_kernels.causal_conv1d.implementations import IMPLEMENTATIONS
from pallas_kernels.causal_conv1d.problem import ConvProblem
from pallas_kernels.registry import Target, choose
from pallas_kernels.state_rows import StateRows, require_layer, require_rows


def causal_conv1d(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    states: jax.Array,
    rows: StateRows,
    *,
    layer: int,
    silu: bool = True,
    implementation: str | None = None,
    target: Target | None = None,
) -> tuple[jax.Array, jax.Array]:
    """A causal convolution with a filter of its own for every channel (as before Mamba's scan, Gu and Dao 2023).

    Axes: T tokens, R rows, C channels, W taps, L layers, N places of states.

    Args:
        x: [T, C] bf16, f16 or f32.
        weight: [W, C] of the same dtype; the last tap is the token's own.
        bias: [C], of that dtype; None for none.
        states: [L, N, W-1, C] of that dtype: the inputs before the row's first token, oldest first.
        rows: where they are, and go to.
        layer: of `states`.
        silu: whether the sum goes through SiLU.
        implementation: a name from `implementations.py`, or None to pick by target, dtype and shape.
        target: the device that the program is for; the default device unless given.

    Returns:
        [T, C] in x's dtype, summed in float32, and the states with what rows left there. Of tokens behind the last row the result
        may be anything.

    Raises:
        ValueError: a shape, the layer or the implementation's name is wrong, or that implementation cannot do this.
        TypeError: a dtype is not supported.
    """
    checks.require_shape("x", x, (None, None), "[T, C]")
    checks.require_dtype("x", x, checks.FLOAT_DTYPES)
    tokens, channels = x.shape
    checks.require_shape("weight", weight, (None, channels), "[W, C]")
    width = weight.shape[0]
    checks.require_shape("states", states, (None, None, width - 1, channels), "[L, N, W-1, C]")
    others = {"weight": weight, "states": states}
    if bias is not None:
        checks.require_shape("bias", bias, (channels,), "[C]")
        others["bias"] = bias
    for name, array in others.items():
        checks.require_dtype(name, array, (x.dtype,))
    if 0 in x.shape or width < 2:
        raise ValueError(f"there must be tokens, channels and 2 taps or more, got x {list(x.shape)}, weight {list(weight.shape)}")
    require_rows(rows, tokens)
    require_layer(states, layer)
    count, destinations = rows.destination.shape
    problem = ConvProblem(x.dtype, tokens, count, destinations, channels, width)
    convolve = choose("causal_conv1d", IMPLEMENTATIONS, implementation, target, problem)
    return convolve(x, weight, bias, states, rows, layer=layer, silu=silu)
