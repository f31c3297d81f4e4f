"""The Triton kernel through the parity gate, run by Triton's interpreter on CPUs: seconds a call.

    TRITON_INTERPRET=1 python -m tests.support.triton_interpreted SHARE_KEYS DTYPE:CASE...

Triton looks at the variable when it is imported, and does not compile in that process any more: hence a process of its own. It
prints a JSON list of the results. Kernels read and write numpy arrays in place.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax_triton
import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from pallas_kernels.parity.cases import ATTENTION_CASES
from pallas_kernels.parity.gate import check_attention
from pallas_kernels.ragged_paged_attention import triton
from pallas_kernels.registry import Target

DTYPES = {
    "bfloat16": tl.bfloat16,
    "float16": tl.float16,
    "float32": tl.float32,
    "int32": tl.int32,
    "uint8": tl.uint8,
    "int8": tl.int8,
}


def triton_call(*arguments: jax.Array, kernel: Any, out_type: Any, grid: tuple[int, ...], **statics: Any) -> Any:
    """Take the arguments of `jax_triton.triton_call`; those for the compiler are passed over."""
    flat, structure = jax.tree.flatten(out_type)
    results = jax.pure_callback(partial(_run, kernel, flat, grid, statics), flat, *arguments)
    return jax.tree.unflatten(structure, results)


def _run(kernel: Any, out_types: list[Any], grid: tuple[int, ...], statics: dict[str, Any], *arguments: Any) -> list[Any]:
    results = [_anything(each) for each in out_types]
    inputs = [np.ascontiguousarray(array) for array in arguments]
    with np.errstate(all="ignore"):
        kernel.run(*_pointers([*inputs, *results]), grid=grid, warmup=False, **statics)
    return results


def _anything(type_: Any) -> np.ndarray:
    """What memory may hold before it is written: nothing that a result may depend on."""
    return np.full(type_.shape, jnp.nan, type_.dtype)


def _pointers(arrays: Iterable[np.ndarray]) -> list[Any]:
    def pointer(array: np.ndarray) -> Any:
        type_ = tl.pointer_type(DTYPES[array.dtype.name])
        return tl.tensor(TensorHandle(np.array([array.ctypes.data], np.uint64), type_), type_)

    return [pointer(array) for array in arrays]


def _narrow(builder: Any, source: TensorHandle, type_: Any) -> TensorHandle:
    """The interpreter cuts off what bfloat16 has no room for. GPUs round."""
    if type_.scalar != tl.bfloat16 or source.dtype.scalar != tl.float32:
        narrowed: TensorHandle = builder.cast_impl(source, type_)
        return narrowed
    return TensorHandle(np.asarray(source.data).astype(jnp.bfloat16).view(np.uint16), tl.bfloat16)


def _dot(builder: Any, a: TensorHandle, b: TensorHandle, d: TensorHandle, precision: Any, imprecise: Any) -> TensorHandle:
    """The interpreter's own product takes the bits of bfloat16 for whole numbers."""

    def numbers(handle: TensorHandle) -> np.ndarray:
        if handle.dtype.scalar != tl.bfloat16:
            return np.asarray(handle.data, np.float32)
        return (np.asarray(handle.data, np.uint32) << 16).view(np.float32)

    return TensorHandle(np.matmul(numbers(a), numbers(b)) + d.data, d.dtype.scalar)


def main(share_keys: str, *wanted: str) -> None:
    jax_triton.triton_call = triton_call
    InterpreterBuilder.create_dot, InterpreterBuilder.create_fp_trunc = _dot, _narrow
    triton.SHARE_KEYS = int(share_keys)
    cases = {case.name: case for case in ATTENTION_CASES}
    results = []
    for each in wanted:
        dtype, _, name = each.partition(":")
        results.append(asdict(check_attention(cases[name], dtype, "triton", Target("gpu", (8, 0)))))
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
