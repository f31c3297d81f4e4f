"""How programs are made: what is compiled, for arguments of which shapes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxserve.errors import ConfigError
from jaxserve.executor.cache_arrays import CacheArrays
from jaxserve.executor.page_moves import MOVE_WIDTH, make_copy, make_gather, make_scatter
from jaxserve.step.plan import MoveKind
from pallas_kernels.registry import KernelError

NO_OPTIONS: Mapping[str, str] = {}
MOVES = {MoveKind.COPY: "copy_pages", MoveKind.TO_TIER: "gather_pages", MoveKind.FROM_TIER: "scatter_pages"}


@dataclass(frozen=True, slots=True, eq=False)
class ProgramSpec:
    """How a program is made.

    Attributes:
        function: what is compiled (jax.jit's result).
        arguments: shapes of what it takes.
        result: a tree of the structure that it returns.
        options: XLA's.
        precision: of matrix products, as `jax.default_matmul_precision` takes it; None for the platform's own.
    """

    name: str
    function: Any
    arguments: tuple[Any, ...]
    result: Any
    options: Mapping[str, str]
    precision: str | None = None

    def lower(self) -> Any:
        """Its text, which can be compiled (jax.stages.Lowered).

        Raises ConfigError: a layer was given a kernel that cannot do what is asked of it.
        """
        try:
            with contextlib.nullcontext() if self.precision is None else jax.default_matmul_precision(self.precision):
                return self.function.lower(*self.arguments)
        except KernelError as error:
            named = "attention_kernel, kv_write_kernel or grouped_matmul_kernel"
            raise ConfigError(f"{named}: {error}", param="attention_kernel") from error

    def compile(self, extra: Mapping[str, str] = NO_OPTIONS) -> Any:
        """The program (jax.stages.Compiled); `extra` are more of XLA's options. Raises as `lower`."""
        return self.lower().compile(compiler_options={**self.options, **extra} or None)


def move_specs(cache: CacheArrays, mesh: Mesh, *, swaps: bool, xla: Mapping[str, str], prefix: str = "") -> Iterator[ProgramSpec]:
    """The programs that move pages of a cache, given as shapes: MOVES behind a prefix, of swaps only where there are some."""
    numbers, placed = np.zeros(MOVE_WIDTH, np.int32), jax.tree.map(lambda array: array.sharding, cache)
    in_place = partial(jax.jit, donate_argnums=0, out_shardings=placed)
    copy, scatter = in_place(make_copy(mesh)), in_place(make_scatter(mesh))
    yield ProgramSpec(prefix + MOVES[MoveKind.COPY], copy, (cache, numbers, numbers), placed, xla)
    if swaps:
        pages, gather = jax.tree.map(_moved, cache), jax.jit(make_gather(mesh), out_shardings=placed)
        yield ProgramSpec(prefix + MOVES[MoveKind.TO_TIER], gather, (cache, numbers), placed, xla)
        yield ProgramSpec(prefix + MOVES[MoveKind.FROM_TIER], scatter, (cache, pages, numbers), placed, xla)


def _moved(array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The shape of the pages [MOVE_WIDTH,L,...] that one call moves out of an array [L,P,...], or into it."""
    layers, _, *page = array.shape
    return jax.ShapeDtypeStruct((MOVE_WIDTH, layers, *page), array.dtype, sharding=array.sharding)
